"""Protocol version 1: one JSON object per line over a Unix stream socket, which the app opens towards the agent.

Both sides bound what they read, ignore what they do not know, and close the connection of a peer whose line is no
message. The golden lines that both are tested with are in `tests/golden/protocol`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Union

VERSION = 1
MAX_SENT_BYTES = 64 * 1024
"""A longer line costs the client its connection to the agent."""
MAX_RECEIVED_BYTES = 1024 * 1024

Message = dict[str, Any]


class Malformed(ValueError):
    """Raised for a line that is no message of this protocol."""


class TooLong(ValueError):
    """Raised for a message that does not fit into a line."""


def encode(message: Message) -> bytes:
    """Return a message as a line.

    Raises:
        TooLong: it is beyond MAX_SENT_BYTES.
        TypeError, ValueError: it holds what JSON cannot.
    """
    line = json.dumps(message, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"
    if len(line) > MAX_SENT_BYTES:
        raise TooLong(f"{len(line)} bytes in one message")
    return line


def decode(line: bytes) -> Message:
    """Return the message in a line.

    Raises:
        Malformed: there is none.
    """
    try:
        message = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:  # a thousand brackets are a RecursionError
        raise Malformed("not JSON") from error
    if not isinstance(message, dict) or not isinstance(message.get("t"), str):
        raise Malformed("no object with a text t")
    return message


def _refuse_constant(name: str) -> None:
    """Refuse NaN and the infinities, which are Python's own addition to JSON."""
    raise ValueError(name)


class LineReader:
    """Assemble lines from pieces of any size."""

    def __init__(self, max_bytes: int = MAX_RECEIVED_BYTES) -> None:
        self._max_bytes = max_bytes
        self._begun = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that are complete now.

        Raises:
            Malformed: a line is no message, or too long. The reader is of no further use.
        """
        *ended, rest = data.split(b"\n")
        messages = []
        for piece in ended:
            self._append(piece)
            messages.append(decode(bytes(self._begun)))
            self._begun.clear()
        self._append(rest)
        return messages

    def _append(self, piece: bytes) -> None:
        if len(self._begun) + len(piece) >= self._max_bytes:  # the line feed counts too
            raise Malformed(f"a line of more than {self._max_bytes} bytes")
        self._begun += piece


LEVELS = ("ok", "warning", "critical")
MIN_INTERVAL_SECONDS = 0.2
MAX_INTERVAL_SECONDS = 60.0
_MAX_NUMBER = 2**63 - 1


class Declared(NamedTuple):
    """Memory that the app declares to need on a GPU; None where it declares nothing."""

    minimum_bytes: int | None = None
    typical_bytes: int | None = None


class Welcome(NamedTuple):
    """The agent's answer to hello."""

    version: int
    interval_seconds: float
    level: str


class Level(NamedTuple):
    """State of the GPUs of this process; each mapping is keyed by NVML's UUID."""

    level: str
    free_bytes: Mapping[str, int]
    total_bytes: Mapping[str, int]
    names: Mapping[str, str]


class Command(NamedTuple):
    """Command of the agent."""

    id: int
    name: str
    args: Mapping[str, Any]
    deadline_seconds: float


FromAgent = Union[Welcome, Level, Command]


def read(message: Message) -> FromAgent | None:
    """Return a message of the agent; None where this version does not know its kind.

    Raises:
        Malformed: a known field has a wrong type or value.
    """
    kind = message["t"]
    if kind == "welcome":
        interval = _number(message, "interval")
        return Welcome(_whole(message, "v"), clamp_interval(interval), _level(message))
    if kind == "level":
        return Level(
            _level(message),
            _whole_numbers(message, "free_bytes"),
            _whole_numbers(message, "total_bytes"),
            _texts(message, "names"),
        )
    if kind == "cmd":
        deadline_seconds = _number(message, "deadline_ms") / 1000
        return Command(_whole(message, "id"), _text(message, "cmd"), _object(message, "args"), deadline_seconds)
    return None


