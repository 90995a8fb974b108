"""One process on one GPU while it is recorded: its figures, the leak detector's verdict, and the report at the end."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from gpuagent.core.growth import Growth, Verdict
from gpuagent.core.units import format_bytes, format_duration, format_rate
from gpuagent.recording.sources import MemorySample
from gpuagent_alerts.leak.detector import MemoryLeakDetector

_MOST_BLOCKS = 512


class NetGrowth(NamedTuple):
    """How much more is held at the end than was at any time since."""

    bytes: float
    seconds: float


class FloorPath:
    """The lowest reading of each block of time. Blocks become longer as the recording does."""

    def __init__(self, block_seconds: float = 1.0) -> None:
        self._begin: float | None = None
        self._width = block_seconds
        self._lows: list[float] = []

    def add(self, seconds: float, value: float) -> None:
        """Add a reading; time does not go back."""
        if self._begin is None:
            self._begin = seconds
        while seconds - self._begin >= self._width * _MOST_BLOCKS:
            self._lows = [min(self._lows[place : place + 2]) for place in range(0, len(self._lows), 2)]
            self._width *= 2
        place = int((seconds - self._begin) / self._width)
        self._lows.extend([math.inf] * (place + 1 - len(self._lows)))
        self._lows[place] = min(self._lows[place], value)

    def last_half(self) -> NetGrowth | None:
        """Return the rise over the second half, which leaves loading and warming up out.

        None for a recording of no length.
        """
        path = self._lows
        while path and path[-1] == math.inf:
            path = path[:-1]
        half = len(path) // 2
        if len(path) - half < 2:
            return None
        return NetGrowth(path[-1] - min(path[half:]), (len(path) - 1 - half) * self._width)


_NOTHING = Growth(Verdict.LEARNING)


class Track:
    """Fed with readings in the order of time; `None` is one that failed."""

    def __init__(self, name: str, gpu: int) -> None:
        self.name = name
        self.gpu = gpu
        self.readings = 0
        self.missing = 0
        self.total_bytes: int | None = None
        self.peak_bytes = 0
        self.peak_seconds = 0.0
        self.least_free_bytes: int | None = None
        self.last_bytes: int | None = None
        self.floor = FloorPath()
        self.growth = _NOTHING
        self.leaked_seconds: float | None = None
        """When the detector first called it a leak."""
        self._detector: MemoryLeakDetector | None = None
        self._waiting: tuple[float, int] | None = None

    def add(self, seconds: float, held: MemorySample | None) -> None:
        """Add a reading at this time, by a clock that does not go back."""
        if held is None or held.used_bytes is None:
            self.missing += 1
            self._judge(seconds, None)
            return
        self.readings += 1
        self.total_bytes = held.total_bytes or self.total_bytes
        if held.used_bytes > self.peak_bytes:
            self.peak_bytes, self.peak_seconds = held.used_bytes, seconds
        if held.free_bytes is not None:
            least = self.least_free_bytes
            self.least_free_bytes = held.free_bytes if least is None else min(least, held.free_bytes)
        self._settle()
        self._waiting = (seconds, held.used_bytes)
        self._judge(seconds, held)

    def end(self, *, ended_itself: bool) -> None:
        """End the track. The last reading of a process that has ended may be half of its way out, and is left out."""
        if not ended_itself or self.last_bytes is None:
            self._settle()

    def _settle(self) -> None:
        if self._waiting is not None:
            self.floor.add(*self._waiting)
            self.last_bytes = self._waiting[1]
            self._waiting = None

    def _judge(self, seconds: float, held: MemorySample | None) -> None:
        if self._detector is None:
            if held is None or not held.total_bytes:
                return
            age = held.age_seconds
            started = None if age is None else seconds - age
            self._detector = MemoryLeakDetector(total_bytes=held.total_bytes, started_seconds=started)
        if held is None:
            self.growth = self._detector.update(seconds, None, None)
        else:
            self.growth = self._detector.update(
                seconds, held.used_bytes, held.free_bytes, held.allocated_bytes, held.reserved_bytes
            )
        if self.growth.verdict is Verdict.LEAKING and self.leaked_seconds is None:
            self.leaked_seconds = seconds


_MOST_TRACKS = 16


def report(tracks: Iterable[Track], seconds: float, requests: int | None = None) -> list[str]:
    """Return lines: of each process peak, floor, growth, headroom and verdict, the largest first.

    Args:
        tracks: What was recorded.
        seconds: How long.
        requests: How many the load test sent in that time, taken as evenly spread.
    """
    found = sorted(tracks, key=lambda track: -track.peak_bytes)
    if not found:
        return [f"recorded {format_duration(seconds)}: no process of it held GPU memory"]
    lines = []
    for track in found[:_MOST_TRACKS]:
        lines += ["", f"{track.name} on GPU {track.gpu}", *(f"  {line}" for line in _of(track, seconds, requests))]
    if len(found) > _MOST_TRACKS:
        lines += ["", f"and {len(found) - _MOST_TRACKS} processes with less, which are in the file"]
    missing = sum(track.missing for track in found)
    head = f"recorded {format_duration(seconds)}: {sum(track.readings for track in found)} readings"
    return [head + (f", {missing} missing" if missing else ""), *lines]


def _of(track: Track, seconds: float, requests: int | None) -> Iterable[str]:
    yield f"peak      {format_bytes(track.peak_bytes)}, {format_duration(max(0.0, track.peak_seconds))} after the start"
    if track.last_bytes is not None:
        yield f"floor     {format_bytes(track.last_bytes)} held at the end"
    yield f"growth    {_growth(track, seconds, requests)}"
    if track.least_free_bytes is None:
        yield "headroom  the driver tells no free memory"
    else:
        total = f" of {format_bytes(track.total_bytes)}" if track.total_bytes else ""
        yield f"headroom  {format_bytes(track.least_free_bytes)}{total} were free on the GPU at the least"
    growth = track.growth
    told = "" if track.leaked_seconds is None else f" (first called a leak {format_duration(track.leaked_seconds)} in)"
    reasons = "; ".join(growth.reasons)
    if growth.verdict is Verdict.LEARNING and not reasons:
        reasons = "too short a time to tell a leak from warming up"
    yield f"verdict   {growth.verdict}{told}{': ' + reasons if reasons else ''}"


def _growth(track: Track, seconds: float, requests: int | None) -> str:
    rise = track.floor.last_half()
    if rise is None:
        return "too few readings"
    text = (
        f"{format_rate(rise.bytes / rise.seconds)}:"
        f" the floor rose by {format_bytes(rise.bytes)} in the last {format_duration(rise.seconds)}"
    )
    if requests and seconds > 0:
        text += f", {format_bytes(rise.bytes / (requests * rise.seconds / seconds))} per request"
    return text
