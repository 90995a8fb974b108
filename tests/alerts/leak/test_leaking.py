"""What leaks: through the real monitor, detector and rules, told in time, once, and with its reasons."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpuagent.core.growth import Evidence, MemoryKey, Verdict
from gpuagent.core.identity import ProcessId
from gpuagent.core.snapshot import AllocatorReading, ClientReading, Snapshot
from gpuagent.core.units import GIB
from gpuagent_alerts.alert import Alert
from gpuagent_alerts.leak.sensor import LeakDetection
from gpuagent_alerts.states.machine import Change
from gpuagent_alerts.store.database import Store
from gpuagent_simulator.abi import Code
from gpuagent_simulator.faults import FaultKind
from tests.alerts.leak.node import Node, node, run
from tests.alerts.notify.parts import Desk
from tests.fakes.rig import BOOT_ID

pytestmark = pytest.mark.slow

PID = 5_000_000
MIB = 2**20
LEAK = "{shape: ramp, start: 20GiB, rate: 8MiB, after: 10m}"
"""60 % of what is free then has gone after 57 min; it is told within the window that shows it."""
TOLD = 4400.0
"""By this time, in seconds, it has been."""


def scenario(memory: str = LEAK, *, base_used: str = "400MiB", more: str = "") -> str:
    """One process on one GPU of 80 GiB."""
    return f"""\
