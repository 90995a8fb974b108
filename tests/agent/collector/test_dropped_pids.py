"""However many numbers come and go, what is remembered is bounded, and the proof of new ones comes back by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuagent.collector.listings import KNOWN_HOLDERS, Holders, Listings
from gpuagent.collector.listings_table import (
    LONG_BREAK_SECONDS,
    MOST_LISTINGS,
    DroppedPids,
    UnlistedPid,
    choose_to_drop,
)
from gpuagent.core.identity import ProcessId
from gpuagent.core.snapshot import ProcessInfo
from gpuagent.core.units import GIB
from tests.agent.collector.test_listings import BOOT, HELD, PID, UNPROVEN, process, seen
from tests.integration.waiting import until

FLOOD = dict.fromkeys(range(1000, 1001 + MOST_LISTINGS), GIB)


def flooded(path: Path | None = None) -> Listings:
    """A GPU on whose list, beside full memory, one number went long before a flood of others; it is 105 s."""
    listings = Listings(path, BOOT)
    seen(listings, 100.0, held={PID: HELD}, used=HELD)
    seen(listings, 101.0, held={}, used=HELD)
    for at, held in ((102.0, FLOOD), (103.0, {1000: GIB}), (104.0, {1000: GIB})):
        seen(listings, at, held=held, used=HELD)
    return listings


def test_a_number_that_was_dropped_proves_nothing_when_it_comes_back() -> None:
    """It may be listed for who had it before; its table stays small all the same."""
    assert seen(flooded(), 105.0, process(104.0)) == UNPROVEN


def test_other_numbers_prove_as_ever_after_a_flood() -> None:
    """A flood of short processes takes the proof from nobody whose number it did not have."""
    late = ProcessInfo(ProcessId(BOOT, 9000, 10450), "python", 1000, "alice")
    assert seen(flooded(), 105.0, late, held={9000: HELD}) == KNOWN_HOLDERS


@pytest.mark.slow
def test_the_numbers_of_a_flood_prove_again_after_ten_minutes() -> None:
    """A listing is over after ten minutes of complete lists without it, remembered or not."""
    listings, at = flooded(), 105.0
    while at < 106.0 + LONG_BREAK_SECONDS:
        at += 1.0
        seen(listings, at, held={}, used=HELD)
    assert seen(listings, at + 1, process(at)) == KNOWN_HOLDERS


@pytest.mark.slow
@pytest.mark.parametrize(("after", "then"), [(2.0, UNPROVEN), (LONG_BREAK_SECONDS + 2, KNOWN_HOLDERS)])
def test_a_restart_keeps_that_and_for_no_longer(tmp_path: Path, after: float, then: Holders) -> None:
    """An agent that starts again does not know which numbers were dropped: for as long any may be one of them."""
    path = tmp_path / "listings.json"
    flooded(path)
    until(lambda: path.exists() and '"1000"' in path.read_text(), "the listings are written")
    listings = Listings(path, BOOT, ran_before=True, now_seconds=200.0)
    at = 200.0
    while at < 200.0 + after:
        at += 1.0
        seen(listings, at, held={}, used=HELD)
    assert seen(listings, at + 1, process(at)) == then


def test_a_flood_of_one_user_drops_nobody_elses() -> None:
    """Whoever has the most numbers gives way first, and of theirs what went first."""
    mine = [UnlistedPid(pid, 1, float(pid)) for pid in range(100)]
    others = [UnlistedPid(1000 + pid, 2, 500.0) for pid in range(3)]
    assert choose_to_drop([*others, *mine], 90) == mine[:9:-1]


@pytest.mark.slow
def test_a_runner_of_short_jobs_ends_no_proof() -> None:
    """Ten jobs a second for twenty minutes, beside others that take the memory at once: each new one is proven."""
    listings, at, pid = Listings(None, BOOT), 100.0, 10_000
    running: list[int] = []
    for _ in range(1200):
        at += 1.0
        running = [*running[-6:], *range(pid, pid + 10)]
        pid += 10
        ticks = round((at - 0.5) * 100)
        living = [ProcessInfo(ProcessId(BOOT, each, ticks), "python", 1000, "alice") for each in running[-10:]]
        assert seen(listings, at, *living, held=dict.fromkeys(running, GIB), used=9 * GIB) == KNOWN_HOLDERS


def test_what_is_taken_for_a_number_that_was_dropped_ends() -> None:
    """Numbers that share a slot are taken for one another, until the latest of them is over."""
    numbers = DroppedPids()
    assert numbers.seconds_left(0.0) == 0.0
    numbers.add(7, 100.5)
    assert [numbers.may_have(pid, 100.0) for pid in (7, 7 + 65536, 8)] == [True, True, False]
    assert not numbers.may_have(7, 101.0)
    assert numbers.seconds_left(101.0) == 0.0
