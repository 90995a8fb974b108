"""One process on one GPU while it is recorded: its figures, and what the leak detector makes of them."""

from __future__ import annotations

from gpuagent.growth import Growth, Verdict
from gpuagent.recording.floor import FloorPath
from gpuagent.recording.sources import Held
from gpuagent_alerts.leak.history import MemoryLeakDetector

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

    def add(self, seconds: float, held: Held | None) -> None:
        """A reading at this time, by a clock that does not go back."""
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
        """No more readings. The last one of a process that has ended may be half of its way out, and is left out."""
        if not ended_itself or self.last_bytes is None:
            self._settle()

    def _settle(self) -> None:
        if self._waiting is not None:
            self.floor.add(*self._waiting)
            self.last_bytes = self._waiting[1]
            self._waiting = None

    def _judge(self, seconds: float, held: Held | None) -> None:
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