gpus:
  - model: h100
    memory: {{total: 80GiB, base_used: {base_used}}}
    processes:
      - {{name: serve, user: ml, cgroup: /system.slice/serve.service, pid: {PID}, age: 0s, memory: {memory}}}
{more}
"""


def test_a_leak_is_told_once_with_its_reasons() -> None:
    """LEAK-02: who, since when, how fast, how long it will take, why; with the labels that remedies ask for."""

    async def test() -> None:
        async with node(scenario()) as stage:
            await stage.until(TOLD)
            told = stage.alerts("GpuProcessMemoryLeak")
            assert 3000 < told[0].seconds < TOLD
            labels = told[-1].alert.labels
            assert labels["pid"] == str(PID)
            assert (labels["unit"], labels["user"], labels["process"]) == ("serve.service", "ml", "serve")
            assert "rose in 8 of 8 parts" in told[-1].alert.annotations["reasons"]
            assert "has been leaking 28.1 GiB/h" in told[-1].alert.annotations["summary"]
            growth = stage.growth(PID)
            assert growth is not None
            assert growth.verdict is Verdict.LEAKING
            assert growth.slope is not None
            assert growth.slope.value == pytest.approx(8 * MIB, rel=0.02)
            began = stage.stage.clock.wall() - stage.seconds + 600
            assert growth.since_seconds == pytest.approx(began, abs=900)
            left = (80 * GIB - stage.used_bytes()) / (8 * MIB)
            assert growth.exhaustion is not None
            assert growth.exhaustion.value == pytest.approx(left, rel=0.1)
            assert stage.verdicts_of(PID) == [Verdict.LEARNING, Verdict.STEADY, Verdict.GROWING, Verdict.LEAKING]

    run(test)


_STAIRS_SECONDS = 11_400


def _stairs(*more: str) -> str:
    """Two steady hours, and then 10 GiB every 10 min: four steps will do for one criterion, six for a stricter one."""
    points = ["[0, 10GiB]", *(f"[{7200 + 600 * n}, {20 + 10 * n}GiB]" for n in range(6)), *more]
    return f"{{shape: steps, points: [{', '.join(points)}]}}"


def test_stricter_evidence_is_told_and_ends_nothing() -> None:
    """LEAK-02: an alert for each criterion that is met, none twice, and none ends before the leak does."""

    async def test() -> None:
        async with node(scenario(_stairs())) as stage:
            await stage.until(_STAIRS_SECONDS, 20)
            told = [one.alert.labels["evidence"] for one in stage.alerts("GpuProcessMemoryLeak")]
            assert told == ["balanced", "strict", "confirmed"]
            assert stage.alerts("GpuProcessMemoryLeak", Change.ENDED) == []

    run(test)


def test_a_person_hears_of_a_leak_in_one_place() -> None:
    """LEAK-02: one message as it begins, none for stricter evidence of the same leak, and one end."""
    desk, firing, heard = Desk(), dict[str, Alert](), list[str]()

    async def test() -> None:
        async with node(scenario(_stairs(f"[{_STAIRS_SECONDS}, 10GiB]"))) as stage:
            while stage.seconds < _STAIRS_SECONDS + 1200:
                known = len(stage.told)
                await stage.tick(20)
                news = [one.alert for one in stage.told[known:] if one.alert.name == "GpuProcessMemoryLeak"]
                firing.update((one.fingerprint, one) for one in news)
                heard.extend(desk.tick(*firing.values(), seconds=20))

    run(test)
    assert [(one.labels["evidence"], one.ends_at is None) for one in firing.values()] == [
        ("balanced", False),
        ("strict", False),
        ("confirmed", False),
    ]
    # The end tells of the evidence that joined meanwhile and made nothing worse.
    assert heard == ["hook: +GpuProcessMemoryLeak/0", "hook:" + 3 * " -GpuProcessMemoryLeak/0"]


def test_a_leak_that_ends() -> None:
    """LEAK-01: what was called a leak and gives its memory back is told to have ended, and called levelled off."""
    points = [(t, 20 * 1024 + (8 * max(0, t - 600) if t < 4400 else 0)) for t in range(0, 6000, 20)]
    memory = f"{{shape: steps, points: [{', '.join(f'[{t}, {mib}MiB]' for t, mib in points)}]}}"

    async def test() -> None:
        async with node(scenario(memory)) as stage:
            await stage.until(TOLD, 20)
            assert stage.alerts("GpuProcessMemoryLeak")
            await stage.until(5400, 20)
            assert len(stage.alerts("GpuProcessMemoryLeak", Change.ENDED)) == len(stage.alerts("GpuProcessMemoryLeak"))
            assert stage.verdicts_of(PID)[-1] is Verdict.LEVELLED_OFF

    run(test)


def test_each_gpu_by_itself() -> None:
    """LEAK-02: of four GPUs with a process each the one that leaks is named, and no other."""
    more = "\n".join(
        f"  - {{model: h100, processes: [{{name: ok{n}, user: ml, pid: {PID + n}, memory: 30GiB}}]}}" for n in (1, 2, 3)
    )

    async def test() -> None:
        async with node(scenario(more=more)) as stage:
            await stage.until(TOLD, 20)
            told = {(one.alert.labels["gpu"], one.alert.labels["pid"]) for one in stage.alerts("GpuProcessMemoryLeak")}
            assert told == {("0", str(PID))}
            assert stage.alerts("GpuMemoryLeak") == []
            assert stage.snapshot is not None
            verdicts = [stage.snapshot.growth[MemoryKey(gpu.identity.uuid)].verdict for gpu in stage.snapshot.gpus]
            assert verdicts == [Verdict.LEAKING, Verdict.STEADY, Verdict.STEADY, Verdict.STEADY]

    run(test)


def test_memory_that_nobody_owns() -> None:
    """LEAK-02: it leaks beside a process that holds still: the GPU is told of, and no process."""

    async def test() -> None:
        async with node(scenario("20GiB", base_used="{shape: ramp, start: 1GiB, rate: 8MiB}")) as stage:
            await stage.until(5000, 20)
            assert len(stage.alerts("GpuMemoryLeak")) == 1
            assert "memory of no process" in stage.alerts("GpuMemoryLeak")[0].alert.annotations["reasons"]
            assert stage.alerts("GpuProcessMemoryLeak") == []

    run(test)


def test_memory_that_nobody_owns_in_a_mig_instance() -> None:
    """LEAK-02: it fills the instance, whatever its GPU has left: every word of it names that, and has its forecast."""
    text = """\
gpus:
  - model: h100
    mig:
      - gpu_instance: 1
        compute_instance: 0
        profile: 3g.40gb
        memory: 40192MiB
        slices: 3
        base_used: {shape: ramp, start: 100MiB, rate: 10MiB, after: 12m, cap: 37GiB}
      - {gpu_instance: 2, compute_instance: 0, profile: 2g.20gb, memory: 19968MiB, slices: 2, multiprocessors: 32}
