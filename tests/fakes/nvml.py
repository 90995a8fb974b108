"""Placing a library under pynvml, the way the agent does it, and taking it away again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import pynvml


@contextmanager
def use(library: object) -> Iterator[ModuleType]:
    """Pynvml with `library` in place of libnvidia-ml; what was there before comes back at the end."""
    before = pynvml.nvmlLib
    pynvml.nvmlLib = library
    pynvml._nvmlGetFunctionPointer_cache.clear()
    try:
        yield pynvml
    finally:
        pynvml.nvmlLib = before
        pynvml._nvmlGetFunctionPointer_cache.clear()
