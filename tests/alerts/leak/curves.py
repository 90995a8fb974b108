"""Curves of memory over time, and a detector that is shown one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from gpuagent.core.growth import Growth, Verdict
from gpuagent_alerts.leak.detector import MemoryLeakDetector
from gpuagent_alerts.leak.settings import Sensitivity

MIB = 2**20
GIB = 2**30
TOTAL_BYTES = 80 * GIB
HOUR = 3600.0

Curve = Callable[[float], float]
"""MiB at a time in seconds."""


class Change(NamedTuple):
    """A verdict that was not there before."""

    seconds: float
    growth: Growth


def detector(sensitivity: Sensitivity = "balanced", phase: int = 0) -> MemoryLeakDetector:
    """One of a process that starts at 0, alone on 80 GiB."""
    return MemoryLeakDetector(total_bytes=TOTAL_BYTES, started_seconds=0.0, sensitivity=sensitivity, phase=phase)


def show(
    watched: MemoryLeakDetector,
    curve: Curve,
    until: float,
    *,
    since: float = 0.0,
    every: float = 5.0,
    client: bool = False,
) -> list[Change]:
    """Readings until then, or until the GPU is full; the changes of the verdict."""
    changes: list[Change] = []
    before = None
    for tick in range(math.ceil((until - since) / every)):
        seconds = since + tick * every
        used = curve(seconds) * MIB
        if used >= TOTAL_BYTES:
            break
        own = (used, used + 500 * MIB) if client else (None, None)
        driver = used + 1000 * MIB if client else used
        growth = watched.update(seconds, driver, max(0.0, TOTAL_BYTES - used), *own)
        if growth.verdict is not before:
            changes.append(Change(seconds, growth))
            before = growth.verdict
    return changes


def first(changes: list[Change], verdict: Verdict) -> float | None:
    """When this was first the verdict."""
    return next((change.seconds for change in changes if change.growth.verdict is verdict), None)


def leak(mib_per_second: float, *, begin: float = 1200.0, base: float = 20_000.0) -> Curve:
    """A line after a quiet start."""
    return lambda seconds: base + mib_per_second * max(0.0, seconds - begin)


def plateau(mib_per_second: float, most: float, *, begin: float = 1200.0, base: float = 20_000.0) -> Curve:
    """A line that stops."""
    return lambda seconds: base + min(most, mib_per_second * max(0.0, seconds - begin))


def saw_tooth(period: float, height: float, base: float = 20_000.0) -> Curve:
    """Rises, and is given back at once."""
    return lambda seconds: base + height * (seconds % period) / period


def day(height: float, period: float = 24 * HOUR, base: float = 20_000.0) -> Curve:
    """A sine."""
    return lambda seconds: base + height * (1 + math.sin(2 * math.pi * seconds / period)) / 2
