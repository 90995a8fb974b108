"""Tell from memory and pressure whether a machine whose GPU shares its memory is about to stall.

On such machines (GB10, Jetson) nothing fails when memory runs out: the kernel reclaims, drivers wait, and the whole
host stops answering, often without the OOM killer. By then it is too late to act, so this looks ahead. It goes by:

- pressure (PSI): the share of time in which programs waited for memory, over the last seconds. Without it nothing is
  wrong, however little is left: a server that leaves 1.5 GiB by design is well, and so is a host full of page cache;
- direct reclaim: pressure counts only while the machine itself has no free pages. A build that is throttled by a limit
  of its own cgroup raises the pressure of the whole machine, and the machine lacks nothing;
- slope: how long what can still be given out lasts at the pace of the last seconds.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from gpuagent.core.hardware import HostMemory, MemoryOutlook, MemoryPressure, StallRisk


@dataclass(frozen=True, slots=True)
class WatchLimits:
    """When a stall is imminent, and when to look more often. Ratios of memory are of the whole machine's."""

    window_seconds: float = 3.0
    """Over which slope and pressure are measured."""
    hold_seconds: float = 0.5
    """For how long a condition has to hold, and in at least two readings."""
    exhaustion_seconds: float = 6.0
    """What is left lasts no longer, at this pace ..."""
    exhaustion_some: float = 0.2
    """... and some programs wait for this share of the time, or ..."""
    exhaustion_full: float = 0.1
    """... all of them for this one."""
    empty_ratio: float = 0.08
    """As good as nothing is left: hosts have stopped answering with 5 to 7 % of MemAvailable ..."""
    empty_full: float = 0.1
    """... and all programs wait for this share of the time."""
    collapse_ratio: float = 0.25
    """MemAvailable counts cache that is in use, and pages too scattered for the driver: hosts have stopped with 18 %
    of it ..."""
    collapse_free_ratio: float = 0.02
    """... no more than this free ..."""
    collapse_full: float = 0.35
    """... and all programs waiting for this share of the time."""
    watch_some: float = 0.02
    """Look more often from this pressure on, with at most ..."""
    watch_ratio: float = 0.3
    """... this much left."""
    watch_exhaustion_seconds: float = 60.0
    """Or if what is left lasts no longer than this."""
    calm_seconds: float = 15.0
    """Look as usual only after so long without any of this."""


DEFAULT_LIMITS = WatchLimits()


class _Sample(NamedTuple):
    seconds: float
    available_bytes: int
    pressure: MemoryPressure


class MemoryWatch:
    """Watch the memory of one machine. `observe` is to be called at every reading, in the order of time."""

    def __init__(self, limits: WatchLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._samples: deque[_Sample] = deque()
        self._imminent_since: float | None = None
        self._watched_seconds: float | None = None

    def observe(
        self, now_seconds: float, memory: HostMemory | None, pressure: MemoryPressure | None
    ) -> MemoryOutlook | None:
        """Return the outlook at a reading; None where memory or pressure is unknown, which nothing is made of."""
        if memory is None or pressure is None or not memory.total_bytes:
            self._samples.clear()
            self._imminent_since = None
            return None
        samples, limits = self._samples, self._limits
        if samples and now_seconds <= samples[-1].seconds:
            samples.pop()
        samples.append(_Sample(now_seconds, memory.available_bytes, pressure))
        while len(samples) > 2 and now_seconds - samples[1].seconds >= limits.window_seconds:
            samples.popleft()
        if now_seconds - samples[0].seconds > 2 * limits.window_seconds:  # a pause lies between: it says nothing
            samples.popleft()
        left_seconds = self._time_left()
        some, full = self._stalls()
        if self._is_imminent(memory, left_seconds, some, full):
            if self._imminent_since is None:
                self._imminent_since = now_seconds
            self._watched_seconds = now_seconds
            held = now_seconds - self._imminent_since >= limits.hold_seconds
            return MemoryOutlook(StallRisk.IMMINENT if held else StallRisk.WATCH, left_seconds)
        self._imminent_since = None
        pressed = some >= limits.watch_some and memory.available_bytes <= limits.watch_ratio * memory.total_bytes
        if pressed or (left_seconds is not None and left_seconds <= limits.watch_exhaustion_seconds):
            self._watched_seconds = now_seconds
        watched = self._watched_seconds is not None and now_seconds - self._watched_seconds < limits.calm_seconds
        return MemoryOutlook(StallRisk.WATCH if watched else StallRisk.NONE, left_seconds)

    def _is_imminent(self, memory: HostMemory, left_seconds: float | None, some: float, full: float) -> bool:
        limits, total = self._limits, memory.total_bytes
        if not self._reclaims():
            return False
        runs_out = left_seconds is not None and left_seconds <= limits.exhaustion_seconds
        if runs_out and (some >= limits.exhaustion_some or full >= limits.exhaustion_full):
            return True
        if memory.available_bytes <= limits.empty_ratio * total and full >= limits.empty_full:
            return True
        scattered = memory.free_bytes <= limits.collapse_free_ratio * total
        return scattered and memory.available_bytes <= limits.collapse_ratio * total and full >= limits.collapse_full

    def _time_left(self) -> float | None:
        """Return seconds until nothing is available at the pace of the window; None while it does not fall."""
        first, last = self._samples[0], self._samples[-1]
        fallen = first.available_bytes - last.available_bytes
        if fallen <= 0:
            return None
        return last.available_bytes * (last.seconds - first.seconds) / fallen

    def _stalls(self) -> tuple[float, float]:
        """Return the shares of the window in which some, and all, waited; those of 10 s where no totals are known."""
        first, last = self._samples[0], self._samples[-1]
        seconds = last.seconds - first.seconds
        before, now = first.pressure, last.pressure
        if seconds <= 0 or None in (before.some_seconds, before.full_seconds, now.some_seconds, now.full_seconds):
            return now.some_ratio, now.full_ratio
        some = _growth(before.some_seconds, now.some_seconds) / seconds
        full = _growth(before.full_seconds, now.full_seconds) / seconds
        return min(some, 1.0), min(full, 1.0)

    def _reclaims(self) -> bool:
        """Return whether programs had to reclaim pages themselves in the window; False where that is unknown."""
        before, now = self._samples[0].pressure.direct_reclaims, self._samples[-1].pressure.direct_reclaims
        return before is not None and now is not None and now > before


def _growth(before: float | None, now: float | None) -> float:
    return max(0.0, (now or 0.0) - (before or 0.0))
