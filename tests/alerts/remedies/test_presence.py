"""Since when a process has held its memory, as the agent has seen: whom a ladder may choose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gpuagent.core.hardware import Memory, MigInstance
from gpuagent.core.snapshot import GpuState, ProcessReading, ProcessState, Snapshot
from gpuagent_alerts.remedies.observer import MemoryHoldTimes
from gpuagent_alerts.remedies.snapshot_targets import target_of
from tests.fakes.snapshots import full_snapshot

GIB = 2**30
GAP = 10.0

Change = Callable[[ProcessReading], ProcessReading]


def shown(at: float, gib: float = 60, change: Change = lambda one: one, **gpu: Any) -> Snapshot:
    """One GPU with one process, read at a moment."""
    snapshot = full_snapshot()
    one = next(each for each in snapshot.processes if each.info is not None and each.used_bytes)
    known: dict[str, Any] = {"state": GpuState.OK, "processes_known": True, "time_seconds": at, "measured_seconds": at}
    gpus = tuple(replace(each, **{**known, **gpu}) for each in snapshot.gpus if each.identity.uuid == one.gpu_uuid)
    process = one._replace(state=ProcessState.LIVE, used_bytes=int(gib * GIB), holder_unproven=False)
    return replace(snapshot, gpus=gpus, processes=(change(process),))


def withheld(presence: MemoryHoldTimes, now: float, wanted: float) -> str:
    """Why the process may not be chosen yet."""
    snapshot = shown(now)
    target = target_of(snapshot.processes[0], None)
    assert target is not None
    return presence.newcomers([target], wanted, now).get(target.id, "")


def test_who_was_there_all_the_time() -> None:
    """A process that held its memory for as long as the rule asks for may be chosen; the reason says when it may."""
    presence = MemoryHoldTimes()
    for at in (0, 10, 20):
        presence.update_snapshot(shown(at), GAP)
    assert withheld(presence, 20, 20) == ""
    assert "for 20 s" in withheld(presence, 20, 30)
    assert "can be chosen in 10 s" in withheld(presence, 20, 30)
    assert withheld(MemoryHoldTimes(), 20, 0) == ""


def test_an_unproven_holder_is_told_so_and_not_to_wait() -> None:
    """Time proves nothing about it, so no time is named: the reason says what proves it, and what a person can do."""
    presence, unproven = MemoryHoldTimes(), lambda one: one._replace(holder_unproven=True)
    for at in (0, 10, 20):
        presence.update_snapshot(shown(at, change=unproven), GAP)
    target = target_of(shown(20, change=unproven).processes[0], None)
    assert target is not None
    reason = presence.newcomers([target], 5, 20)[target.id]
    assert "has not been shown to hold this memory" in reason
    assert f"gpuagent kill --force {target.pid}" in reason
    assert "can be chosen in" not in reason


def _reborn(one: ProcessReading) -> ProcessReading:
    assert one.info is not None
    return one._replace(info=replace(one.info, id=one.info.id._replace(start_ticks=one.info.id.start_ticks + 1)))


@pytest.mark.parametrize(
    "between",
    [
        None,
        shown(10, state=GpuState.BLIND),
        shown(10, state=GpuState.LOST),
        shown(10, processes_known=False),
        replace(shown(10), gpus=()),
        replace(shown(10), processes=()),
        shown(10, change=lambda one: one._replace(used_bytes=None)),
        shown(10, change=lambda one: one._replace(info=None, state=ProcessState.DEAD)),
        shown(10, change=lambda one: one._replace(holder_unproven=True)),
        shown(10, change=_reborn),
        shown(10, gib=29),
    ],
    ids=["no reading", "blind", "lost", "no list", "no GPU", "not listed", "no figure", "dead", "unproven", "another",
         "little"],
)  # fmt: skip
def test_what_begins_the_time_anew(between: Snapshot | None) -> None:
    """KILL-01: who was not seen there, or not with this memory, is as new as one that has just come."""
    presence = MemoryHoldTimes()
    for each in (shown(0), between, shown(20)):
        if each is not None:
            presence.update_snapshot(each, GAP)
    assert withheld(presence, 25, 25) != ""
    presence.update_snapshot(shown(30), GAP)
    assert withheld(presence, 30, 10) == ""
    assert withheld(presence, 30, 11) != ""


def test_memory_that_grows_slowly_is_its_own() -> None:
    """Growth to twice as much begins nothing anew; more than that is memory that it did not have before."""
    presence = MemoryHoldTimes()
    for at, gib in ((0, 30), (10, 45), (20, 60)):
        presence.update_snapshot(shown(at, gib), GAP)
    assert withheld(presence, 20, 20) == ""
    presence.update_snapshot(shown(30, 61), GAP)
    assert withheld(presence, 30, 1) != ""


INSTANCES = tuple(MigInstance(f"MIG-{number}", number, 0, "3g.40gb", Memory(used_bytes=GIB)) for number in (1, 2))
NOT_TOLD = replace(INSTANCES[1], memory=Memory())


def in_instance(number: int) -> Change:
    """The process runs in this MIG instance."""
    return lambda one: one._replace(gpu_instance_id=number)


@pytest.mark.parametrize("own", [1, 2])
@pytest.mark.parametrize(
    "between", [INSTANCES[:1], (*INSTANCES[:1], NOT_TOLD), ()], ids=["missing", "not told", "none"]
)
def test_an_instance_that_was_missing_has_not_been_measured(own: int, between: tuple[MigInstance, ...]) -> None:
    """KILL-01: one MIG instance was not read once: on the whole GPU the time begins anew, whoever is chosen there."""
    presence = MemoryHoldTimes()
    for at, mig in ((0, INSTANCES), (10, between), (20, INSTANCES)):
        presence.update_snapshot(shown(at, change=in_instance(own), mig=mig), GAP)
    target = target_of(in_instance(own)(shown(25).processes[0]), None)
    assert target is not None
    assert presence.newcomers([target], 25, 25) != {}
    presence.update_snapshot(shown(30, change=in_instance(own), mig=INSTANCES), GAP)
    assert presence.newcomers([target], 10, 30) == {}
    assert presence.newcomers([target], 11, 30) != {}
