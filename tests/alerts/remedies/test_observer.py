"""What a remedy sees of snapshots and rules: who belongs together, and when there is nothing to act on."""

from __future__ import annotations

import asyncio
import dataclasses
from dataclasses import replace
from typing import Any

import pytest

from gpuagent.core.clock import ManualClock
from gpuagent.core.snapshot import GpuReading, GpuState, ProcessReading, Snapshot
from gpuagent_alerts.alert import Alert, Status
from gpuagent_alerts.remedies.alert_evaluation import AlertEvaluation, ValueHistory
from gpuagent_alerts.remedies.observation import Condition, Observation
from gpuagent_alerts.remedies.observer import SnapshotObserver
from gpuagent_alerts.remedies.snapshot_targets import all_targets, members, target_of, targets_on
from gpuagent_alerts.remedies.target import Target
from tests.fakes.snapshots import full_snapshot

ALERT = Alert({"alertname": "Full"}, {}, Status.FIRING, 1.7e9, value=2.0)


def known(snapshot: Snapshot) -> ProcessReading:
    """A process of which everything is known."""
    return next(each for each in snapshot.processes if each.info is not None and each.used_bytes)


def healthy() -> tuple[Snapshot, Target]:
    """A snapshot whose GPUs can be read, and a process on the first of them."""
    snapshot = full_snapshot()
    gpus = tuple(replace(gpu, state=GpuState.OK, processes_known=True) for gpu in snapshot.gpus)
    target = target_of(known(snapshot), None)
    assert target is not None
    return replace(snapshot, gpus=gpus), target


def evaluation(**changes: object) -> AlertEvaluation:
    """True, on data of this moment."""
    made = AlertEvaluation(ALERT, "x", holds=True, measured_seconds=1e9, since_seconds=0.0)
    return made._replace(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fires", "condition"),
    [
        ([evaluation()], Condition.HOLDS),
        ([evaluation(for_seconds=10.0, held_seconds=10.0)], Condition.HOLDS),
        ([evaluation(for_seconds=10.0, held_seconds=9.0)], Condition.UNKNOWN),
        ([evaluation(holds=False, for_seconds=10.0)], Condition.OVER),
        ([evaluation(holds=False)], Condition.OVER),
        ([evaluation(measured=False)], Condition.UNKNOWN),
        ([evaluation(holds=False, measured=False)], Condition.UNKNOWN),
        ([], Condition.OVER),
    ],
)
def test_the_reason_to_act(fires: list[AlertEvaluation], condition: Condition) -> None:
    """KILL-02: an alert that is only kept is over, one of missing data or too short is in doubt: none is acted on."""

    async def story() -> None:
        snapshot, target = healthy()
        observer = SnapshotObserver(ManualClock())
        await observer.update_snapshot(snapshot)
        await observer.update_alerts(fires)
        assert observer.observe(target, ALERT.fingerprint).condition is condition
        assert observer.observe(target, "").condition is Condition.HOLDS  # a person asked
        blind = replace(snapshot, gpus=tuple(replace(gpu, state=GpuState.BLIND) for gpu in snapshot.gpus))
        await observer.update_snapshot(blind)
        assert observer.observe(target, "").condition is Condition.UNKNOWN

    asyncio.run(story())


def test_old_readings_are_not_waited_for_in_vain() -> None:
    """A reading that is no newer than what was done is none."""

    async def story() -> None:
        snapshot, target = healthy()
        observer = SnapshotObserver(ManualClock())
        await observer.update_snapshot(snapshot)
        seen = observer.observe(target, "")
        assert await observer.next_observation(target, "", seen.clock_seconds, 0.0) is None
        assert await observer.next_observation(target, "", seen.clock_seconds - 1, 0.1) is not None

    asyncio.run(story())


def on_gpu(snapshot: Snapshot, target: Target, **changes: object) -> Snapshot:
    """The snapshot with another identity for the target's GPU."""
    return replace(
        snapshot,
        gpus=tuple(
            replace(gpu, identity=replace(gpu.identity, **changes))  # type: ignore[arg-type]
            if gpu.identity.index == target.gpu_index
            else gpu
            for gpu in snapshot.gpus
        ),
    )


