"""Find the contexts in which threads keep the values of context variables, before a fork takes them away.

After a fork Python ends all threads but one, and their contexts with them. No name leads to the context of a thread: it
has to be looked for among all objects, which takes some milliseconds. So that is done only where a module of the app
uses context variables.
"""

from __future__ import annotations

import contextvars
import gc
import itertools
import operator
import sys
import weakref
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import NamedTuple

from gpuagent_client.blame.paths import is_library_file

Context = contextvars.Context
CONTEXT_VALUE = "<context variable>"
"""What stands for the name of a value of a context variable on a watched way."""
MAX_CONTEXTS = 1_000
MAX_OBJECTS = 500_000


def uses_context_variables() -> bool:
    """Return whether a module of the app's own knows a context variable, or the module that makes them."""
    for name, module in list(sys.modules.items()):
        if type(module) is not ModuleType or name.startswith("gpuagent_client"):
            continue
        names = object.__getattribute__(module, "__dict__")
        file = names.get("__file__")
        if (name == "__main__" or (type(file) is str and not is_library_file(file))) and any(
            value is contextvars or value is contextvars.ContextVar or type(value) is contextvars.ContextVar
            for value in list(names.values())
        ):
            return True
    return False


def find_contexts() -> list[Context]:
    """Return the contexts of this process, in the app; those in excess of a thousand are left out.

    None in an app of very many objects: to look takes some 40 ns for each. No other thread goes on meanwhile, so that
    nothing that it lets go of is kept, or freed by this one.
    """
    objects = gc.get_objects()
    if len(objects) > MAX_OBJECTS:
        return []
    are_contexts = map(operator.is_, map(type, objects), itertools.repeat(Context))
    found: list[Context] = list(itertools.islice(itertools.compress(objects, are_contexts), MAX_CONTEXTS))
    del objects, are_contexts
    return found


def values_by_variable(contexts: Iterable[Context]) -> dict[int, list[object]]:
    """Return the values of each context variable, by its id."""
    found: dict[int, list[object]] = {}
    for context in contexts:
        for variable, value in context.items():
            found.setdefault(id(variable), []).append(value)
    return found


class ContextReferences(NamedTuple):
    """Weak references to contexts, by which the app can be asked for values without keeping them alive."""

    references: Sequence[weakref.ref[Context]] = ()

    @classmethod
    def to(cls, contexts: Iterable[Context]) -> ContextReferences:
        """Return references to these."""
        return cls([weakref.ref(one) for one in contexts])

    def value(self, variable: object, position: int | None) -> object:
        """Return the value in the context at this position; None where it has none, or is gone."""
        if position is None or position >= len(self.references) or type(variable) is not contextvars.ContextVar:
            return None
        context = self.references[position]()
        return None if context is None else context.get(variable)


def position_of(contexts: Sequence[Context], variable: object, value: object) -> int | None:
    """Return in which of the contexts the variable has this value; None if in none."""
    if type(variable) is not contextvars.ContextVar:
        return None
    return next((number for number, one in enumerate(contexts) if one.get(variable) is value), None)
