"""What ctypes callers pass, seen as C would see it: an address and what lies there.

pynvml passes `byref(struct)`, arrays, pointers, simple values and plain ints; a reader of our own
passes a char buffer. A C function cannot tell these apart, and neither do the entry points.
"""

from __future__ import annotations

import ctypes
from typing import Any, TypeVar, cast

from gpuagent.simulated.codes import Code, Refusal

S = TypeVar("S")


def address(argument: Any) -> int:
    """Where a pointer argument points; 0 for NULL.

    Raises:
        Refusal: it is no pointer at all.
    """
    if argument is None:
        return 0
    if isinstance(argument, int):
        return argument
    referred = getattr(argument, "_obj", None)  # byref()
    if referred is not None:
        return ctypes.addressof(referred)
    if isinstance(argument, ctypes.c_void_p | ctypes.c_char_p):
        return ctypes.cast(argument, ctypes.c_void_p).value or 0
    if isinstance(argument, ctypes._Pointer):
        return ctypes.addressof(argument.contents) if argument else 0
    if isinstance(argument, ctypes.Array | ctypes.Structure):
        return ctypes.addressof(argument)
    raise Refusal(Code.INVALID_ARGUMENT)


def view(kind: type[S], argument: Any) -> S:
    """The memory that a pointer argument points to, as `kind`.

    Raises:
        Refusal: NULL.
    """
    where = address(argument)
    if not where:
        raise Refusal(Code.INVALID_ARGUMENT)
    seen: S = cast("Any", kind).from_address(where)
    return seen


def room(argument: Any) -> int | None:
    """Bytes behind a pointer argument, where ctypes knows them: C would not."""
    if isinstance(argument, ctypes.Array):
        return ctypes.sizeof(argument)
    referred = getattr(argument, "_obj", None)
    return None if referred is None else ctypes.sizeof(referred)


def number(argument: Any) -> int:
    """A number passed by value: a plain int or a ctypes integer."""
    return int(getattr(argument, "value", argument))


def text(argument: Any) -> bytes:
    """A C string."""
    value = getattr(argument, "value", argument)
    if not isinstance(value, bytes):
        raise Refusal(Code.INVALID_ARGUMENT)
    return value


def put_uint(argument: Any, value: float) -> None:
    """Store an unsigned int."""
    view(ctypes.c_uint, argument).value = int(value)


def put_ulonglong(argument: Any, value: float) -> None:
    """Store an unsigned long long."""
    view(ctypes.c_ulonglong, argument).value = int(value)


def put_pointer(argument: Any, where: int) -> None:
    """Store a pointer, whatever it points to."""
    view(ctypes.c_void_p, argument).value = where


def put_text(argument: Any, size: Any, value: bytes) -> None:
    """Store a C string with its end.

    Raises:
        Refusal: it does not fit.
    """
    if len(value) + 1 > number(size):
        raise Refusal(Code.INSUFFICIENT_SIZE)
    put_bytes(argument, value + b"\0")


def put_bytes(argument: Any, value: bytes) -> None:
    """Copy bytes to where a pointer argument points; never beyond a buffer whose size is known."""
    where = address(argument)
    if not where:
        raise Refusal(Code.INVALID_ARGUMENT)
    limit = room(argument)
    ctypes.memmove(where, value, len(value) if limit is None else min(limit, len(value)))
