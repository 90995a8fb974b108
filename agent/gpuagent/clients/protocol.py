"""What a client says: lines of JSON, checked and bounded, then frozen data. The wire format is docs/clients.md.

Protocol version 1; the golden lines that both sides are tested with are in `tests/golden/protocol`.

Fields that are not known are ignored, so that clients may be newer than the agent. A known field of the wrong type is
`Malformed`: a client that is broken should be seen. Texts are made printable, for they end up in labels and on
terminals.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn, TypeVar

from gpuagent.core.snapshot import AllocatorReading
from gpuagent.procfs.files import printable

MAX_LINE_BYTES = 64 * 1024
"""Longest line of a client, with its line feed."""

Message = dict[str, Any]


class Malformed(ValueError):
    """A line that is no message, and why: it costs the connection."""


class LineBuffer:
    """Assemble lines from pieces of any size."""

    def __init__(self, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._max_line_bytes = max_line_bytes
        self._data = bytearray()
        self._searched = 0

    def feed(self, data: bytes | memoryview) -> None:
        """Take what has come."""
        self._data += data

    def next_line(self) -> bytes | None:
        """Return the next line without its line feed; None if it has not come whole.

        Raises:
            Malformed: it is too long, or already longer than any may be.
        """
        end = self._data.find(b"\n", self._searched, self._max_line_bytes)
        if end < 0:
            if len(self._data) >= self._max_line_bytes:
                raise Malformed("a line is too long")
            self._searched = len(self._data)
            return None
        line = bytes(self._data[:end])
        del self._data[: end + 1]  # cheap: CPython moves a start pointer
        self._searched = 0
        return line

    def clear(self) -> None:
        """Forget what is left, of a connection that has ended."""
        self._data.clear()
        self._searched = 0


def decode(line: bytes) -> Message:
    """Return the message in a line.

    Raises:
        Malformed: it is not a JSON object with a text `t`.
    """
    try:
        message = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise Malformed("a line is not JSON") from None
    if not isinstance(message, dict) or not isinstance(message.get("t"), str):
        raise Malformed("a line is no message")
    return message


def encode(message: Message) -> bytes:
    """Return a message as a line: compact and in ASCII."""
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


def _refuse(_: str) -> NoReturn:
    """Refuse NaN and Infinity, which are not JSON, whatever Python says."""
    raise ValueError


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
    """Seconds between two figures, where the app has set them; then the agent's request does not count."""
    frameworks: Mapping[str, bool] = field(default_factory=dict)
    """The frameworks that use the GPU beside torch, and whether they took most of it at their start."""


class AllocatorDevice(NamedTuple):
    """An allocator's figures on one device, under the name that torch has for it ("" before torch 2.4)."""

    uuid: str
    ordinal: int | None
    """CUDA's index, which follows CUDA_VISIBLE_DEVICES."""
    reading: AllocatorReading


@dataclass(frozen=True, slots=True)
class Stats:
    """Figures of one moment."""

    initialized: bool
    devices: tuple[AllocatorDevice, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The answer to a command. `running` says that it was only begun."""

    id: int
    ok: bool
    running: bool = False
    value: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True)
class ClientEvent:
    """Something that the app reports of itself."""

    name: str
    fields: Mapping[str, str | int | float | bool]


ClientMessage = Hello | Stats | CommandResult | ClientEvent


def read_message(message: Message) -> ClientMessage | None:
    """Return what a message says; None for a kind that this version does not know.

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
    """Return flags by name; a later version may say more of one than yes or no."""
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


def _device(device: object) -> AllocatorDevice:
    if not isinstance(device, dict):
        raise Malformed("a device is no object")
    counts = {name: _number(device, name) for name in _COUNTS}
    reading = AllocatorReading(**counts, limit_ratio=_ratio(device.get("fraction")))
    return AllocatorDevice(_text(device, "uuid"), _number(device, "index"), reading)


def _result(message: Message) -> CommandResult:
    number = _number(message, "id")
    if number is None:
        raise Malformed("a result lacks its id")
    return CommandResult(
        id=number,
        ok=_typed(message, "ok", bool, default=False),
        running=_text(message, "state") == "running",
        value=_typed(message, "r", dict, {}),
        error=_text(message, "err", _ERROR_BYTES),
    )


def _event(message: Message) -> ClientEvent:
    fields: dict[str, str | int | float | bool] = {}
    for key, value in list(_typed(message, "fields", dict, {}).items())[:_MAX_FIELDS]:
        name = printable(key, _TEXT_BYTES)
        if isinstance(value, str):
            fields[name] = printable(value, _TEXT_BYTES)
        elif isinstance(value, bool | int | float) and abs(value) <= _MAX_NUMBER:  # neither NaN nor infinity
            fields[name] = value
    return ClientEvent(_text(message, "name"), fields)


_READERS: dict[str, Callable[[Message], ClientMessage]] = {
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
    """Return a count; None where it is missing."""
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
