"""What is in arrays of Python objects, which the garbage collector does not see: numpy's, and pandas' columns of them.

Asked through numpy's own class, so that no code of a subclass runs. numpy is never imported.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuagent_client.blame.heap import base_named, module_of

PANDAS_INTERNALS = ("pandas._libs.internals", "pandas.core.internals")


def _array_class(kind: type) -> type | None:
    """Return numpy's array class, if this is it or derives from it."""
    return base_named(kind, "numpy", "ndarray")


def is_array_type(kind: type) -> bool:
    """Return whether it is numpy's array or a class that derives from it."""
    return _array_class(kind) is not None


def holds_objects(item: object) -> bool:
    """Return whether this is an array whose elements are Python objects."""
    kind = _array_class(type(item))
    return kind is not None and vars(kind)["dtype"].__get__(item).kind == "O"


def objects_in(item: object) -> Iterable[object]:
    """Return the elements of an array of objects, of all its dimensions; none for anything else."""
    kind = _array_class(type(item))
    if kind is None or not holds_objects(item):
        return ()
    return list(vars(kind)["flat"].__get__(item))


def array_size(item: object) -> int | None:
    """Return how many elements an array of objects has; None for anything else."""
    kind = _array_class(type(item))
    return int(vars(kind)["size"].__get__(item)) if kind is not None and holds_objects(item) else None


def base_of(item: object) -> object:
    """Return the array or buffer that an array is a view of; None where it is no array, or has memory of its own."""
    kind = _array_class(type(item))
    return None if kind is None else vars(kind)["base"].__get__(item)


def is_inside_pandas(parent: object, child: object) -> bool:
    """Return whether this is a step between a pandas object and its columns, which no code of an app has a name for."""
    return any(module_of(type(item)).startswith(PANDAS_INTERNALS) for item in (parent, child))
