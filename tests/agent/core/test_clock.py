"""Clocks: the machine's, a faster one, and one that stands still."""

from __future__ import annotations

import time

from gpuagent.core.clock import ManualClock, ScaledClock, SystemClock


def test_the_machine_s_clocks() -> None:
    """CLOCK_BOOTTIME for ages and holds, so that a suspend counts; unix time for people."""
    clock = SystemClock()
    before = (time.clock_gettime(time.CLOCK_BOOTTIME), time.time())
    now = (clock.now(), clock.wall())
    later = (time.clock_gettime(time.CLOCK_BOOTTIME), time.time())

    assert before[0] <= now[0] <= later[0]
    assert before[1] <= now[1] <= later[1]
    assert clock.speed == 1.0


def test_a_faster_clock() -> None:
    """Starts with the machine's, and passes so many seconds in each of its; both clocks alike."""
    boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    clock = ScaledClock(1000.0)
    first, wall = clock.now(), clock.wall()
    while time.clock_gettime(time.CLOCK_BOOTTIME) == boot:
        pass
    second, second_wall = clock.now(), clock.wall()
    end = time.clock_gettime(time.CLOCK_BOOTTIME)

    assert first >= boot
    assert 0 < second - first <= (end - boot) * 1000.0
    assert second_wall > wall
    assert clock.speed == 1000.0


def test_a_clock_that_stands_still() -> None:
    """Until it is told, and then on both."""
    clock = ManualClock(now=5.0, wall=100.0)
    assert (clock.now(), clock.wall()) == (5.0, 100.0)
    clock.advance(2.5)

    assert (clock.now(), clock.wall()) == (7.5, 102.5)
