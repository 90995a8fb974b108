"""Functions that the app calls: log figures, say how much memory it needs and may take, and how it gives memory back.

Nothing here starts CUDA, and nothing resets a peak: peaks belong to the whole process, and the app may use them itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Callable, NamedTuple

from gpuagent_client import lifecycle
from gpuagent_client.allocator import Device, Reading
from gpuagent_client.commands import NoLimits
from gpuagent_client.errors import log, suppress_errors, warn_once
from gpuagent_client.protocol import Declared, Level
from gpuagent_client.settings import Event

GIB = 1024**3
MAX_NAME_CHARACTERS = 100


class Usage(NamedTuple):
    """The allocator's figures over all GPUs of this process, in bytes. None: CUDA is not up, or nobody counts."""

    allocated_bytes: int | None
    reserved_bytes: int | None
    peak_bytes: int | None
    """The highest allocated so far."""


class Measure:
    """What a `with measure(...)` block found; complete once the block is over. In bytes; None where nobody counts."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.allocated_bytes: int | None = None
        self.reserved_bytes: int | None = None
        self.peak_bytes: int | None = None
        """The highest allocated so far: of this block if `exact`."""
        self.delta_bytes: int | None = None
        """Bytes that the block has added to allocated; negative where it freed memory."""
        self.seconds = 0.0
        self.exact = False
        """Whether the peak rose within the block while no other block was open: then it is the block's."""


class _Open:
    """Count `measure` blocks, open and ever: plain numbers, so that no lock can be held at a fork."""

    def __init__(self) -> None:
        self.now = 0
        self.ever = 0


_open = _Open()


def usage() -> Usage:
    """Return the figures of now, at the cost of one call into the allocator for each GPU.

    Never raises, never starts CUDA.
    """
    devices = lifecycle.allocator.read().devices
    return Usage(*(_sum(devices, figure) for figure in ("allocated_bytes", "reserved_bytes", "allocated_peak_bytes")))


def report(name: str) -> Usage:
    """Log the figures of now under a name, and send them to the agent."""
    found = usage()
    log.info("%s: %s", name, _in_words(found.allocated_bytes, found.reserved_bytes, found.peak_bytes))
    _send(name, {"kind": "report", **_event_fields(found)})
    return found


@contextmanager
def measure(name: str) -> Iterator[Measure]:
    """Measure what a block does to the memory; logged at INFO and sent to the agent, also where the block fails."""
    found = Measure(name)
    before = usage()
    started = time.perf_counter()
    _open.now += 1
    _open.ever += 1
    alone, ever = _open.now == 1, _open.ever
    try:
        yield found
    finally:
        _open.now -= 1
        _complete(found, before, time.perf_counter() - started, alone=alone and _open.ever == ever)


def _complete(found: Measure, before: Usage, seconds: float, *, alone: bool) -> None:
    after = usage()
    found.allocated_bytes, found.reserved_bytes, found.peak_bytes = after
    if after.allocated_bytes is not None:
        found.delta_bytes = after.allocated_bytes - (before.allocated_bytes or 0)
    found.seconds = seconds
    found.exact = alone and (after.peak_bytes or 0) > (before.peak_bytes or 0)
    change = "" if found.delta_bytes is None else f", {found.delta_bytes / GIB:+.2f} GiB"
    log.info("%s: %s%s in %.1f s", found.name, _in_words(*after), change, seconds)
    fields: dict[str, Any] = {"kind": "measure", **_event_fields(after)}
    if found.delta_bytes is not None:
        fields["delta_bytes"] = found.delta_bytes
    _send(found.name, {**fields, "seconds": round(seconds, 3), "exact": found.exact})


def describe() -> str:
    """Describe the GPU in one line for people.

    Such as "NVIDIA GeForce RTX 4090, 23.65 GiB total, 20.00 GiB available, 3.50 GiB peak used". What is available is
    the agent's word, and missing without an agent; several GPUs are separated by a semicolon.
    """
    return in_one_line(lifecycle.allocator.read(), lifecycle.state.level)


def in_one_line(reading: Reading, level: Level | None) -> str:
    """Describe this reading in one line, as `describe` does."""
    if not reading.devices:
        return _describe_idle(level, initialized=reading.initialized, error=reading.error)
    return "; ".join(_describe(device, level) for device in reading.devices)


def _describe(device: Device, level: Level | None) -> str:
    parts = [device.properties.name]
    if device.properties.total_bytes:
        parts.append(f"{device.properties.total_bytes / GIB:.2f} GiB total")
    free = find_by_uuid(level.free_bytes, device.properties.uuid) if level is not None else None
    if free is not None:
        parts.append(f"{free / GIB:.2f} GiB available")
    peak = device.figures.get("allocated_peak_bytes")
    if peak is not None:
        parts.append(f"{peak / GIB:.2f} GiB peak used")
    return ", ".join(parts)


