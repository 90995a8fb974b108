"""What a client says, checked and bounded: from a JSON object to frozen data.

Fields that are not known are ignored, so that clients may be newer than the agent. A known field of the wrong type is
`Malformed`: a client that is broken should be seen. Texts are made printable, for they end up in labels and on
terminals.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from gpuagent.clients.frames import Malformed, Message
from gpuagent.embedded import AllocatorReading
from gpuagent.procfs.printable import printable

VERSION = 1
_MAX_NUMBER = 2**63 - 1
_MAX_DEVICES = 64
_MAX_CAPABILITIES = 32
_MAX_FIELDS = 16
_MAX_FRAMEWORKS = 8
_MAX_INTERVAL_SECONDS = 3600.0
_TEXT_BYTES = 128
_ERROR_BYTES = 500
_CAPABILITY = re.compile(r"[a-z][a-z_]{0,31}")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Hello:
    """Who the app says it is. Its pid is a claim to be checked."""

    version: int
    pid: int
    app: str
    client_version: str = ""
    python_version: str = ""
    torch_version: str = ""
    backend: str = ""
    capabilities: tuple[str, ...] = ()
    declared_minimum_bytes: int | None = None
    declared_typical_bytes: int | None = None
    interval_seconds: float | None = None
    """Between two figures, where the app has set it; then the agent's wish does not count."""
    frameworks: Mapping[str, bool] = field(default_factory=dict)
    """Those that use the GPU beside torch, and whether they took most of it at their start."""


class Device(NamedTuple):
    """An allocator's figures on one device, under the name that torch has for it ("" before torch 2.4)."""

    uuid: str
    ordinal: int | None
    """CUDA's index, which follows CUDA_VISIBLE_DEVICES."""
    reading: AllocatorReading


@dataclass(frozen=True, slots=True)
class Stats:
    """Figures of one moment."""

    initialized: bool
    devices: tuple[Device, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """The answer to a command. `running` says that it was only begun."""

    id: int
    ok: bool
    running: bool = False
    value: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that the app reports of itself."""

    name: str
    fields: Mapping[str, str | int | float | bool]


Said = Hello | Stats | Result | Event


def read_message(message: Message) -> Said | None:
    """What a message says; None for a kind that this version does not know.

    Raises:
        Malformed: a known field has a value that it cannot have.
    """
    reader = _READERS.get(message["t"])
    return reader(message) if reader else None


def _hello(message: Message) -> Hello:
    version, pid = _number(message, "v"), _number(message, "pid")
    if not version or not pid:
        raise Malformed("a hello lacks its version or pid")
    declared = _typed(message, "declared", dict, {})
    capabilities = _typed(message, "caps", list, [])[:_MAX_CAPABILITIES]
    return Hello(
        version=version,
        pid=pid,
        app=_text(message, "app") or _text(message, "argv0"),
        client_version=_text(message, "lib"),
        python_version=_text(message, "py"),
        torch_version=_text(message, "torch"),
        backend=_text(message, "backend"),
        capabilities=tuple(name for name in capabilities if isinstance(name, str) and _CAPABILITY.fullmatch(name)),
        declared_minimum_bytes=_number(declared, "minimum_bytes"),
        declared_typical_bytes=_number(declared, "typical_bytes"),
        interval_seconds=_interval(message.get("interval")),
        frameworks=_frameworks(_typed(message, "frameworks", dict, {})),
    )


def _interval(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _MAX_INTERVAL_SECONDS:
        raise Malformed("interval is no number of seconds")
    return float(value)


def _frameworks(given: Mapping[str, object]) -> dict[str, bool]:
    """By the names that are names; a later version may say more of one than yes or no."""
    named = {name: value for name, value in given.items() if _CAPABILITY.fullmatch(name) and isinstance(value, bool)}
    return dict(list(named.items())[:_MAX_FRAMEWORKS])


def _stats(message: Message) -> Stats:
    devices = _typed(message, "dev", list, [])[:_MAX_DEVICES]
    return Stats(
        initialized=_typed(message, "init", bool, default=False),
        devices=tuple(_device(device) for device in devices),
        problem=_text(message, "err"),
    )


_COUNTS = (
    "allocated_bytes",
    "allocated_peak_bytes",
    "reserved_bytes",
    "reserved_peak_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "segments",
    "alloc_retries",
    "ooms",
)


def _device(device: object) -> Device:
    if not isinstance(device, dict):
        raise Malformed("a device is no object")
    counts = {name: _number(device, name) for name in _COUNTS}
    reading = AllocatorReading(**counts, limit_ratio=_ratio(device.get("fraction")))
    return Device(_text(device, "uuid"), _number(device, "index"), reading)


def _result(message: Message) -> Result:
    number = _number(message, "id")
    if number is None:
        raise Malformed("a result lacks its id")
    return Result(
        id=number,
        ok=_typed(message, "ok", bool, default=False),
        running=_text(message, "state") == "running",
        value=_typed(message, "r", dict, {}),
        error=_text(message, "err", _ERROR_BYTES),
    )


def _event(message: Message) -> Event:
    fields: dict[str, str | int | float | bool] = {}
    for key, value in list(_typed(message, "fields", dict, {}).items())[:_MAX_FIELDS]:
        name = printable(key, _TEXT_BYTES)
        if isinstance(value, str):
            fields[name] = printable(value, _TEXT_BYTES)
        elif isinstance(value, bool | int | float) and abs(value) <= _MAX_NUMBER:  # neither NaN nor infinity
            fields[name] = value
    return Event(_text(message, "name"), fields)


_READERS: dict[str, Callable[[Message], Said]] = {
    "hello": _hello,
    "stats": _stats,
    "res": _result,
    "event": _event,
}


def _typed(message: Message, key: str, kind: type[T], default: T) -> T:
    value = message.get(key)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise Malformed(f"{key} is of the wrong type")
    return value


def _text(message: Message, key: str, limit_bytes: int = _TEXT_BYTES) -> str:
    return printable(_typed(message, key, str, ""), limit_bytes)


def _number(message: Message, key: str) -> int | None:
    """A count; None where it is not told."""
    value = message.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_NUMBER:
        raise Malformed(f"{key} is no count")
    return value


def _ratio(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise Malformed("fraction is no ratio")
    return float(value)
