"""When the listing of a number is over: only by evidence that the memory of this number came back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from gpuagent.collector.listings import KNOWN_HOLDERS, Holders, Listings
from gpuagent.collector.listings_table import BREAK_SECONDS, LONG_BREAK_SECONDS, RETURNED_LISTS
from gpuagent.core.units import GIB
from tests.agent.collector.test_listings import BOOT, HELD, PID, STRANGER, process, seen
from tests.integration.waiting import until
from tests.tables import table

Held = Mapping[int, int | None]


def beside(total: int, held: Held) -> int:
    """Return what is used beside what is listed, where the GPU says that `total` is used."""
    return total - sum(each or 0 for each in held.values())


def heir_after(
    first: Held,
    total: int,
    *later: tuple[Held, int | None],
    seconds: float = BREAK_SECONDS + RETURNED_LISTS,
    complete: bool = True,
    step: float = 1.0,
) -> Holders:
    """Return what is said of a process that is given the number after a while of each of the later lists.

    Each list comes with what the GPU says is used.
    """
    listings = Listings(None, BOOT)
    seen(listings, 100.0, process(99.0), held=first, used=beside(total, first))
    at = 100.0
    for held, used in later:
        for _ in range(round(seconds / step) + 1):
            at += step
            seen(listings, at, held=held, used=None if used is None else beside(used, held), complete=complete)
    return seen(listings, at + 1, process(at))


@pytest.mark.parametrize(
    ("first", "total", "later", "used"),
    [
        ({PID: HELD}, HELD, {}, 0),
        ({PID: HELD, 701: 9 * GIB}, 18 * GIB, {701: 9 * GIB}, 10 * GIB),
        ({PID: HELD, 701: 9 * GIB}, 18 * GIB, {701: 2 * GIB}, 3 * GIB),
        ({PID: HELD, 701: None}, 18 * GIB, {701: None}, 3 * GIB),
        ({PID: HELD, 701: 8 * GIB, 702: 8 * GIB}, 17 * GIB, {701: 8 * GIB, 702: 8 * GIB}, 9 * GIB),
    ],
    ids=["alone", "beside another", "another shrank too", "beside an unknown amount", "others share"],
)
def test_a_minute_without_it_once_its_memory_is_back_is_a_break(
    first: Held, total: int, later: Held, used: int
) -> None:
    """A number whose memory was given back for good may be listed anew, and others need not end for that."""
    assert heir_after(first, total, (later, used)) == KNOWN_HOLDERS


def test_what_another_takes_afterwards_does_not_undo_it() -> None:
    """Memory that has come back may be given to the next process at once."""
    listings = Listings(None, BOOT)
    seen(listings, 100.0, process(99.0))
    at = 100.0
    for used, seconds in ((0, RETURNED_LISTS), (HELD, BREAK_SECONDS)):
        for _ in range(round(seconds)):
            at += 1
            seen(listings, at, held={701: used} if used else {})
    assert seen(listings, at + 1, process(at), held={PID: HELD, 701: HELD}) == KNOWN_HOLDERS


@table(
    "first, total, later, used",
    [
        ({PID: HELD}, HELD, {}, HELD),
        ({PID: HELD}, HELD, {}, HELD // 2),
        ({PID: HELD}, HELD, {}, None),
        ({PID: None, 701: GIB}, 9 * GIB, {701: GIB}, GIB),
        ({PID: 0}, HELD, {}, GIB),
        ({PID: HELD, 701: None}, 9 * GIB, {701: None}, 9 * GIB),
        ({PID: HELD, 701: 9 * GIB}, 18 * GIB, {701: GIB}, 10 * GIB),
        ({PID: HELD, 701: 9 * GIB}, 18 * GIB, {}, 9 * GIB),
        ({PID: HELD, 701: 9 * GIB}, 18 * GIB, {701: None}, 10 * GIB),
        ({PID: HELD, 701: GIB, 702: GIB}, 11 * GIB, {701: 8 * GIB, 702: 8 * GIB}, 17 * GIB),
        ({PID: HELD, 701: 8 * GIB, 702: 8 * GIB}, 17 * GIB, {}, 9 * GIB),
        ({PID: HELD}, HELD, {701: 8 * GIB, 702: 8 * GIB}, 17 * GIB),
    ],
)
def test_what_is_no_evidence(first: Held, total: int, later: Held, used: int | None) -> None:
    """Memory of others that comes back, is shared, or of unknown amount says nothing of this number's."""
    assert heir_after(first, total, (later, used), seconds=9 * BREAK_SECONDS) == STRANGER


def test_ten_minutes_without_it_are_enough() -> None:
    """Where processes come and go, others take at once what one gives back: the figures never tell, and time has to."""
    assert heir_after({PID: HELD}, HELD, ({701: HELD}, HELD), seconds=LONG_BREAK_SECONDS) == KNOWN_HOLDERS


@pytest.mark.parametrize(
    ("seconds", "complete", "step"),
    [(50.0, True, 1.0), (1000.0, False, 1.0), (16 * 3600.0, True, 8 * 3600.0)],
    ids=["short", "partial", "suspended"],
)
def test_what_is_no_break(seconds: float, complete: bool, step: float) -> None:
    """Lists without the number make nobody a holder while they are few or partial."""
    assert heir_after({PID: HELD}, HELD, ({}, 0), seconds=seconds, complete=complete, step=step) == STRANGER


def test_one_odd_figure_is_no_evidence() -> None:
    """A GPU that says once that nothing is used, and then as before, has given nothing back."""
    listings = Listings(None, BOOT)
    seen(listings, 100.0, process(99.0))
    for second in range(300):
        seen(listings, 101.0 + second, held={}, used=0 if second == 5 else HELD)
    assert seen(listings, 500.0, process(450.0)) == STRANGER


@pytest.mark.parametrize("back", [True, False])
def test_what_others_hold_is_known_over_a_restart(tmp_path: Path, back: bool) -> None:
    """A number that leaves the list while no agent runs is compared with what the agent before has seen."""
    path = tmp_path / "listings.json"
    both = {PID: HELD, 701: HELD}
    seen(Listings(path, BOOT), 100.0, process(99.0), process(99.0, 701), held=both)
    until(path.exists, "the listings are written")
    listings = Listings(path, BOOT, ran_before=True, now_seconds=200.0)
    at = 200.0
    for _ in range(round(BREAK_SECONDS) + 10):
        at += 1
        seen(listings, at, process(99.0, 701), held={701: HELD}, used=0 if back else HELD)
    heir = process(at), process(99.0, 701)
    assert seen(listings, at + 1, *heir, held=both) == (KNOWN_HOLDERS if back else STRANGER)
