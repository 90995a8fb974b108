"""Import a library without modules of which it uses nothing here: memory of every node, for months."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


@contextmanager
def absent(*names: str, **contents: object) -> Iterator[None]:
    """Replace these modules by empty ones for as long as the block lasts; any name in one is a class of its own.

    What is imported in the block keeps them. A module that has been loaded already stays. `contents` are further names
    and what they are, in every one of the modules.
    """
    put = [name for name in names if name not in sys.modules]
    for name in put:
        module = ModuleType(name, "Not loaded: see gpuagent.core.slim_imports.")
        setattr(module, "__getattr__", lambda wanted: type(wanted, (), {}))  # noqa: B010  of the module, PEP 562
        vars(module).update(contents)
        sys.modules[name] = module
    try:
        yield
    finally:
        for name in put:
            del sys.modules[name]
