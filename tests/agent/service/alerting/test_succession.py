"""What a line says of a process that was started in place of one that leaked."""

from __future__ import annotations

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
