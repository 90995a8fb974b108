"""Turn the arguments of a C call into plain values, and plain values into the memory that arguments point to.

One codec for both directions, by the ctypes declarations of whoever calls: what was recorded through a structure is
written back through the same structure. A structure becomes its fields by name, and `raw` has all of its bytes in hex
(zeros at the end left out), so that padding and fields that nobody knows yet are kept.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from gpuagent.core.units import parse_bytes
from gpuagent_simulator.abi import Code, NvmlError, number

RAW = "raw"
HEX = "hex"
_HEX_CHUNK = 4096
_POINTERS = (ctypes.c_void_p, ctypes.c_char_p, ctypes._Pointer)


class DescribedCall(NamedTuple):
    """A call as a capture knows it."""

    key: str
    """The C symbol, with the numbers that are passed by value: `nvmlDeviceGetClockInfo(2)`."""
    outputs: tuple[Any, ...]
    """Objects behind the arguments that are passed by reference, in their order."""


def describe_call(symbol: str, args: tuple[Any, ...]) -> DescribedCall:
    """Take a call apart; `args` are those after the device.

    The size that follows a text buffer is no part of the key.
    """
    numbers: list[str] = []
    outputs: list[Any] = []
    after_text = False
    for argument in args:
        target = _target(argument)
        if target is not None:
            outputs.append(target)
        elif not after_text and not isinstance(argument, _POINTERS):
            numbers.append(str(number(argument)))
        after_text = _is_text(target)
    return DescribedCall(f"{symbol}({', '.join(numbers)})" if numbers else symbol, tuple(outputs))


def _target(argument: Any) -> Any:
    """Return the object behind an argument that is passed by reference; None for a value, a handle and NULL."""
    referred = getattr(argument, "_obj", None)
    if referred is not None:
        return referred
    return argument if isinstance(argument, ctypes.Array) else None


def _is_text(target: Any) -> bool:
    return isinstance(target, ctypes.Array) and target._type_ is ctypes.c_char


# ---- from memory to values -----------------------------------------------------------------------


def read_outputs(outputs: tuple[Any, ...]) -> Any:
    """Return what a call has answered: None for nothing, the value of one output, a list of several."""
    values = [read_value(target) for target in outputs]
    if not values:
        return None
    return values[0] if len(values) == 1 else values


def read_value(target: Any) -> Any:
    """Return a plain value: a number, a text, a list, or a mapping."""
    if isinstance(target, ctypes.Structure):
        return _read_struct(target)
    if _is_text(target):
        return text_value(bytes(target).split(b"\0", 1)[0])
    if isinstance(target, ctypes.Array):
        return [read_value(_part(target, target._type_, i * ctypes.sizeof(target._type_))) for i in range(len(target))]
    if isinstance(target, ctypes._SimpleCData) and not isinstance(target, _POINTERS):
        value = target.value
        return text_value(value) if isinstance(value, bytes) else value
    return {HEX: _trimmed(bytes(target))}


def text_value(data: bytes) -> Any:
    """Return text as text; bytes that are none as `{hex: ...}`."""
    with suppress(UnicodeDecodeError):
        text = data.decode("utf-8")
        if text.isprintable():
            return text
    return {HEX: data.hex()}


def _read_struct(struct: ctypes.Structure) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, kind, *bits in _fields(struct):
        if bits:
            found[name] = getattr(struct, name)
        elif not issubclass(kind, _POINTERS):
            found[name] = read_value(_part(struct, kind, getattr(type(struct), name).offset))
    if not _has_pointers(type(struct)):
        found[RAW] = _trimmed(bytes(struct))
    return found


def _has_pointers(kind: Any) -> bool:
    """Return whether a type holds an address of this process: that means nothing in a file."""
    if issubclass(kind, ctypes.Structure | ctypes.Union):
        return any(_has_pointers(field[1]) for field in _fields(kind))
    if issubclass(kind, ctypes.Array):
        return _has_pointers(kind._type_)
    return issubclass(kind, _POINTERS)


def _fields(struct: Any) -> Iterator[tuple[Any, ...]]:
    yield from struct._fields_


def _part(whole: Any, kind: Any, offset: int) -> Any:
    return kind.from_address(ctypes.addressof(whole) + offset)


def _trimmed(data: bytes) -> Any:
    return hex_value(data.rstrip(b"\0"))


def hex_value(data: bytes) -> str | list[str]:
    """Return bytes in hex, in several pieces where they are long."""
    text = data.hex()
    if len(text) <= _HEX_CHUNK:
        return text
    return [text[start : start + _HEX_CHUNK] for start in range(0, len(text), _HEX_CHUNK)]


# ---- from values to memory -----------------------------------------------------------------------


def write_outputs(outputs: tuple[Any, ...], value: Any) -> None:
    """Write an answer to where the arguments of a call point.

    Raises:
        NvmlError: the caller's structure has another version, or its text buffer is too small.
        ValueError: the value does not fit the call.
    """
    if not outputs:
        return
    values = [value] if len(outputs) == 1 else value
    if not isinstance(values, list | tuple) or len(values) != len(outputs):
        raise ValueError(f"{len(outputs)} values are needed")
    for target, each in zip(outputs, values, strict=True):
        write_value(target, each)


def write_value(target: Any, value: Any) -> None:
    """Write one plain value. Raises as `write_outputs` does."""
    if isinstance(target, ctypes.Structure):
        _write_struct(target, value)
    elif _is_text(target):
        data = bytes_of(value)
        if len(data) >= len(target):
            raise NvmlError(Code.INSUFFICIENT_SIZE)
        ctypes.memmove(target, data + b"\0", len(data) + 1)
    elif isinstance(target, ctypes.Array):
        for position, each in enumerate(value[: len(target)]):
            write_value(_part(target, target._type_, position * ctypes.sizeof(target._type_)), each)
    elif isinstance(value, Mapping):
        data = bytes_of(value)[: ctypes.sizeof(target)]
        ctypes.memmove(ctypes.addressof(target), data, len(data))
    else:
        target.value = value.encode() if isinstance(target, ctypes.c_char) else whole(value, target)


def whole(value: Any, target: Any = None) -> Any:
    """Return a number as it is, a size such as `96GiB` in bytes."""
    if isinstance(value, str):
        return parse_bytes(value)
    if isinstance(value, float) and not isinstance(target, ctypes.c_double | ctypes.c_float):
        return int(value)
    return value


def bytes_of(value: Any) -> bytes:
    """Return the bytes of a text, of `{hex: ...}`, or of hex in pieces. Raises ValueError."""
    if isinstance(value, Mapping):
        return bytes_from_hex(value[HEX])
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value.encode()


def bytes_from_hex(value: Any) -> bytes:
    """Return what `hex_value` was made from. Raises ValueError."""
    if isinstance(value, list | tuple):
        return b"".join(bytes_from_hex(piece) for piece in value)
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text: put hex into quotes")
    return bytes.fromhex(value)


def _write_struct(struct: ctypes.Structure, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r} is no mapping of fields")
    _check_version(struct, value)
    if value.get(RAW):
        data = bytes_from_hex(value[RAW])[: ctypes.sizeof(struct)].ljust(ctypes.sizeof(struct), b"\0")
        ctypes.memmove(ctypes.addressof(struct), data, len(data))
    known = {field[0]: field for field in _fields(struct)}
    for name, each in value.items():
        if name not in known:
            if name != RAW:
                raise ValueError(f"{type(struct).__name__} has no field {name!r}")
            continue
        _, kind, *bits = known[name]
        if bits:
            setattr(struct, name, whole(each))
        else:
            write_value(_part(struct, kind, getattr(type(struct), name).offset), each)


def _check_version(struct: ctypes.Structure, value: Mapping[str, Any]) -> None:
    """Refuse a structure of another version than the one that was recorded."""
    asked = getattr(struct, "version", None)
    if asked and value.get("version") not in (None, asked):
        raise NvmlError(Code.ARGUMENT_VERSION_MISMATCH)
