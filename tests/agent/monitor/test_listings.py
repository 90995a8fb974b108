"""Since when the driver has listed a number decides who may hold the memory that is counted for it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.identity import ProcessId
from gpuagent.monitor.listings import BREAK_SECONDS, TICK_SECONDS, Listings
from gpuagent.reading import GpuIdentity, ProcessInfo
from tests.integration.waiting import until

BOOT = "boot"
GPU = GpuIdentity(index=0, uuid="GPU-0", pci_bus_id="0000:01:00.0")
PID = 700


def process(started_seconds: float, pid: int = PID) -> ProcessInfo:
    """A process by its start, in seconds since the boot."""
    return ProcessInfo(ProcessId(BOOT, pid, round(started_seconds * 100)), "python", 1000, "alice")


def strangers(
    listings: Listings,
    at: float,
    infos: Mapping[int, ProcessInfo | None],
    *,
    pids: Iterable[int] = (PID,),
    complete: bool = True,
    gpu: GpuIdentity = GPU,
) -> frozenset[int]:
    """Take in a list that was read at a time."""
    return listings.strangers(gpu, frozenset(pids), infos, at, complete=complete)


def test_who_was_there_before_its_number_was_listed_holds_the_memory() -> None:
    """A process that started before the driver listed its number is its holder, for as long as it is listed."""
    listings = Listings(None, BOOT)
    for at in (100.0, 101.0, 1e6):
        assert not strangers(listings, at, {PID: process(99.0)})


def test_who_is_given_a_listed_number_is_a_stranger() -> None:
    """KILL-01: the process that the number belonged to has ended, and the driver lists it on."""
    listings = Listings(None, BOOT)
    strangers(listings, 100.0, {PID: process(99.0)})
    strangers(listings, 101.0, {PID: None})
    for at in (102.0, 1e6):
        assert strangers(listings, at, {PID: process(101.5)}) == {PID}


def test_the_very_moment_is_in_doubt() -> None:
    """Start times are rounded down to a tick: who started within the tick of the listing has not been shown to hold."""
    listings = Listings(None, BOOT)
    assert strangers(listings, 100.0, {PID: process(100.0)}) == {PID}
    assert not strangers(Listings(None, BOOT), 100.0, {PID: process(100.0 - 2 * TICK_SECONDS)})


@pytest.mark.parametrize("gap", ["empty", "partial", "failed", "suspended", "reloaded"])
def test_a_gap_is_no_break(gap: str) -> None:
    """A list without the number, one that failed, a suspended node or a reloaded driver makes nobody a holder."""
    listings = Listings(None, BOOT)
    strangers(listings, 100.0, {PID: process(99.0)})
    at = 101.0
    if gap == "empty":
        for _ in range(30):
            at += 1
            strangers(listings, at, {}, pids=())
    elif gap == "partial":
        for _ in range(1000):
            at += 1
            strangers(listings, at, {}, pids=(), complete=False)
    elif gap == "failed":
        at = 100_000.0
    elif gap == "suspended":
        strangers(listings, at, {}, pids=())
        at += 8 * 3600
        strangers(listings, at, {}, pids=())
    else:
        strangers(listings, at, {}, pids=())
        at += 59
    assert strangers(listings, at + 1, {PID: process(at)}) == {PID}


def test_a_minute_of_complete_lists_without_it_is_a_break() -> None:
    """A number that was given back for good may be listed anew, for whoever has it now."""
    listings = Listings(None, BOOT)
    strangers(listings, 100.0, {PID: process(99.0)})
    at = 100.0
    for _ in range(round(BREAK_SECONDS) + 1):
        at += 1
        strangers(listings, at, {}, pids=())
    assert not strangers(listings, at + 1, {PID: process(at)})


def test_a_gpu_is_its_uuid_and_its_address() -> None:
    """What one GPU lists says nothing of another, be it that both tell the same UUID."""
    listings = Listings(None, BOOT)
    twin = GpuIdentity(index=1, uuid=GPU.uuid, pci_bus_id="0000:02:00.0")
    strangers(listings, 100.0, {PID: process(99.0)})
    assert strangers(listings, 200.0, {PID: process(150.0)}) == {PID}
    assert not strangers(listings, 200.0, {PID: process(150.0)}, gpu=twin)


def test_a_restart_forgets_nothing(tmp_path: Path) -> None:
    """A process that was given a listed number while no agent ran is a stranger; the holder is not."""
    path = tmp_path / "listings.json"
    before = Listings(path, BOOT)
    strangers(before, 100.0, {PID: process(99.0), 701: None}, pids=(PID, 701))
    until(path.exists, "the listings are written")
    after = Listings(path, BOOT)
    infos = {PID: process(99.0), 701: process(150.0, 701)}
    assert strangers(after, 200.0, infos, pids=(PID, 701)) == {701}


def test_another_boot_begins_anew(tmp_path: Path) -> None:
    """Times of another boot mean nothing."""
    path = tmp_path / "listings.json"
    strangers(Listings(path, BOOT), 100.0, {PID: process(99.0)})
    until(path.exists, "the listings are written")
    assert not strangers(Listings(path, "another"), 200.0, {PID: process(150.0)})


@given(
    st.binary(max_size=200)
    | st.recursive(st.none() | st.text() | st.floats(), st.lists).map(json.dumps).map(str.encode)
)
def test_a_damaged_file_is_begun_anew(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    """Whatever is in the file, the agent starts."""
    path = tmp_path_factory.mktemp("damaged") / "listings.json"
    path.write_bytes(data)
    assert not strangers(Listings(path, BOOT), 100.0, {PID: process(99.0)})


def test_the_same_object_while_nothing_changes() -> None:
    """A tick in which nothing is new costs next to nothing, and whoever compares sees it at a glance."""
    listings = Listings(None, BOOT)
    pids, infos = frozenset({PID}), {PID: process(99.0)}
    first = listings.strangers(GPU, pids, infos, 100.0)
    assert listings.strangers(GPU, pids, infos, 101.0) is first


@given(
    st.lists(
        st.tuples(
            st.floats(0.1, 30.0),
            st.sampled_from(["listed", "listed", "empty", "failed", "ends", "reused"]),
        ),
        max_size=60,
    )
)
def test_nobody_who_came_later_is_ever_a_holder(story: list[tuple[float, str]]) -> None:
    """Through any story, a living process on the list that is no stranger was there when its listing began."""
    listings = Listings(None, BOOT)
    now, started, number = 1000.0, 990.0, True
    began: float | None = None
    absent = 0.0
    last = now
    for seconds, event in story:
        now += seconds
        if event == "ends":
            number = False
        elif event == "reused":
            number, started = True, now - seconds / 2
        elif event == "empty":
            absent += min(now - last, 5.0)
            began = None if absent >= BREAK_SECONDS else began
            strangers(listings, now, {}, pids=())
            last = now
        elif event == "listed":
            absent = 0.0
            began = now if began is None else began
            found = strangers(listings, now, {PID: process(started) if number else None})
            last = now
            if number:
                assert (PID in found) == (round(started * 100) / 100 + TICK_SECONDS > began)