def clamp_interval(seconds: float) -> float:
    """Return the nearest interval that is allowed: an agent cannot make an app busy, nor silence it for good."""
    return min(max(seconds, MIN_INTERVAL_SECONDS), MAX_INTERVAL_SECONDS)


def _whole(message: Mapping[str, Any], key: str) -> int:
    value = message.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX_NUMBER:
        raise Malformed(f"{key} is no whole number")
    return value


def _number(message: Mapping[str, Any], key: str) -> float:
    value = message.get(key)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= _MAX_NUMBER:
        raise Malformed(f"{key} is no number")
    return float(value)


def _text(message: Mapping[str, Any], key: str) -> str:
    value = message.get(key)
    if not isinstance(value, str):
        raise Malformed(f"{key} is no text")
    return value


def _object(message: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return an object, or an empty one where it is absent."""
    value = message.get(key, {})
    if not isinstance(value, dict):
        raise Malformed(f"{key} is no object")
    return value


def _whole_numbers(message: Mapping[str, Any], key: str) -> dict[str, int]:
    numbers = _object(message, key)
    return {name: _whole(numbers, name) for name in numbers}


def _texts(message: Mapping[str, Any], key: str) -> dict[str, str]:
    texts = _object(message, key)
    return {name: _text(texts, name) for name in texts}


def _level(message: Mapping[str, Any]) -> str:
    """Return a level; one of a later version counts as a warning, for that is the careful reading."""
    level = _text(message, "level")
    return level if level in LEVELS else "warning"


def hello(
    *,
    library: str,
    pid: int,
    parent_pid: int,
    program: str,
    python: str,
    torch: str,
    app: str,
    backend: str,
    commands: Sequence[str],
    declared: Declared,
    interval_seconds: float | None = None,
    frameworks: Mapping[str, bool] | None = None,
) -> Message:
    """Return the first line; sent again whenever something in it has changed.

    `interval_seconds` is what the app itself has set, and no agent changes; `frameworks` says of those that use the GPU
    here beside torch whether they took most of it at their start.
    """
    message: Message = {
        "v": VERSION,
        "t": "hello",
        "lib": library,
        "pid": pid,
        "ppid": parent_pid,
        "argv0": program,
        "py": python,
        "torch": torch,
        "app": app,
    }
    if backend:
        message["backend"] = backend
    message["caps"] = sorted(commands)
    if state := {key: value for key, value in declared._asdict().items() if value is not None}:
        message["declared"] = state
    if interval_seconds is not None:
        message["interval"] = interval_seconds
    if frameworks:
        message["frameworks"] = dict(frameworks)
    return message


def stats(
    *, number: int, timestamp: float, initialized: bool, devices: Sequence[Mapping[str, Any]], error: str = ""
) -> Message:
    """Return the allocator's figures of this moment; `timestamp` is Unix time."""
    listed: list[dict[str, Any]] = [dict(device) for device in devices]
    message: Message = {"t": "stats", "seq": number, "ts": timestamp, "init": initialized, "dev": listed}
    if error:
        message["err"] = error
    return message


def begun(command_id: int) -> Message:
    """Return the message that a command takes longer and its answer follows."""
    return {"t": "res", "id": command_id, "ok": True, "state": "running"}


def done(command_id: int, result: Mapping[str, Any]) -> Message:
    """Return a command's answer."""
    return {"t": "res", "id": command_id, "ok": True, "r": dict(result)}


def refused(command_id: int, why: str) -> Message:
    """Return the message that says why a command was not carried out."""
    return {"t": "res", "id": command_id, "ok": False, "err": why}


def event(name: str, fields: Mapping[str, Any]) -> Message:
    """Return the message of something that the app wants to have noted."""
    return {"t": "event", "name": name, "fields": dict(fields)}
