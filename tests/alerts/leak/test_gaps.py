"""A time without readings is no plateau: a leak that goes on after it is the leak that it was."""

from __future__ import annotations

import pytest

from gpuagent.core.growth import Verdict
from gpuagent.core.units import GIB
from gpuagent_alerts.leak.detector import MemoryLeakDetector
from gpuagent_alerts.leak.device import FreeMemory

TOTAL_BYTES = 80 * GIB
MINUTE, HOUR = 60.0, 3600.0


class Reader:
    """A process that grows at an even pace while it runs, and is read every 5 s."""

    def __init__(self) -> None:
        self.detector = MemoryLeakDetector(total_bytes=TOTAL_BYTES, started_seconds=0.0)
        self.now = 0.0
        self.used = 8.0 * GIB
        self.verdicts: list[Verdict] = []

    def run(self, seconds: float, gib_per_hour: float, *, every: float = 5.0) -> None:
        """Let it run."""
        until = self.now + seconds
        while self.now < until:
            self.now += every
            self.used += gib_per_hour * GIB * every / HOUR
            free = TOTAL_BYTES - self.used
            self.verdicts.append(self.detector.update(self.now, self.used, free).verdict)

    def stop(self, seconds: float, *, is_asked: bool) -> None:
        """Let time pass in which it stands still, and in which nothing can be read where somebody asks."""
        if is_asked:
            for _ in range(int(seconds / 15)):
                self.now += 15
                self.verdicts.append(self.detector.update(self.now, None, None).verdict)
        else:
            self.now += seconds


@pytest.mark.parametrize("is_asked", [False, True], ids=["suspended", "not readable"])
@pytest.mark.parametrize("is_restarted", [False, True], ids=["", "agent restarted"])
def test_a_leak_that_goes_on_after_a_gap_has_not_levelled_off(*, is_asked: bool, is_restarted: bool) -> None:
    """The gap is longer than all that was seen of it, and no high can come in it."""
    reader = Reader()
    reader.run(10 * MINUTE, 0.0)
    reader.run(HOUR, 40.0)
    assert reader.verdicts[-1] is Verdict.LEAKING
    seen = len(reader.verdicts)
    reader.stop(2 * HOUR, is_asked=is_asked)
    if is_restarted:
        reader.detector = MemoryLeakDetector.load(reader.detector.dump(), total_bytes=TOTAL_BYTES, sensitivity=None)
    reader.run(20 * MINUTE, 40.0)

    assert set(reader.verdicts[seen:]) == {Verdict.LEAKING}


@pytest.mark.parametrize("every", [5.0, 60.0], ids=["every 5 s", "every minute"])
def test_what_stands_still_between_readings_has_levelled_off(*, every: float) -> None:
    """It is read all the time, if seldom: the plateau is as long as ever. One that follows a gap is measured anew."""
    reader = Reader()
    reader.run(10 * MINUTE, 0.0)
    reader.run(HOUR, 40.0)
    reader.run(50 * MINUTE, 0.0, every=every)
    assert reader.verdicts[-1] is Verdict.LEVELLED_OFF

    late = Reader()
    late.run(10 * MINUTE, 0.0)
    late.run(HOUR, 40.0)
    late.stop(2 * HOUR, is_asked=False)
    late.run(50 * MINUTE, 0.0, every=every)
    assert late.verdicts[-1] is Verdict.LEVELLED_OFF


def test_what_was_free_before_a_gap_tells_no_fall_after_it() -> None:
    """A process that stood still in it fills the GPU as fast as before: a fall over the gap would be that of days."""
    room = FreeMemory()
    for second in range(0, 3600, 30):
        room.add(float(second), 8.0 * GIB - second * GIB / HOUR)
    assert room.fastest_fall(3600.0, 7.0 * GIB) == pytest.approx(GIB / HOUR)
    now = 3600.0 + 10 * HOUR
    room.add(now, 7.0 * GIB)
    assert room.fastest_fall(now + 5.0, 7.0 * GIB) is None
    for second in range(0, 600, 30):
        room.add(now + second, 7.0 * GIB - second * GIB / HOUR)
    assert room.fastest_fall(now + 600.0, 7.0 * GIB - GIB / 6) == pytest.approx(GIB / HOUR, rel=0.01)
