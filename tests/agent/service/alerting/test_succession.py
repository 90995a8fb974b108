"""What a line says of a process that was started in place of one that leaked."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpuagent.core.units import GIB
from gpuagent_alerts.notify.succession import MemoryMeter, OwnerFacts, Restarts, Successor, watch

PACE = 40 * GIB / 3600


def test_a_line_does_not_take_back_that_it_grows_again() -> None:
    """A successor that loads in steps and leaks on rises without a break: its line says so from the first time on."""
    steps = [(0.0, 3.0), (60.0, 5.0), (150.0, 9.0), (240.0, 9.0)]
    before = Restarts(pace=PACE)
    meter, now, shown, goes_on = MemoryMeter(0.0), 0.0, [], []
    while now < 400.0:
        now += 15.0
        loaded = max(gib for at, gib in steps if at <= now)
        one = Successor("b:200:1", 1.0, grows=False, is_judged=False, used_bytes=int(loaded * GIB + PACE * now))
        seen = watch(before, ["b:100:1"], OwnerFacts(others=(one,)), now, 0.0, meter)
        before = seen.restarts
        shown.append(seen.shows_growth)
        goes_on.append(seen.growth is not None and seen.growth.goes_on)

    assert False in goes_on[goes_on.index(True) :], "its share of the whole rise falls behind what was loaded"
    assert all(shown[shown.index(True) :])


def flat_for(used_gib: Callable[[float], float]) -> float:
    """Return for how many seconds what uses so many GiB has been flat after half an hour, with readings every 15 s."""
    meter = MemoryMeter(0.0)
    for now in range(0, 1801, 15):
        meter.add({"a": int(used_gib(now) * GIB), "b": GIB}, float(now))
    return meter.flat_seconds(1800.0)


def test_what_does_not_grow_is_told_with_all_the_time_in_which_it_did_not() -> None:
    """Not with the 3 min of a window: back to the end of its loading, whatever an allocator's noise does."""
    assert flat_for(lambda _: 5.0) == 1800.0
    # What has risen, and was given back, is not said to have been flat all the time.
    assert flat_for(lambda now: 2.0 + now / 150.0 if now < 1500.0 else 2.0) == pytest.approx(300.0, abs=60.0)
    assert flat_for(lambda now: min(16.0, 2.0 + now / 10.0) + 0.3 * (now % 60 == 0)) == pytest.approx(1620.0, abs=60.0)
    assert flat_for(lambda now: 5.0 + now / 1024) < 180.0, "slow growth is none"