def look(snapshot: Snapshot, target: Target) -> Observation:
    """What a person who asked for it would see."""
    observer = SnapshotObserver(ManualClock())
    asyncio.run(observer.update_snapshot(snapshot))
    return observer.observe(target, "")


def test_a_gpu_is_its_uuid_and_its_address() -> None:
    """GPU-13: the UUID at another PCI address, or at two GPUs, is another GPU: unknown, and the reason names it."""
    snapshot, _ = healthy()
    target = next(iter(targets_on(snapshot, known(snapshot).gpu_uuid)))
    here = on_gpu(snapshot, target, pci_bus_id="00000000:18:00.0")
    target = replace(target, gpu_pci="00000000:18:00.0")
    moved = look(on_gpu(snapshot, target, pci_bus_id="00000000:20:00.0"), target)
    other = replace(here.gpus[0], identity=replace(here.gpus[0].identity, index=9, uuid=target.key.gpu_uuid))
    shared = look(replace(here, gpus=(*here.gpus, other)), target)

    assert look(here, target).condition is Condition.HOLDS
    assert (moved.condition, "00000000:20:00.0" in moved.reason) == (Condition.UNKNOWN, True)
    assert (shared.condition, "same UUID" in shared.reason) == (Condition.UNKNOWN, True)


def test_a_target_knows_its_gpu() -> None:
    """GPU-13: the address of the GPU on which it was measured goes with it."""
    snapshot, target = healthy()
    snapshot = on_gpu(snapshot, target, pci_bus_id="00000000:18:00.0")

    assert {each.gpu_pci for each in targets_on(snapshot, target.key.gpu_uuid)} == {"00000000:18:00.0"}


def test_an_alert_on_one_gpu_reaches_nobody_on_another() -> None:
    """GPU-13: where two GPUs share a UUID, the alert's index says which is meant, and without one nobody is."""
    snapshot, target = healthy()
    one = known(snapshot)
    twin = replace(snapshot.gpus[0], identity=replace(snapshot.gpus[0].identity, index=9, uuid=one.gpu_uuid))
    shared = replace(snapshot, gpus=(*snapshot.gpus, twin), processes=(one, one._replace(gpu_index=9)))
    found = {gpu: [each.gpu_index for each in targets_on(shared, one.gpu_uuid, gpu=gpu)] for gpu in ("9", "5", "")}

    assert found == {"9": [9], "5": [], "": []}
    assert list(targets_on(snapshot, target.key.gpu_uuid, gpu="5"))  # a driver reload has changed the index


def test_figures_that_forbid_it() -> None:
    """NUM-12: the reason of the target's GPU is handed on; while its list is withheld nothing is known of it."""
    snapshot, target = healthy()
    doubtful = replace(snapshot, gpus=tuple(replace(gpu, act_refusal="impossible") for gpu in snapshot.gpus))
    withheld = replace(doubtful, gpus=tuple(replace(gpu, processes_known=False) for gpu in doubtful.gpus), processes=())

    assert look(snapshot, target).act_refusal == ""
    assert look(doubtful, target).act_refusal == "impossible"
    assert look(withheld, target).condition is Condition.UNKNOWN
    assert "impossible" in look(withheld, target).reason
    unlisted = replace(snapshot, gpus=tuple(replace(gpu, processes_known=False) for gpu in snapshot.gpus), processes=())
    assert look(unlisted, target).reason.endswith("cannot be read (the driver gave no list of its processes)")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"processes_known": False}, "its list of processes cannot be read"),
        ({"processes_known": False, "act_refusal": "figures that cannot be true"}, "figures that cannot be true"),
        ({"state": GpuState.BLIND, "reason": "no answer"}, "no answer"),
        ({"state": GpuState.LOST}, "lost"),
        ({"state": GpuState.STARTING}, "starting"),
    ],
)
def test_a_gpu_that_was_never_listed(changes: dict[str, Any], why: str) -> None:
    """KILL-03: it is named with its reason until its list was read once; then its last good list counts."""
    snapshot, target = healthy()
    good = replace(snapshot.gpus[0], identity=replace(snapshot.gpus[0].identity, index=1, uuid="GPU-1"))
    unread = replace(snapshot, gpus=(snapshot.gpus[0], replace(good, **changes)))

    async def story() -> None:
        observer = SnapshotObserver(ManualClock())
        await observer.update_snapshot(unread)
        (gpu,) = observer.observe(target, "").unlisted_gpus
        assert gpu == (1, "GPU-1", f"GPU 1 has not been readable since the agent started ({why})")
        assert observer.unlisted_gpus() == (gpu,)
        await observer.update_snapshot(replace(snapshot, gpus=(snapshot.gpus[0], good)))
        assert observer.observe(target, "").unlisted_gpus == ()
        await observer.update_snapshot(unread)
        assert observer.observe(target, "").unlisted_gpus == ()

    asyncio.run(story())


