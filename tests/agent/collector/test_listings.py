"""Since when the driver has listed a number decides who may hold the memory that is counted for it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.collector.listings import KNOWN_HOLDERS, TICK_SECONDS, Holders, Listings
from gpuagent.collector.listings_table import BREAK_SECONDS, RETURNED_LISTS
from gpuagent.core.hardware import Memory
from gpuagent.core.identity import ProcessId
from gpuagent.core.snapshot import GpuIdentity, GpuProcess, GpuReading, GpuState, ProcessInfo, ProcessUtilization
from gpuagent.core.units import GIB
from gpuagent.driver.backend import Collected

BOOT = "boot"
GPU = GpuIdentity(index=0, uuid="GPU-0", pci_bus_id="0000:01:00.0")
PID = 700
HELD = 8 * GIB
STRANGER = Holders(strangers=frozenset({PID}))
UNPROVEN = Holders(unproven=frozenset({PID}))
BUSY = ProcessUtilization(0.5, 0.1, 0.0, 0.0)


def process(started_seconds: float, pid: int = PID) -> ProcessInfo:
    """A process by its start, in seconds since the boot."""
    return ProcessInfo(ProcessId(BOOT, pid, round(started_seconds * 100)), "python", 1000, "alice")


def answer(
    at: float,
    held: Mapping[int, int | None],
    *,
    used: int | None = 0,
    complete: bool = True,
    gpu: GpuIdentity = GPU,
    busy: frozenset[int] = frozenset(),
    contradiction: str = "",
    answered: float = 0.0,
) -> Collected:
    """A list that was asked for at a time; `used` is the memory of the GPU beside what is listed."""
    listed = tuple(GpuProcess(pid, each, "C") for pid, each in held.items())
    memory = None if used is None else Memory(80 * GIB, used + sum(each or 0 for each in held.values()))
    return Collected(
        GpuReading(gpu, GpuState.OK, memory=memory, processes_known=complete),
        listed, dict.fromkeys(busy, BUSY), frozenset(held), at, contradiction=contradiction, answered_seconds=answered,
    )  # fmt: skip


def seen(
    listings: Listings, at: float, *living: ProcessInfo, held: Mapping[int, int | None] | None = None, **options: object
) -> Holders:
    """Take in a list, of 8 GiB under the one number unless `held` says otherwise."""
    infos = {info.id.pid: info for info in living}
    return listings.classify(answer(at, {PID: HELD} if held is None else held, **options), infos)  # type: ignore[arg-type]


def test_who_was_there_before_its_number_was_listed_holds_the_memory() -> None:
    """A process that started before the driver listed its number is its holder, for as long as it is listed."""
    listings = Listings(None, BOOT)
    for at in (100.0, 101.0, 1e6):
        assert seen(listings, at, process(99.0)) == KNOWN_HOLDERS


def test_who_is_given_a_listed_number_is_a_stranger() -> None:
    """The process that the number belonged to has ended, and the driver lists it on."""
    listings = Listings(None, BOOT)
    seen(listings, 100.0, process(99.0))
    seen(listings, 101.0)
    for at in (102.0, 1e6):
        assert seen(listings, at, process(101.5)) == STRANGER


def test_the_very_moment_is_in_doubt() -> None:
    """Start times are rounded down to a tick: who started within the tick of the listing has not been shown to hold."""
    assert seen(Listings(None, BOOT), 100.0, process(100.0)) == STRANGER
    assert seen(Listings(None, BOOT), 100.0, process(100.0 - 2 * TICK_SECONDS)) == KNOWN_HOLDERS


@pytest.mark.parametrize(
    "later",
    [
        GpuIdentity(0, "GPU-other", pci_bus_id=GPU.pci_bus_id),
        GpuIdentity(0, GPU.uuid, pci_bus_id="0000:77:00.0"),
        GpuIdentity(0, GPU.uuid),
        GpuIdentity(3, "", pci_bus_id=GPU.pci_bus_id),
    ],
)
def test_a_gpu_is_known_by_either_name(later: GpuIdentity) -> None:
    """A changed UUID, or an address that changed or cannot be read, makes no stranger a holder, and no holder one."""
    listings = Listings(None, BOOT)
    seen(listings, 100.0, process(99.0), process(99.0, 701), held={PID: HELD, 701: HELD})
    living = process(150.0), process(99.0, 701)
    for gpu in (later, GPU, later):
        assert seen(listings, 200.0, *living, held={PID: HELD, 701: HELD}, gpu=gpu) == STRANGER


def test_another_gpu_has_listings_of_its_own() -> None:
    """What one GPU lists says nothing of one with another UUID and another address."""
    listings = Listings(None, BOOT)
    seen(listings, 100.0, process(99.0))
    assert seen(listings, 200.0, process(150.0), gpu=GpuIdentity(1, "GPU-1", pci_bus_id="2")) == KNOWN_HOLDERS


def test_who_came_while_the_driver_was_asked_is_unproven() -> None:
    """PROC-02: a slow list was made before or after a process started: it has not ended, and is not acted on."""
    for first in (True, False):
        listings = Listings(None, BOOT)
        if not first:
            seen(listings, 99.0, held={})
        started = {"before": 99.5, "between": 102.0, "as it came": 104.005, "after": 104.01}
        listed = {700 + number: HELD for number, _ in enumerate(started)}
        living = [process(at, 700 + number) for number, at in enumerate(started.values())]
        expected = Holders(strangers=frozenset({703}), unproven=frozenset({701, 702}))
        assert seen(listings, 100.0, *living, held=listed, answered=104.008) == expected
        assert seen(listings, 105.0, *living, held=listed, answered=105.0) == expected


def test_who_came_while_the_driver_was_asked_is_proven_by_its_work() -> None:
    """Nobody but the process with the number computes under it: it is a holder like any other then."""
    listings = Listings(None, BOOT)
    assert seen(listings, 100.0, process(102.0), answered=104.0) == UNPROVEN
    assert seen(listings, 105.0, process(102.0)) == UNPROVEN
    assert seen(listings, 121.0, process(102.0), busy=frozenset({PID})) == KNOWN_HOLDERS


@pytest.mark.parametrize("step", [0.5, 1.0, 10.0, 60.0])
def test_who_came_while_nobody_looked_is_unproven(step: float) -> None:
    """A number first listed after a gap is proven for who was there before the gap alone; without a gap, as ever."""
    listings = Listings(None, BOOT)
    at = 100.0
    for _ in range(5):
        at += step
        seen(listings, at, held={})
    last, at = at, at + max(step * 2.5, 5.0) + 1
    both = {PID: HELD, 701: HELD}
    assert seen(listings, at, process(at - 1), process(last - 1, 701), held=both) == UNPROVEN
    late = process(at + step / 2, 702)
    later = seen(listings, at + step, process(at - 1), process(last - 1, 701), late, held={**both, 702: GIB})
    assert later == UNPROVEN


def test_long_steps_are_not_usual_at_once() -> None:
    """One long gap does not make the next one regular."""
    listings = Listings(None, BOOT)
    for at in (100.0, 101.0, 3701.0, 3702.0):
        seen(listings, at, held={})
    assert seen(listings, 7000.0, process(5000.0)) == UNPROVEN


def test_the_same_object_while_nothing_changes() -> None:
    """A tick in which nothing is new costs next to nothing, and whoever compares sees it at a glance."""
    listings = Listings(None, BOOT)
    infos = {PID: process(150.0)}
    listings.classify(answer(100.0, {PID: HELD}), {})
    first = listings.classify(answer(200.0, {PID: HELD}), infos)
    assert first == STRANGER
    assert listings.classify(answer(201.0, {PID: HELD}), infos) is first
    calm = Listings(None, BOOT)
    holders = calm.classify(answer(200.0, {PID: HELD}), infos)
    assert calm.classify(answer(201.0, {PID: HELD + 1}), infos) is holders


class Story:
    """The truth of one number on one GPU, and what the listings make of it."""

    def __init__(self) -> None:
        self.listings = Listings(None, BOOT)
        self.now, self.held = 1000.0, GIB
        self.living: ProcessInfo | None = process(990.0)
        self.began: float | None = None
        """When its listing may have begun at the earliest."""
        self.lists: list[float] = []
        """Times of the complete lists."""
        self.absent = 0.0
        self.returned = 0
        """Lists without it that showed its memory back."""

    def gap(self) -> bool:
        """Whether nobody looked for longer than usual."""
        steps = [later - before for before, later in zip(self.lists, self.lists[1:], strict=False)]
        usual = min(*steps[-3:], 60.0) if len(steps) >= 3 else 0.0
        return bool(self.lists) and self.now - self.lists[-1] > max(2.5 * usual, 5.0)

    def lacks(self, *, full: bool) -> None:
        """A complete list without the number, beside memory that has come back or not."""
        if self.began is not None:
            self.returned += not full
            if self.returned >= RETURNED_LISTS:
                self.absent += min(self.now - self.lists[-1], 5.0)
            if self.absent >= BREAK_SECONDS:
                self.began = None
        seen(self.listings, self.now, held={}, used=self.held if full else 0)
        self.lists.append(self.now)

    def lists_it(self) -> Holders:
        """A complete list with the number."""
        if self.began is None:
            self.began = self.lists[-1] if self.gap() else self.now
        self.absent, self.returned = 0.0, 0
        found = seen(self.listings, self.now, *([self.living] if self.living else []), held={PID: self.held})
        self.lists.append(self.now)
        return found

    def check(self, found: Holders) -> None:
        """Who is believed to hold was there before the listing could begin; and nobody else is not."""
        if self.living is not None:
            came_later = self.living.id.start_ticks / 100 + TICK_SECONDS > (self.began or 0.0)
            assert (PID in found.strangers | found.unproven) == came_later


@given(
    st.lists(
        st.tuples(
            st.floats(0.1, 30.0),
            st.sampled_from(["listed", "listed", "empty", "full", "failed", "ends", "reused"]),
        ),
        max_size=60,
    )
)
def test_nobody_who_came_later_is_ever_a_holder(events: list[tuple[float, str]]) -> None:
    """Through any story, who is believed to hold was there when its listing began."""
    story = Story()
    for seconds, event in events:
        story.now += seconds
        if event == "ends":
            story.living = None
        elif event == "reused":
            story.living = process(story.now - seconds / 2)
        elif event in {"empty", "full"}:
            story.lacks(full=event == "full")
        elif event == "listed":
            story.check(story.lists_it())
