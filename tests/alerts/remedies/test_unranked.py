"""Memory that no process of a ranking is known to hold: what is not told may be any amount."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from gpuagent.core.hardware import Memory, MigInstance
from gpuagent.core.identity import NO_INSTANCE
from gpuagent.core.snapshot import ProcessReading, ProcessState, Reconciliation, Snapshot
from gpuagent_alerts.remedies.snapshot_targets import unranked_memory
from tests.fakes.snapshots import full_snapshot

GIB = 2**30


def known(snapshot: Snapshot) -> ProcessReading:
    """A process of which everything is known."""
    return next(each for each in snapshot.processes if each.info is not None and each.used_bytes)


def with_gpus(snapshot: Snapshot, **changes: Any) -> Snapshot:
    """The snapshot with the same changes of every GPU."""
    return replace(snapshot, gpus=tuple(replace(gpu, **changes) for gpu in snapshot.gpus))


@pytest.mark.parametrize(
    ("changes", "whole", "expected"),
    [
        ({}, True, (5.0, False)),
        ({}, False, (0.0, False)),
        ({"state": ProcessState.DEAD, "info": None}, True, (12.0, True)),
        ({"state": ProcessState.DEAD, "info": None}, False, (0.0, False)),
        ({"holder_unproven": True}, True, (12.0, True)),
        ({"holder_unproven": True}, False, (0.0, False)),
        ({"used_bytes": None}, True, (math.inf, True)),
        ({"used_bytes": None}, False, (math.inf, True)),
    ],
)
def test_memory_that_no_ranking_knows(changes: dict[str, Any], whole: bool, expected: tuple[float, bool]) -> None:
    """KILL-09: what the dead hold and what nobody is listed for count; an amount that is not told may be any."""
    snapshot = full_snapshot()
    identity = replace(snapshot.gpus[0].identity, mig_enabled=False)
    snapshot = with_gpus(snapshot, reconciliation=Reconciliation(7, 0, 5), identity=identity, mig=())
    process = known(snapshot)._replace(used_bytes=7)
    snapshot = replace(snapshot, processes=(process._replace(pid=1, **changes),))
    assert unranked_memory(snapshot, process.gpu_uuid, "", whole=whole) == expected


def test_a_gpu_that_does_not_tell_what_is_used() -> None:
    """KILL-09: where used memory is not told, or the GPU is not read, nobody's memory may be any amount."""
    snapshot = with_gpus(full_snapshot(), reconciliation=None, mig=())
    uuid = known(snapshot).gpu_uuid
    assert unranked_memory(snapshot, uuid, "", whole=True)[0] == math.inf
    assert unranked_memory(snapshot, uuid, "", whole=False)[0] == 0
    assert unranked_memory(replace(snapshot, gpus=()), uuid, "", whole=True)[0] == math.inf


@pytest.mark.parametrize(
    ("used", "listed", "expected"),
    [
        # 16 GiB of instance 1 are on no list.
        ({1: 19, 2: 9}, {1: 3, 2: 9}, {"1": 16, "2": 0, "": 16}),
        # They are listed without their instance: the process may be in any.
        ({1: 19, 2: 9}, {1: 3, 2: 9, None: 16}, {"1": 16, "2": 16, "": 0}),
        # Sums of one instance do not hide what is missing in the other.
        ({1: 19, 2: 9}, {1: 3, 2: 20}, {"1": 16, "2": 0, "": 16}),
        ({1: None, 2: 9}, {1: 3, 2: 9}, {"1": math.inf, "2": 0, "": math.inf}),
        ({2: 9}, {1: 3, 2: 9}, {"1": math.inf, "2": 0, "": math.inf}),
        ({}, {1: 3}, {"1": math.inf, "": math.inf}),
    ],
)
def test_memory_of_a_gpu_instance(
    used: dict[int, int | None], listed: dict[int | None, int], expected: dict[str, float]
) -> None:
    """PROC-09: each MIG instance is reconciled by itself: what nobody is listed for, and whose instance is not told."""
    snapshot = full_snapshot()
    process = known(snapshot)
    mig = tuple(
        MigInstance(f"MIG-{number}", number, 0, "3g.20gb", Memory(used_bytes=None if gib is None else gib * GIB))
        for number, gib in used.items()
    )
    identity = replace(snapshot.gpus[0].identity, mig_enabled=True)
    snapshot = with_gpus(snapshot, mig=mig, reconciliation=Reconciliation(0, 0, 0), identity=identity)
    processes = [
        process._replace(
            pid=number, used_bytes=gib * GIB, gpu_instance_id=NO_INSTANCE if instance is None else instance
        )
        for number, (instance, gib) in enumerate(listed.items(), 1)
    ]
    snapshot = replace(snapshot, processes=tuple(processes))
    found = {
        instance: unranked_memory(snapshot, process.gpu_uuid, instance, whole=True)[0] / GIB for instance in expected
    }
    assert found == expected


def test_a_number_without_its_instance_may_be_the_newest() -> None:
    """PROC-09: while a process is listed without its GPU instance, nobody is known to be the newest in any."""
    snapshot = full_snapshot()
    process = known(snapshot)._replace(gpu_instance_id=3)
    untold = known(snapshot)._replace(pid=process.pid + 1)
    assert not unranked_memory(replace(snapshot, processes=(process,)), process.gpu_uuid, "3", whole=True)[1]
    assert unranked_memory(replace(snapshot, processes=(process, untold)), process.gpu_uuid, "3", whole=True)[1]
