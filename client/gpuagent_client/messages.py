"""What both sides say: the client's messages are built here, the agent's are checked and become values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Union

from gpuagent_client.protocol import VERSION, Malformed, Message

LEVELS = ("ok", "warning", "critical")
MIN_INTERVAL_SECONDS = 0.2
MAX_INTERVAL_SECONDS = 60.0
_MAX_NUMBER = 2**63 - 1


class Declared(NamedTuple):
    """What the app says it needs on a GPU; None where it says nothing."""

    minimum_bytes: int | None = None
    typical_bytes: int | None = None


class Welcome(NamedTuple):
    """The agent's answer to hello."""

    version: int
    interval_seconds: float
    level: str


class Level(NamedTuple):
    """How the GPUs of this process are doing; each mapping goes by NVML's UUID."""

    level: str
    free_bytes: Mapping[str, int]
    total_bytes: Mapping[str, int]
    names: Mapping[str, str]


class Command(NamedTuple):
    """Something that the agent asks for."""

    id: int
    name: str
    args: Mapping[str, Any]
    deadline_seconds: float


FromAgent = Union[Welcome, Level, Command]


def read(message: Message) -> FromAgent | None:
    """A message of the agent; None where this version does not know its kind.

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
    """The nearest interval that is allowed: an agent cannot make an app busy, nor silence it for good."""
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
    """An object, or an empty one where it is absent."""
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
    """A level; one of a later version counts as a warning, for that is the careful reading."""
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
    """The first line; sent again whenever something in it has changed.

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
    if told := {key: value for key, value in declared._asdict().items() if value is not None}:
        message["declared"] = told
    if interval_seconds is not None:
        message["interval"] = interval_seconds
    if frameworks:
        message["frameworks"] = dict(frameworks)
    return message


def stats(
    *, number: int, timestamp: float, initialised: bool, devices: Sequence[Mapping[str, Any]], error: str = ""
) -> Message:
    """The allocator's figures of this moment; `timestamp` is Unix time."""
    listed: list[dict[str, Any]] = [dict(device) for device in devices]
    message: Message = {"t": "stats", "seq": number, "ts": timestamp, "init": initialised, "dev": listed}
    if error:
        message["err"] = error
    return message


def begun(command_id: int) -> Message:
    """A command takes longer; its answer follows."""
    return {"t": "res", "id": command_id, "ok": True, "state": "running"}


def done(command_id: int, result: Mapping[str, Any]) -> Message:
    """A command's answer."""
    return {"t": "res", "id": command_id, "ok": True, "r": dict(result)}


def refused(command_id: int, why: str) -> Message:
    """Why a command was not carried out."""
    return {"t": "res", "id": command_id, "ok": False, "err": why}


def event(name: str, fields: Mapping[str, Any]) -> Message:
    """Something the app wants to have noted."""
    return {"t": "event", "name": name, "fields": dict(fields)}
