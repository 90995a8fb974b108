"""Adding an override of the leak detector's sensitivity to the text of a configuration, comments and all."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from gpuagent.config.load import LIMITS
from gpuagent.core.problems import KeyPath
from gpuagent.core.yaml_document import Document, YamlFault, read_document

_PLAIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9_./@:-]*[A-Za-z0-9_./@-]", re.ASCII)
_WORDS: Final = frozenset({"yes", "no", "on", "off", "true", "false", "null", "y", "n"})
_SENSITIVITY: Final = re.compile(r"(sensitivity[\"']?\s*:\s*)[\"']?[a-z]+[\"']?")
_OVERRIDES: Final = ("leaks", "overrides")


def fragment(match: Mapping[str, str], sensitivity: str) -> str:
    """Return the lines that stand for it, from the top of a file.

    >>> print(fragment({"unit": "whisper.service"}, "strict"), end="")
    leaks:
      overrides:
        - match: {unit: whisper.service}
          sensitivity: strict
    """
    return "leaks:\n  overrides:\n" + _item(match, sensitivity, "    ")


def with_override(text: str, match: Mapping[str, str], sensitivity: str) -> str | None:
    """Return the text with this override, ahead of the others; None where it is written in a form that is not edited.

    Of an override that is there for the same match, the sensitivity alone is replaced.
    """
    try:
        document = read_document(text, LIMITS)
    except YamlFault:
        return None
    value = document.value
    if value is None:
        return _joined(text, fragment(match, sensitivity))
    if not isinstance(value, dict) or _is_flow(text, document, ()):
        return None
    if "leaks" not in value:
        return _joined(text, fragment(match, sensitivity))
    return _into_leaks(text, document, value["leaks"], match, sensitivity)


def _into_leaks(text: str, document: Document, leaks: object, match: Mapping[str, str], sensitivity: str) -> str | None:
    lines = text.splitlines(keepends=True)
    place = document.place_of(("leaks",))
    overrides = leaks.get("overrides") if isinstance(leaks, dict) else None
    for index, item in enumerate(overrides if isinstance(overrides, tuple) else ()):
        if isinstance(item, dict) and item.get("match") == dict(match):
            return _replaced(lines, document, (*_OVERRIDES, index, "sensitivity"), sensitivity)
    if not _ends_with_colon(lines[place.line - 1]):
        return None
    if leaks is None:
        return _inserted(lines, place.line, "  overrides:\n" + _item(match, sensitivity, "    "))
    if not isinstance(leaks, dict):
        return None
    if "overrides" in leaks:
        return _into_overrides(lines, document, overrides, match, sensitivity)
    indent = " " * (min(document.place_of(("leaks", key)).column for key in leaks) - 1)
    return _inserted(lines, place.line, f"{indent}overrides:\n" + _item(match, sensitivity, f"{indent}  "))


def _into_overrides(
    lines: list[str], document: Document, overrides: object, match: Mapping[str, str], sensitivity: str
) -> str | None:
    """Put it ahead of those that are there: the first one that matches is taken."""
    key = document.place_of(_OVERRIDES)
    if not _ends_with_colon(lines[key.line - 1]):
        return None
    if not isinstance(overrides, tuple) or not overrides:
        return _inserted(lines, key.line, _item(match, sensitivity, " " * (key.column + 1)))
    first = document.place_of((*_OVERRIDES, 0))
    line = lines[first.line - 1]
    if not line.lstrip(" ").startswith("- "):
        return None
    return _inserted(lines, first.line - 1, _item(match, sensitivity, " " * (len(line) - len(line.lstrip(" ")))))


def _item(match: Mapping[str, str], sensitivity: str, indent: str) -> str:
    keys = ", ".join(f"{key}: {_scalar(value)}" for key, value in match.items())
    return f"{indent}- match: {{{keys}}}\n{indent}  sensitivity: {sensitivity}\n"


def _scalar(value: str) -> str:
    """Return a text of YAML, in quotes where it needs them."""
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return f'"{"".join(map(_escaped, value))}"'


def _escaped(letter: str) -> str:
    if letter in '"\\':
        return f"\\{letter}"
    if letter.isprintable() and letter < "\ud800":
        return letter
    return f"\\U{ord(letter):08X}"


def _is_flow(text: str, document: Document, path: KeyPath) -> bool:
    place = document.place_of(path)
    return text.splitlines()[place.line - 1][place.column - 1 :].startswith(("{", "["))


def _ends_with_colon(line: str) -> bool:
    """Whether nothing but a comment follows a key."""
    return re.fullmatch(r"\s*[\w\"']+\s*:\s*(#.*)?", line.rstrip("\r\n")) is not None


def _joined(text: str, more: str) -> str:
    gap = "" if not text or text.endswith("\n") else "\n"
    return f"{text}{gap}{more}"


def _inserted(lines: list[str], place: int, more: str) -> str:
    before = lines[:place]
    if before and not before[-1].endswith("\n"):
        before[-1] += "\n"
    return "".join([*before, more, *lines[place:]])


def _replaced(lines: list[str], document: Document, path: KeyPath, sensitivity: str) -> str | None:
    place = document.place_of(path)
    line = lines[place.line - 1]
    head, tail = line[: place.column - 1], line[place.column - 1 :]
    new, count = _SENSITIVITY.subn(rf"\g<1>{sensitivity}", tail, count=1)
    return "".join([*lines[: place.line - 1], head + new, *lines[place.line :]]) if count else None
