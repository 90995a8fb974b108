"""The project's detector over a trace, and what an update costs it."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from benchmarks.leak.alarms import Alarm
from benchmarks.leak.trace import Trace
from gpuagent.core.growth import Growth, Verdict
from gpuagent_alerts.leak.detector import MemoryLeakDetector
from gpuagent_alerts.leak.settings import Sensitivity

_NOTHING = Growth(Verdict.LEARNING)


@dataclass
class Said:
    """What the detector said of a trace."""

    leaking: list[Alarm] = field(default_factory=list)
    growing: list[Alarm] = field(default_factory=list)
    """The weaker word, for growth of which nothing proves yet that it will not stop; a leak is growth too."""
    fast: list[Alarm] = field(default_factory=list)
    """Growth that would fill the GPU within minutes."""
    updates: int = 0
    seconds: float = 0.0
    """Spent in the updates."""

    def add(self, at: float, before: Growth, now: Growth) -> None:
        """What begins with this word."""
        if now.fast and not before.fast:
            self.fast.append(Alarm(at, now.fast_exhaustion_seconds))
        alarm = Alarm(at, now.exhaustion.value if now.exhaustion else None)
        if _is_suspected(now) and not _is_suspected(before):
            self.growing.append(alarm)
        if now.verdict is Verdict.LEAKING and before.verdict is not Verdict.LEAKING:
            self.leaking.append(alarm)


def _is_suspected(growth: Growth) -> bool:
    """Growth in the way of a leak; a leak is that too."""
    return growth.suspected or growth.verdict is Verdict.LEAKING


def judge(trace: Trace, sensitivity: Sensitivity, *, client: bool) -> Said:
    """A detector for each process that the agent could tell apart; `client`: with the allocator's figures, if any."""
    said = Said()
    client = client and trace.client
    starts = iter(trace.starts)
    started: float | None = next(starts)
    following = next(starts, math.inf)
    detector = _make(trace, started, sensitivity)
    growth = _NOTHING
    begun = time.process_time()
    for at, used, free, allocated, reserved in trace.samples:
        if at >= following:
            while at >= following:
                started, following = following, next(starts, math.inf)
            detector, growth = _make(trace, started, sensitivity), _NOTHING
        new = detector.update(at, used, free, allocated, reserved) if client else detector.update(at, used, free)
        if new is not growth:
            said.add(at, growth, new)
            growth = new
    said.seconds = time.process_time() - begun
    said.updates = len(trace.samples)
    return said


def _make(trace: Trace, started: float | None, sensitivity: Sensitivity) -> MemoryLeakDetector:
    return MemoryLeakDetector(
        total_bytes=trace.total_bytes,
        started_seconds=started if trace.starts_known else None,
        sensitivity=sensitivity,
    )