def _describe_idle(level: Level | None, *, initialized: bool, error: str) -> str:
    if error == "unsupported":
        return "a GPU whose allocator keeps no figures"
    if level is not None and len(level.names) == 1:
        ((uuid, name),) = level.names.items()
        parts = [name]
        if uuid in level.total_bytes:
            parts.append(f"{level.total_bytes[uuid] / GIB:.2f} GiB total")
        if uuid in level.free_bytes:
            parts.append(f"{level.free_bytes[uuid] / GIB:.2f} GiB available")
        return ", ".join([*parts, "not used by this process"])
    return "GPU without memory in use" if initialized else "CPU: this process does not use a GPU"


def find_by_uuid(values: Mapping[str, int], uuid: str) -> int | None:
    """Return the value of a GPU by torch's UUID: the agent's keys are NVML's, with `GPU-` or `MIG-` in front."""
    for key in (uuid, f"GPU-{uuid}", f"MIG-{uuid}"):
        if uuid and key in values:
            return int(values[key])
    return None


def _sum(devices: Sequence[Device], figure: str) -> int | None:
    values = [device.figures[figure] for device in devices if figure in device.figures]
    return sum(values) if values else None


def _event_fields(found: Usage) -> dict[str, int]:
    return {name: value for name, value in found._asdict().items() if value is not None}


def _in_words(allocated: int | None, reserved: int | None, peak: int | None) -> str:
    if allocated is None or reserved is None:
        return "no GPU memory in use"
    words = f"{allocated / GIB:.2f} GiB allocated, {reserved / GIB:.2f} GiB reserved"
    return words if peak is None else f"{words}, {peak / GIB:.2f} GiB peak"


def _send(name: str, fields: dict[str, Any]) -> None:
    lifecycle.state.events.append(Event(str(name)[:MAX_NAME_CHARACTERS], fields))


MAX_CALLBACKS = 100


def declare(*, minimum_bytes: int | None = None, typical_bytes: int | None = None) -> None:
    """Declare what one process of this app needs on a GPU.

    The agent shows it, warns where a process lives above it, and computes how many workers fit. No `limit` of the
    agent goes below the minimum. None leaves what an earlier call said.

    Raises:
        ValueError: no size, or a minimum above the typical; only under pytest or with GPUAGENT_STRICT=1.
    """
    with suppress_errors("declare"):
        for value in (minimum_bytes, typical_bytes):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value <= 0):
                raise ValueError(f"{value!r} is no number of bytes")
        said = lifecycle.state.declared
        new = Declared(minimum_bytes or said.minimum_bytes, typical_bytes or said.typical_bytes)
        if new.minimum_bytes and new.typical_bytes and new.minimum_bytes > new.typical_bytes:
            raise ValueError(f"a minimum of {new.minimum_bytes} above the typical {new.typical_bytes} bytes")
        lifecycle.state.declared = new


def limit_memory(ratio: float) -> None:
    """Let torch's allocator take at most this share of each GPU's memory; 1.0 lifts the limit.

    On GPUs in use it holds at once, on others as soon as the app uses them (which takes a running client, see `start`).
    It bounds the allocator: not CUDA's own context, NCCL, or other libraries.

    Raises:
        ValueError: no share; only under pytest or with GPUAGENT_STRICT=1.
    """
    with suppress_errors("limit the memory"):
        if not isinstance(ratio, (int, float)) or isinstance(ratio, bool) or not 0 < ratio <= 1:
            raise ValueError(f"{ratio!r} is no share: more than 0, at most 1")
        lifecycle.state.limit_ratio = float(ratio)
        try:
            lifecycle.limits.apply_wanted(lifecycle.allocator.read().devices)
        except NoLimits as error:
            warn_once("limit the allocator", str(error))


def on_reset(callback: Callable[[], object]) -> Callable[[], object]:
    """Register how the app unloads what it can load again; the agent may ask for it before it does anything worse.

    Called in a thread of the client's, between requests where the serving part is used. Works as a decorator.

    Raises:
        ValueError: no callable, or too many; only under pytest or with GPUAGENT_STRICT=1.
    """
    with suppress_errors("register for a reset"):
        if not callable(callback):
            raise ValueError(f"{callback!r} is not callable")
        if callback in lifecycle.state.on_reset:
            return callback
        if len(lifecycle.state.on_reset) >= MAX_CALLBACKS:
            raise ValueError(f"more than {MAX_CALLBACKS} callbacks: is this registered for each request?")
        lifecycle.state.on_reset.append(callback)
    return callback
