"""What a census or a recording in an app has found: checked and bounded, for an app may say anything.

The app's client decides who holds the memory and words the verdict; here it is only read, and both are put together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gpuagent.procfs.files import printable

_MOST_ROWS = 50
_MOST_NOTES = 20
_TEXT_BYTES = 300
_VERDICT_BYTES = 1500
_MAX_NUMBER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Group:
    """Tensors that one thing holds."""

    key: str = ""
    kind: str = ""
    container: str = ""
    path: str = ""
    file: str = ""
    function: str = ""
    cause: str = ""
    remedy: str = ""
    allocated_file: str = ""
    """Where most of it was allocated, if that was recorded."""
    allocated_function: str = ""
    allocated_line: int | None = None
    allocated_bytes: int | None = None
    """Of what outlived the window, allocated there."""
    line: int | None = None
    count: int | None = None
    bytes: int | None = None
    growth_bytes: int | None = None
    container_length: int | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """Memory that one line of the program has allocated."""

    file: str = ""
    function: str = ""
    line: int | None = None
    bytes: int | None = None
    count: int | None = None
    growth_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Findings:
    """Who holds the memory, in words and in figures."""

    verdict: str = ""
    groups: tuple[Group, ...] = ()
    lines: tuple[Line, ...] = ()
    notes: tuple[str, ...] = ()
    stall_seconds: float | None = None
    """How long the app stood still for it."""

    def document(self) -> dict[str, Any]:
        """Return the findings as JSON has them."""
        found = asdict(self)
        return found | {key: list(found[key]) for key in ("groups", "lines", "notes")}


def read_findings(value: Mapping[str, Any]) -> Findings:
    """Return the findings in an app's answer; what is of the wrong type is left out."""
    given = value.get("notes")
    notes = [_text(note) for note in (given if isinstance(given, list) else [])[:_MOST_NOTES]]
    return Findings(
        verdict=_text(value.get("verdict"), _VERDICT_BYTES),
        groups=tuple(Group(**_fields(row, Group)) for row in _rows(value.get("groups"))),
        lines=tuple(Line(**_fields(row, Line)) for row in _rows(value.get("lines"))),
        notes=tuple(note for note in notes if note),
        stall_seconds=_number(value.get("stall_seconds")),
    )


def together(census: Findings | None, lines: Findings | None, notes: tuple[str, ...] = ()) -> Findings:
    """Return one verdict: that of whoever holds the memory, else that of the line which allocated it."""
    found = [each for each in (census, lines) if each is not None]
    telling = next((each for each in found if each.groups or each.lines), found[0] if found else Findings())
    stalls = [each.stall_seconds for each in found if each.stall_seconds is not None]
    return Findings(
        verdict=telling.verdict,
        groups=tuple(group for each in found for group in each.groups),
        lines=tuple(line for each in found for line in each.lines),
        notes=tuple(dict.fromkeys((*(note for each in found for note in each.notes), *notes))),
        stall_seconds=max(stalls, default=None),
    )


def _rows(value: object) -> list[Mapping[str, Any]]:
    rows = value if isinstance(value, list) else []
    return [row for row in rows[:_MOST_ROWS] if isinstance(row, dict)]


def _fields(row: Mapping[str, Any], kind: type[Group | Line]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, field in kind.__dataclass_fields__.items():
        value = row.get(name)
        if field.default == "":
            fields[name] = _text(value)
        elif (number := _number(value)) is not None:
            fields[name] = int(number)
    return fields


def _text(value: object, limit_bytes: int = _TEXT_BYTES) -> str:
    return printable(value, limit_bytes) if isinstance(value, str) else ""


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _MAX_NUMBER:
        return None  # NaN and infinity among them
    return value
