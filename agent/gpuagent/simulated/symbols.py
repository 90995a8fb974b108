"""Which calls a fault may name: one that exists nowhere would never show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from fnmatch import fnmatchcase

from gpuagent.simulated.library import SYMBOLS


def unknown_calls(patterns: Iterable[str]) -> Iterator[str]:
    """What is wrong with these names of entry points, each with the nearest right one."""
    for pattern in patterns:
        if any(fnmatchcase(symbol, pattern) for symbol in SYMBOLS):
            continue
        near = get_close_matches(pattern, SYMBOLS, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        yield f"no entry point is called {pattern}{hint}"