def idle_for(snapshot: Snapshot, process: ProcessReading) -> float | None:
    """How long the process counts as idle."""
    return next(each.idle_seconds for each in all_targets(snapshot) if each.key == process.key)


def test_idle_on_every_gpu_or_not_at_all() -> None:
    """KILL-08: who waits on one GPU and works on another, or may do so where nothing can be read, is not idle."""
    snapshot, _ = healthy()
    (first,) = snapshot.gpus
    now = first.time_seconds
    second = replace(first, identity=replace(first.identity, index=1, uuid="GPU-1"))
    here = known(snapshot)._replace(
        gpu_index=first.identity.index, gpu_uuid=first.identity.uuid, idle_since_seconds=now - 600
    )
    there = here._replace(gpu_index=second.identity.index, gpu_uuid=second.identity.uuid)

    def both(other: ProcessReading | None, gpu: GpuReading = second) -> Snapshot:
        processes = (here,) if other is None else (here, other)
        return replace(snapshot, gpus=(first, gpu), processes=processes)

    assert idle_for(both(None), here) == 600
    assert idle_for(both(there._replace(idle_since_seconds=now - 60)), here) == 60
    assert idle_for(both(there._replace(idle_since_seconds=None)), here) is None
    assert idle_for(both(None, replace(second, processes_known=False)), here) is None
    assert idle_for(both(None, replace(second, state=GpuState.BLIND)), here) is None
    assert idle_for(both(None, replace(second, state=GpuState.LOST)), here) is None
    assert idle_for(both(None, replace(second, state=GpuState.GONE)), here) is None
    doubtful = both(None)
    doubtful = replace(doubtful, node=replace(doubtful.node, gpus_doubt="GPU GPU-c, index 2, is missing"))
    assert idle_for(doubtful, here) is None


def targets(*changes: dict[str, object]) -> list[Target]:
    """The same process with other numbers, one for each change; on GPU 0 unless said otherwise."""
    _, one = healthy()
    plain = replace(
        one, container_id="", unit="", slurm_job="", parent_pid=1, process_group=40, command="serve --port 1",
        proven_names=frozenset({"container", "job"}),
    )  # fmt: skip
    found = []
    for number, change in enumerate(changes, 100):
        key = plain.key._replace(pid=number, gpu_uuid=str(change.pop("gpu", "GPU-0")))
        found.append(replace(plain, id=plain.id._replace(pid=number), key=key, **change))  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize(
    ("scope", "changes", "pids"),
    [
        ("process", [{}, {"parent_pid": 100}, {"unit": "u"}], []),
        ("container", [{"container_id": "c"}, {"container_id": "c", "gpu": "GPU-1"}, {"container_id": "d"}, {}], [101]),
        ("container", [{}, {"parent_pid": 100}], []),
        # Who may choose the name of their own cgroup is nobody's companion.
        ("container", [{"container_id": "c"}, {"container_id": "c", "proven_names": frozenset()}], []),
        ("container", [{"container_id": "c", "proven_names": frozenset()}, {"container_id": "c"}], []),
        ("job", [{"slurm_job": "7"}, {"slurm_job": "7", "proven_names": frozenset({"container"})}], []),
        ("job", [{"slurm_job": "7", "proven_names": frozenset()}, {"slurm_job": "7"}], []),
        ("job", [{"slurm_job": "7"}, {"slurm_job": "7", "gpu": "GPU-1"}, {"slurm_job": "8"}, {}], [101]),
    ],
)
def test_what_falls_together(scope: str, changes: list[dict[str, object]], pids: list[int]) -> None:
    """On all GPUs, by container or job; in doubt nobody."""
    everybody = targets(*changes)
    assert [each.pid for each in members(everybody[0], everybody, scope)] == pids