"""

    async def test() -> None:
        async with node(text) as stage:
            await stage.until(3900, 20)
            told = {(one.alert.name, one.alert.labels.get("gpu_instance_id", "")) for one in stage.told}
            assert told == {
                ("GpuMemoryUnattributed", ""), ("GpuMemoryLeak", ""), ("GpuMemoryExhaustionSoon", "1")
            }  # fmt: skip
            incident = stage.told_of()[-1]
            pace, left = "growing 3[45].[0-9] GiB/h", "full in 1[0-9] min"
            assert re.search(f"GPU 0 MIG 1: memory of no process {pace}, {left}", incident.headline), incident.headline
            whole = stage.growth(0)
            assert whole is not None
            assert (whole.verdict, whole.exhaustion) == (Verdict.LEAKING, None)
            assert len(stage.told_of()) == 2, "and the watchdog's"
            await stage.until(4800, 20)
            assert stage.told_of()[-1].headline.endswith("memory of no process grew 34.2 GiB/h and has stopped")

    run(test)


@pytest.mark.parametrize("stays", ["-60GiB", "-29GiB"], ids=["nothing stays", "some stays"])
def test_memory_that_nobody_owns_comes_back(stays: str) -> None:
    """LEAK-02: its leak ends once it is gone, also where exactly nothing of it stays."""
    grows = "{shape: ramp, start: 1GiB, rate: 10MiB, cap: 31GiB}"
    base = f"{{shape: sum, of: [{grows}, {{shape: steps, points: [[0s, 0], [4500s, {stays}]]}}]}}"

    async def test() -> None:
        async with node(scenario("20GiB", base_used=base)) as stage:
            await stage.until(4500, 20)
            assert len(stage.alerts("GpuMemoryLeak")) == 1
            await stage.until(4900, 20)
            assert len(stage.alerts("GpuMemoryLeak", Change.ENDED)) == 1
            whole = stage.growth(0)
            assert whole is not None
            assert whole.reasons[0].startswith("it gave back")

    run(test)


@pytest.mark.parametrize("lives", [1, 4])
def test_a_pid_that_is_used_again(lives: int) -> None:
    """LEAK-03: a quarter of a leak of each of four processes is no leak of any, though the number is the same."""

    async def test() -> None:
        async with node(scenario("{shape: ramp, start: 20GiB, rate: 8MiB}")) as stage:
            while stage.seconds < TOLD:
                measured = await stage.stage.tick(20)
                stage.judge(_with_start(measured, 1000 + int(stage.seconds / TOLD * lives)))
            assert bool(stage.alerts("GpuProcessMemoryLeak")) is (lives == 1)
            assert stage.growth(PID) is not None

    run(test)


def _with_start(measured: Snapshot, ticks: int) -> Snapshot:
    """Every process has this start time: as if the kernel had given the pid away again."""
    processes = tuple(
        one._replace(info=replace(one.info, id=ProcessId(BOOT_ID, one.pid, ticks))) if one.info else one
        for one in measured.processes
    )
    return replace(measured, processes=processes)


def test_a_gap() -> None:
    """LEAK-03: time without readings makes no slope and no reset: nothing is said in it, and the leak is told later."""

    async def test() -> None:
        async with node(scenario()) as stage:
            await stage.until(2000, 20)
            assert stage.growth(PID) is not None
            stage.stage.fail(
                FaultKind.ERROR, gpu=0, calls=("nvmlDeviceGetComputeRunningProcesses*",), code=Code.UNKNOWN
            )
            await stage.until(2300, 20)
            assert stage.snapshot is not None
            assert stage.snapshot.growth == {}
            await stage.stage.mend()
            await stage.until(4700, 20)
            assert stage.alerts("GpuProcessMemoryLeak")[0].seconds > 3000
            assert stage.verdicts_of(PID)[-1] is Verdict.LEAKING

    run(test)


def test_a_gpu_that_is_blind_while_it_leaks() -> None:
    """LEAK-03: a call hangs for ten minutes: nothing is said of the leak, its alert stays, and no other comes."""

    async def test() -> None:
        async with node(scenario()) as stage:
            await stage.until(TOLD, 20)
            told = len(stage.told)
            assert stage.alerts("GpuProcessMemoryLeak")
            stage.stage.fail(FaultKind.HANG, gpu=0, calls=("nvmlDeviceGetMemoryInfo_v2",))
            for _ in range(10):
                assert stage.judge(await stage.stage.hasty_tick(60, well=())).growth == {}
            await stage.stage.mend()
            await stage.until(5300, 20)
            assert stage.verdicts_of(PID)[-1] is Verdict.LEAKING
            news = [one.alert for one in stage.told[told:]]
            more = {alert.name for alert in news if alert.labels.get("evidence") != Evidence.CONFIRMED}
            assert more <= {"GpuMonitorBlind", "GpuMemoryExhaustionSoon"}
            assert stage.alerts("GpuProcessMemoryLeak", Change.ENDED) == []

    run(test)


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "forgotten"])
def test_the_agent_is_restarted_in_the_middle(kept: bool, tmp_path: Path) -> None:
    """LEAK-03: an upgrade half-way costs a slow leak no time; without its history, it would."""

    async def test() -> None:
        store = Store(tmp_path / "state.db")
        async with node(scenario(), store=store) as stage:
            await stage.until(3000, 20)
            await stage.leaks.close()
            store.close()
            again = Store(tmp_path / "state.db") if kept else None
            stage.leaks = LeakDetection("balanced", stage.stage.clock, store=again, boot_id=BOOT_ID)
            stage.leaks.open()
            await stage.until(TOLD, 20)
            assert bool(stage.alerts("GpuProcessMemoryLeak")) is kept
            if again is not None:
                again.close()

    run(test)


def test_a_restart_while_it_leaks(tmp_path: Path) -> None:
    """LEAK-03: the next agent says so at once, by the same criteria: the alert neither ends nor comes twice."""

    async def test() -> None:
        store = Store(tmp_path / "state.db")
        async with node(scenario(), store=store) as stage:
            await stage.until(TOLD, 20)
            before, told = stage.growth(PID), len(stage.alerts("GpuProcessMemoryLeak"))
            assert before is not None
            assert before.verdict is Verdict.LEAKING
            await stage.leaks.close()
            stage.leaks = LeakDetection("balanced", stage.stage.clock, store=store, boot_id=BOOT_ID)
            stage.leaks.open()
            await stage.tick(10)
            after = stage.growth(PID)
            assert after is not None
            assert (after.verdict, after.evidence_told) == (Verdict.LEAKING, before.evidence_told)
            assert after.reasons == before.reasons
            await stage.until(4700, 20)
            again = stage.alerts("GpuProcessMemoryLeak")[told:]
            assert [one.alert.labels["evidence"] for one in again] in ([], [Evidence.CONFIRMED])
            assert stage.alerts("GpuProcessMemoryLeak", Change.ENDED) == []
            store.close()

    run(test)


def test_a_cache_is_called_a_cache() -> None:
    """LEAK-01: the driver's figure rises like a leak's, the tensors do not: cached, and nobody is told of a leak."""

    async def test() -> None:
        async with node(scenario()) as stage:
            await _with_client(stage, 5000, allocated=lambda used: 12 * GIB)
            assert stage.alerts("GpuProcessMemoryLeak") == []
            assert stage.verdicts_of(PID)[-1] is Verdict.CACHED

    run(test)


def test_tensors_that_leak() -> None:
    """LEAK-02: what the allocator itself tells is the strongest evidence, and the alert's only one."""

    async def test() -> None:
        async with node(scenario()) as stage:
            await _with_client(stage, TOLD, allocated=lambda used: used - 2 * GIB)
            told = stage.alerts("GpuProcessMemoryLeak")
            assert [one.alert.labels["evidence"] for one in told] == [Evidence.ALLOCATOR]

    run(test)


async def _with_client(stage: Node, seconds: float, allocated: Callable[[int], int]) -> None:
    """Let the process tell what its allocator has."""
    while stage.seconds < seconds:
        measured = await stage.stage.tick(20)
        clients = {}
        for one in measured.processes:
            assert one.info is not None
            assert one.used_bytes is not None
            reading = AllocatorReading(allocated_bytes=allocated(one.used_bytes), reserved_bytes=one.used_bytes - GIB)
            clients[one.pid] = ClientReading(one.info.id, "serve", devices={one.gpu_uuid: reading})
        stage.judge(replace(measured, clients=clients))
