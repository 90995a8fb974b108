"""What is wrong with a rule file, and where: all of it at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

_MAX_SHOWN = 60


@dataclass(frozen=True, slots=True)
class RuleFault:
    """One thing to put right. `line` counts from 1; 0 is unknown (a missing file)."""

    file: str
    line: int
    problem: str
    group: str = ""
    rule: str = ""
    remedy: str = ""
    """The way out; "" where the problem says it."""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        where = ", ".join(
            f"{kind} {shown(name)}" for kind, name in (("group", self.group), ("rule", self.rule)) if name
        )
        return f"{place}: {f'{where}: ' if where else ''}{self.problem}{f'; {self.remedy}' if self.remedy else ''}"


class RuleFileError(Exception):
    """The files cannot be used; `faults` has every reason, in the order of the files."""

    def __init__(self, faults: Iterable[RuleFault]) -> None:
        self.faults = tuple(faults)
        super().__init__(self.faults)

    def __str__(self) -> str:
        return "\n".join(str(fault) for fault in self.faults)


def shown(text: str) -> str:
    """A text from outside, quoted, short, and free of control characters."""
    short = text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…"
    return f'"{short}"' if short.isprintable() else ascii(short)


def guess(name: str, names: Iterable[str]) -> str:
    """A question that names what was probably meant, or ""."""
    near = difflib.get_close_matches(name[:_MAX_SHOWN], list(names), n=1)
    return f"did you mean {near[0]}?" if near else ""