def test_a_process_on_two_gpus_is_itself_on_both() -> None:
    """Its other GPU is taken as well: whatever the scope, it falls on both."""
    here, there = targets({}, {"gpu": "GPU-1"})
    there = replace(there, id=here.id)
    assert members(here, [here, there], "process") == (there,)


def test_only_the_instance_that_is_meant() -> None:
    """PROC-09: an alert about a MIG GPU instance is about its processes, and about no neighbor's."""
    snapshot = full_snapshot()
    process = known(snapshot)
    inside = process._replace(gpu_instance_id=3)
    snapshot = dataclasses.replace(snapshot, processes=(inside,))
    found = {instance: list(targets_on(snapshot, process.gpu_uuid, instance)) for instance in ("", "3", "4")}
    assert [len(found[instance]) for instance in ("", "3", "4")] == [1, 1, 0]


def test_values_over_the_window() -> None:
    """A value every ten seconds, of what fires; what has ended is forgotten."""
    window = ValueHistory()
    for second in range(31):
        window.add([evaluation(measured_seconds=float(second))])
    assert window.values(ALERT.fingerprint) == (2.0, 2.0, 2.0, 2.0)
    window.add([])
    assert window.values(ALERT.fingerprint) == ()


def test_a_decision_needs_an_evaluation_of_what_is_seen() -> None:
    """KILL-09: a reading that is newer than what the rule has seen decides nothing: it may have complied since."""

    async def story() -> None:
        snapshot, target = healthy()
        observer, clock = SnapshotObserver(ManualClock(1000.0)), 1000.0

        def at(seconds: float) -> Snapshot:
            gpus = tuple(replace(gpu, time_seconds=seconds, measured_seconds=seconds) for gpu in snapshot.gpus)
            return replace(snapshot, gpus=gpus, clock_seconds=seconds + 0.5)

        def seen(seconds: float) -> AlertEvaluation:
            read = {gpu.identity.uuid: seconds for gpu in snapshot.gpus}
            return AlertEvaluation(
                ALERT, "x", holds=True, measured_seconds=seconds + 0.5, since_seconds=0.0, read_seconds=read
            )

        async def observation(after: float) -> Observation | None:
            return await observer.next_observation(target, ALERT.fingerprint, after, 0.01)

        await observer.update_snapshot(at(clock + 1))
        await observer.update_alerts([seen(clock + 1)])
        assert await observation(clock) is not None
        # The assembly of that snapshot is later than that, its reading is not.
        assert await observation(clock + 1) is None
        await observer.update_snapshot(at(clock + 2))
        assert await observation(clock) is None
        await observer.update_alerts([seen(clock + 2)])
        found = await observation(clock)
        assert found is not None
        assert found.clock_seconds == clock + 2

    asyncio.run(story())


def test_who_falls_together_with_unknown_memory() -> None:
    """KILL-09: a member whose memory the driver does not tell is a member: it is judged like the others."""
    snapshot, _ = healthy()
    process = known(snapshot)
    assert process.info is not None
    info = replace(process.info, container_id="c" * 64, proven_names=frozenset({"container"}))
    me = process._replace(info=info)
    other_id = info.id._replace(pid=info.id.pid + 1)
    other = me._replace(pid=other_id.pid, info=replace(info, id=other_id), used_bytes=None)
    snapshot = replace(snapshot, processes=(me, other))
    chosen = target_of(me, None)
    assert chosen is not None

    async def story() -> None:
        observer = SnapshotObserver(ManualClock(1000.0))
        await observer.update_snapshot(snapshot)
        assert [each.pid for each in observer.observe(chosen, "", "container").members] == [other.pid]

    asyncio.run(story())
