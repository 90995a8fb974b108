"""What shows that an unproven process is the holder, and what does not. A stranger is never shown to be one."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuagent.collector.listings import (
    GROWN_LISTS,
    GROWTH_BYTES,
    INITIAL_SECONDS,
    KNOWN_HOLDERS,
    SAMPLE_SECONDS,
    Holders,
    Listings,
)
from gpuagent.core.hardware import Memory
from gpuagent.core.snapshot import GpuProcess, GpuReading, GpuState
from gpuagent.core.units import GIB
from gpuagent.driver.backend import Collected
from tests.agent.collector.test_listings import BOOT, GPU, HELD, PID, STRANGER, UNPROVEN, answer, process, seen
from tests.integration.waiting import until

Entry = tuple[str, int, int | None]
"""Type, GPU instance and bytes of a line of the list."""
BEGAN = 200.0
SETTLED = BEGAN + INITIAL_SECONDS


def unproven(path: Path | None = None) -> Listings:
    """Return listings to which a process that started at 150 s is unproven from 200 s on, with 8 GiB."""
    listings = Listings(path, BOOT)
    seen(listings, 100.0, held={})
    assert seen(listings, BEGAN, process(150.0)) == UNPROVEN
    return listings


def lists(listings: Listings, at: float, *figures: int | None) -> Holders:
    """Take in a list a second with these bytes; return what comes of the last."""
    found = UNPROVEN
    for second, figure in enumerate(figures):
        found = seen(listings, at + second, process(150.0), held={PID: figure})
    return found


def test_growth_beyond_all_that_was_ever_listed_proves_for_good() -> None:
    """It holds for several lists, after a minute; then memory may shrink, and the next process is a stranger."""
    listings = unproven()
    lists(listings, SETTLED, HELD)
    assert lists(listings, SETTLED + 1, *[HELD + GROWTH_BYTES - 1] * 9) == UNPROVEN
    assert lists(listings, SETTLED + 10, *[HELD + GROWTH_BYTES] * (GROWN_LISTS - 1)) == UNPROVEN
    assert lists(listings, SETTLED + 12, HELD + GROWTH_BYTES) == KNOWN_HOLDERS
    assert lists(listings, SETTLED + 13, GIB) == KNOWN_HOLDERS
    assert seen(listings, SETTLED + 15, process(SETTLED + 14)) == STRANGER


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([HELD, 20 * GIB], []),
        ([20 * GIB], [20 * GIB] * 5),
        ([0], [HELD] * 5),
        ([GIB, None], [None, HELD]),
        ([None], [GIB, 20 * GIB, 20 * GIB, 20 * GIB]),
        ([HELD], [20 * GIB, HELD, 20 * GIB, HELD, 20 * GIB, 20 * GIB, None, 20 * GIB]),
    ],
    ids=["late list", "late list that stays", "0 B and then as before", "not told", "told late", "flickers"],
)
def test_figures_that_are_no_growth(before: list[int | None], after: list[int | None]) -> None:
    """What a late list tells, what was listed before, and what comes and goes is not the living process's."""
    listings = unproven()
    lists(listings, BEGAN + 1, *before)
    assert lists(listings, SETTLED + 2, *after) == UNPROVEN


