"""What a remedy sees of snapshots and rules: who belongs together, and when there is nothing to act on."""

from __future__ import annotations

import asyncio
import dataclasses
from dataclasses import replace

import pytest

from gpuagent.acting.eyes import SnapshotEyes
from gpuagent.acting.targets import members, target_of, targets_on
from gpuagent.acting.window import Window
from gpuagent.clock import ManualClock
from gpuagent.reading import GpuState, ProcessReading, Snapshot
from gpuagent_alerts.alert import Alert, Status
from gpuagent_alerts.remedies.judged import Judged
from gpuagent_alerts.remedies.target import Target
from gpuagent_alerts.remedies.world import Condition
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


def judged(**changes: object) -> Judged:
    """True, on data of this moment."""
    made = Judged(ALERT, "x", holds=True, measured_seconds=1e9, since_seconds=0.0)
    return made._replace(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fires", "condition"),
    [
        ([judged()], Condition.HOLDS),
        ([judged(holds=False)], Condition.OVER),
        ([judged(measured=False)], Condition.UNKNOWN),
        ([judged(holds=False, measured=False)], Condition.UNKNOWN),
        ([], Condition.OVER),
    ],
)
def test_the_reason_to_act(fires: list[Judged], condition: Condition) -> None:
    """KILL-02: an alert that is kept firing is over; one whose data is missing is in doubt, and neither is acted on."""

    async def story() -> None:
        snapshot, target = healthy()
        eyes = SnapshotEyes(ManualClock())
        await eyes.see(snapshot)
        await eyes.judge(fires)
        assert eyes.look(target, ALERT.fingerprint).condition is condition
        assert eyes.look(target, "").condition is Condition.HOLDS  # a person asked
        blind = replace(snapshot, gpus=tuple(replace(gpu, state=GpuState.BLIND) for gpu in snapshot.gpus))
        await eyes.see(blind)
        assert eyes.look(target, "").condition is Condition.UNKNOWN

    asyncio.run(story())


def test_old_readings_are_not_waited_for_in_vain() -> None:
    """A reading that is no newer than what was done is none."""

    async def story() -> None:
        snapshot, target = healthy()
        eyes = SnapshotEyes(ManualClock())
        await eyes.see(snapshot)
        seen = eyes.look(target, "")
        assert await eyes.next_sight(target, "", seen.clock_seconds, 0.0) is None
        assert await eyes.next_sight(target, "", seen.clock_seconds - 1, 0.1) is not None

    asyncio.run(story())


def targets(*changes: dict[str, object]) -> list[Target]:
    """The same process with other numbers, one for each change; on GPU 0 unless said otherwise."""
    _, one = healthy()
    plain = replace(
        one, container_id="", unit="", slurm_job="", parent_pid=1, command="serve --port 1",
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
        # The ranks of a server, one of them with a child; and what else was started from the same shell.
        (
            "job",
            [
                {"parent_pid": 50, "command": "worker --rank 0"},
                {"parent_pid": 50, "command": "worker --rank 1", "gpu": "GPU-1"},
                {"parent_pid": 101, "command": "helper"},
                {"parent_pid": 50, "command": "another program"},
                {"parent_pid": 50, "command": "worker --rank 2", "uid": 4242},
            ],
            [101, 102],
        ),
        ("job", [{"command": "serve 1"}, {"command": "serve 2"}], []),  # children of init are nobody's family
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
    """PROC-09: an alert about a MIG GPU instance is about its processes, and about no neighbour's."""
    snapshot = full_snapshot()
    process = known(snapshot)
    inside = process._replace(gpu_instance_id=3)
    snapshot = dataclasses.replace(snapshot, processes=(inside,))
    found = {instance: list(targets_on(snapshot, process.gpu_uuid, instance)) for instance in ("", "3", "4")}
    assert [len(found[instance]) for instance in ("", "3", "4")] == [1, 1, 0]


def test_values_over_the_window() -> None:
    """A value every ten seconds, of what fires; what has ended is forgotten."""
    window = Window()
    for second in range(31):
        window.add([judged(measured_seconds=float(second))])
    assert window.values(ALERT.fingerprint) == (2.0, 2.0, 2.0, 2.0)
    window.add([])
    assert window.values(ALERT.fingerprint) == ()
