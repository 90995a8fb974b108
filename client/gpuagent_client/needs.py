"""What the app says about its memory: how much it needs, how much it may take, how it gives it back."""

from __future__ import annotations

from typing import Callable

from gpuagent_client import lifecycle
from gpuagent_client.guard import harmless, tell_once
from gpuagent_client.protocol import Declared
from gpuagent_client.remedies import NoLimits

MAX_CALLBACKS = 100


def declare(*, minimum_bytes: int | None = None, typical_bytes: int | None = None) -> None:
    """Say what one process of this app needs on a GPU.

    The agent shows it, warns where a process lives above it, and computes how many workers fit. No `limit` of the
    agent goes below the minimum. None leaves what an earlier call said.

    Raises:
        ValueError: no size, or a minimum above the typical; only under pytest or with GPUAGENT_STRICT=1.
    """
    with harmless("declare"):
        for value in (minimum_bytes, typical_bytes):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value <= 0):
                raise ValueError(f"{value!r} is no number of bytes")
        said = lifecycle.told.declared
        new = Declared(minimum_bytes or said.minimum_bytes, typical_bytes or said.typical_bytes)
        if new.minimum_bytes and new.typical_bytes and new.minimum_bytes > new.typical_bytes:
            raise ValueError(f"a minimum of {new.minimum_bytes} above the typical {new.typical_bytes} bytes")
        lifecycle.told.declared = new


def limit_memory(ratio: float) -> None:
    """Let torch's allocator take at most this share of each GPU's memory; 1.0 lifts the limit.

    On GPUs in use it holds at once, on others as soon as the app uses them (which takes a running client, see `start`).
    It bounds the allocator: not CUDA's own context, NCCL, or other libraries.

    Raises:
        ValueError: no share; only under pytest or with GPUAGENT_STRICT=1.
    """
    with harmless("limit the memory"):
        if not isinstance(ratio, (int, float)) or isinstance(ratio, bool) or not 0 < ratio <= 1:
            raise ValueError(f"{ratio!r} is no share: more than 0, at most 1")
        lifecycle.told.limit_ratio = float(ratio)
        try:
            lifecycle.limits.keep(lifecycle.allocator.read().devices)
        except NoLimits as error:
            tell_once("limit the allocator", str(error))


def on_reset(callback: Callable[[], object]) -> Callable[[], object]:
    """Register how the app unloads what it can load again; the agent may ask for it before it does anything worse.

    Called in a thread of the client's, between requests where the serving part is used. Works as a decorator.

    Raises:
        ValueError: no callable, or too many; only under pytest or with GPUAGENT_STRICT=1.
    """
    with harmless("register for a reset"):
        if not callable(callback):
            raise ValueError(f"{callback!r} is not callable")
        if callback in lifecycle.told.on_reset:
            return callback
        if len(lifecycle.told.on_reset) >= MAX_CALLBACKS:
            raise ValueError(f"more than {MAX_CALLBACKS} callbacks: is this registered for each request?")
        lifecycle.told.on_reset.append(callback)
    return callback