@pytest.mark.parametrize(
    ("first", "later"),
    [
        ([("C", 1, GIB), ("C", 2, 12 * GIB)], [("C", 2, 13 * GIB)]),
        ([("G", -1, GIB)], [("G", -1, GIB), ("C", -1, 20 * GIB)]),
        ([("G", -1, GIB)], [("C", -1, 20 * GIB)]),
        ([("C", 1, GIB)], [("C", 2, 20 * GIB)]),
    ],
    ids=["an instance is dropped", "a type is added", "another type", "another instance"],
)
def test_other_entries_are_no_growth(first: list[Entry], later: list[Entry]) -> None:
    """Which entry of several is a dead process's cannot be told: growth counts on one set of entries alone."""
    listings = unproven()

    def took_in(at: float, entries: list[Entry]) -> Holders:
        listed = tuple(GpuProcess(PID, used, kind, instance, -1) for kind, instance, used in entries)
        reading = GpuReading(GPU, GpuState.OK, memory=Memory(80 * GIB, 40 * GIB), processes_known=True)
        collected = Collected(reading, listed, None, frozenset({PID}), at)
        return listings.classify(collected, {PID: process(150.0)})

    at = BEGAN
    for entries in (first, later, first, later):
        for _ in range(10):
            at += 1
            assert took_in(at, entries) == UNPROVEN
    for _ in range(round(INITIAL_SECONDS) + 30):
        at += 1
        assert took_in(at, later) == UNPROVEN


@pytest.mark.parametrize("figure", ["doubtful", "partial", "another process"])
def test_only_what_is_believed_of_this_very_process_counts(figure: str) -> None:
    """A list in doubt, an incomplete one, or one of another process with the number shows no life."""
    listings = unproven()
    lists(listings, SETTLED, HELD)
    living = process(160.0) if figure == "another process" else process(150.0)
    for second in range(GROWN_LISTS + 1):
        now = answer(
            SETTLED + 1 + second, {PID: 20 * GIB},
            complete=figure != "partial", contradiction="x" if figure == "doubtful" else "",
        )  # fmt: skip
        assert listings.classify(now, {PID: living}) == UNPROVEN
    assert lists(listings, SETTLED + 10, *[20 * GIB] * (GROWN_LISTS - 1)) == UNPROVEN


def test_computing_proves() -> None:
    """Nobody else computes under its number; a sample that the driver gave of the one before may still be shown."""
    listings = unproven()
    busy = frozenset({PID})
    assert seen(listings, BEGAN + 1, process(150.0), busy=busy) == UNPROVEN
    assert seen(listings, BEGAN + SAMPLE_SECONDS, process(150.0), busy=busy) == KNOWN_HOLDERS


@pytest.mark.parametrize("busy", [True, False])
def test_nothing_proves_a_stranger(busy: bool) -> None:
    """Who came after its number was listed is no holder by any figure: what grows, comes back or is relisted."""
    listings = Listings(None, BOOT)
    seen(listings, 100.0, process(99.0), held={PID: 5 * GIB})
    computing = frozenset({PID}) if busy else frozenset[int]()
    for second in range(300):
        held = {} if second % 30 == 7 else {PID: (0, 5 * GIB, 20 * GIB, 40 * GIB)[second // 75]}
        found = seen(listings, 102.0 + second, process(101.5), held=held, used=40 * GIB, busy=computing)
        assert found == (STRANGER if held else KNOWN_HOLDERS)


def test_proof_and_what_was_listed_outlast_a_restart(tmp_path: Path) -> None:
    """Once proven, a process stays proven; one that is not proven has to exceed what was listed before the restart."""
    path = tmp_path / "listings.json"
    listings = unproven(path)
    lists(listings, BEGAN + 1, 20 * GIB)
    listings = restarted(path, listings, BEGAN + 40)
    lists(listings, BEGAN + 42, *[HELD] * 70)
    assert lists(listings, BEGAN + 120, *[20 * GIB] * 9) == UNPROVEN
    assert lists(listings, BEGAN + 130, *[21 * GIB] * 9) == KNOWN_HOLDERS
    listings = restarted(path, listings, BEGAN + 180, figure=21 * GIB)
    assert lists(listings, BEGAN + 190, HELD) == KNOWN_HOLDERS


def restarted(path: Path, listings: Listings, at: float, *, figure: int = HELD) -> Listings:
    """Have the listings written, and return what another agent makes of the file."""
    lists(listings, at, figure)
    until(lambda: path.exists() and f"{at}" in path.read_text(), "the listings are written")
    return Listings(path, BOOT, ran_before=True, now_seconds=at + 1)
