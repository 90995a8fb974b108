"""What is wrong with a configuration, and where: the only thing a bad file leads to."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

KeyPath = tuple[str | int, ...]
"""Where a value stands: ("receivers", 0, "slack", "url_file")."""

_MAX_SHOWN = 60


class Problem(NamedTuple):
    """A fault before its line is known."""

    path: KeyPath
    problem: str
    allowed: str = ""
    suggestion: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing to put right. Lines and columns count from 1; 0 is unknown (a missing file)."""

    file: str
    line: int
    column: int
    path: str
    """As people write it: receivers[0].slack.url_file; "" where the fault is of the whole file."""
    problem: str
    allowed: str = ""
    suggestion: str = ""
    """What was probably meant; "" where nothing is near."""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        subject = f"{self.path}: " if self.path else ""
        guess = f"; did you mean {self.suggestion}?" if self.suggestion else ""
        # A value's own error text may have named what is allowed already.
        known = not self.allowed or self.allowed in self.problem
        allowed = "" if known else f" (allowed: {self.allowed})"
        return f"{place}: {subject}{self.problem}{guess}{allowed}"


class ConfigError(Exception):
    """The configuration cannot be used; `faults` has every reason, in the order of the file."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__(self.faults)

    def __str__(self) -> str:
        return "\n".join(str(fault) for fault in self.faults)


class ConfigUnreadableError(ConfigError):
    """There is no text to judge: the file is missing, forbidden or not a file."""


def write_path(path: KeyPath) -> str:
    """Return the path as people write it. Keys come from outside: shortened, and quoted where odd."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{_key(part)}" if text else _key(part)
    return text


def _key(key: str) -> str:
    plain = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return shorten(key) if plain else shown(key)


def shorten(text: str) -> str:
    """At most 60 characters of it."""
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…"


def shown(text: str) -> str:
    """Return a text from outside, quoted, short, and free of control characters."""
    return ascii(shorten(text)) if not text.isprintable() else f"'{shorten(text)}'"


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the name that was probably meant, or ""."""
    if len(name) > _MAX_SHOWN:  # no misspelling, and difflib's cost grows with its square
        return ""
    near = difflib.get_close_matches(name.lower().replace("-", "_"), list(names), n=1)
    return near[0] if near else ""


def listed(names: Iterable[str]) -> str:
    """Join names as `a, b or c`."""
    *most, last = tuple(names) or ("nothing",)
    return f"{', '.join(most)} or {last}" if most else last
