"""The detector as the sensor needs it, and how one is made: anew, or from what was kept of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from gpuagent.growth import Growth
from gpuagent_alerts.leak.examine import Examined
from gpuagent_alerts.leak.history import MemoryLeakDetector
from gpuagent_alerts.leak.settings import Dial, Sensitivity
from gpuagent_alerts.leak.trace import Trace

BLOCK_TICKS = 15
"""A detector works at the end of a block of 15 s, and compares in between: `phase` spreads the ends over the ticks."""


class Detector(Protocol):
    """One history of memory. It goes by the caller's clock, which never goes back (CLOCK_BOOTTIME)."""

    @property
    def sensitivity(self) -> Dial:
        """By what it judges."""
        ...

    def update(
        self,
        time_seconds: float,
        used_bytes: float | None,
        free_bytes: float | None,
        allocated_bytes: float | None = None,
        reserved_bytes: float | None = None,
        declared_bytes: float | None = None,
    ) -> Growth:
        """The same object for as long as nothing changes."""
        ...

    def use(self, sensitivity: Dial) -> None:
        """Judge by another standard from now on, at a cost that thousands of them may have in one tick."""
        ...

    def keep_trace(self, trace: Trace) -> None:
        """Note in this one what is judged from now on."""
        ...

    def examine(self) -> Examined:
        """Return by what it judges, for an explanation."""
        ...

    def dump(self) -> bytes:
        """Everything, for `Detectors.resume`."""
        ...


class Beginning(NamedTuple):
    """What a detector has to know before the first reading."""

    total_bytes: int
    started_seconds: float | None
    """Of the process, on the detector's clock; None: unknown, or no process."""
    phase: int


class Detectors(Protocol):
    """Makes detectors. Both raise ValueError: for memory that no GPU has, and for what is no dump."""

    def begin(self, beginning: Beginning) -> Detector: ...

    def resume(self, dump: bytes, beginning: Beginning) -> Detector:
        """Go on with a dump, by the sensitivity of then."""
        ...


MakeDetectors = Callable[[Sensitivity], Detectors]


class MemoryLeakDetectors:
    """The real ones, all of one sensitivity."""

    def __init__(self, sensitivity: Sensitivity) -> None:
        self._sensitivity = sensitivity

    def begin(self, beginning: Beginning) -> Detector:
        return MemoryLeakDetector(
            total_bytes=beginning.total_bytes,
            started_seconds=beginning.started_seconds,
            sensitivity=self._sensitivity,
            phase=beginning.phase,
        )

    def resume(self, dump: bytes, beginning: Beginning) -> Detector:
        return MemoryLeakDetector.load(dump, total_bytes=beginning.total_bytes, sensitivity=None, phase=beginning.phase)
