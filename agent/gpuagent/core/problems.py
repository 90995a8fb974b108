"""What is wrong with a file that a person wrote, in words: where, what, what is allowed, what was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import NamedTuple

KeyPath = tuple[str | int, ...]
"""Where a value stands: ("receivers", 0, "slack", "url_file")."""

_MAX_SHOWN = 60

_KINDS = (
    (bool, "true or false"),
    (int, "a number"),
    (float, "a number with a point"),
    (str, "text"),
    (dict, "a mapping"),
    (tuple, "a list"),
    (type(None), "nothing"),
)


class Problem(NamedTuple):
    """A fault before its line is known."""

    path: KeyPath
    problem: str
    allowed: str = ""
    suggestion: str = ""


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
    """Return at most 60 characters of a text."""
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
    """Return `a, b or c`."""
    *most, last = tuple(names) or ("nothing",)
    return f"{', '.join(most)} or {last}" if most else last


def kind_of(value: object) -> str:
    """Return what stands in the file, by the names that people have for it."""
    return next((words for kind, words in _KINDS if isinstance(value, kind)), "something else")


def explain(problem: str, allowed: str = "", suggestion: str = "") -> str:
    """Return what is wrong, what was probably meant, and what is allowed unless the problem names that already."""
    guess = f"; did you mean {suggestion}?" if suggestion else ""
    return f"{problem}{guess}" + ("" if not allowed or allowed in problem else f" (allowed: {allowed})")
