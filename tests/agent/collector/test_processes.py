"""Processes of all GPUs, joined with /proc, over a monitor and a simulated node."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from gpuagent.core.metrics.series import series
from gpuagent.core.snapshot import GpuState, ProcessInfo, ProcessState
from gpuagent.driver.nvml.driver import Collector
from gpuagent.procfs.table import ProcessTable
from gpuagent_simulator.faults import FaultKind
from tests.fakes.rig import Rig, at, failing, rig

GIB = 2**30
TOP = 8


class AskedFor:
    """Remembers which pids it was asked about; knows none of them."""

    host_pid_namespace = True
    processes_seen = 0

    def __init__(self) -> None:
        self.pids: list[set[int]] = []

    def resolve(self, pids: Iterable[int]) -> dict[int, ProcessInfo | None]:
        self.pids.append(set(pids))
        return dict.fromkeys(pids)

    def refresh(self) -> None:
        """Nothing to do."""

    def runs(self) -> tuple[()]:
        """Nobody else is asked."""
        return ()


def test_a_dead_process() -> None:
    """PROC-01: what the driver lists and /proc does not know, or as a zombie, is dead memory."""

    async def run() -> None:
        async with rig("dead-process", events=False) as stage:
            first = await stage.tick()
            snapshot = await stage.tick(10)

            assert [process.is_zombie for process in first.processes if process.state is ProcessState.DEAD] == [True]
            assert sorted(process.state for process in snapshot.processes) == ["dead", "dead", "live"]
            assert stage.value("gpuagent_gpu_memory_dead_processes_bytes", gpu="0") == 43 * GIB
            assert stage.value("gpuagent_gpu_memory_processes_bytes", gpu="0") == 5 * GIB
            assert stage.value("gpuagent_dead_processes", gpu="0") == 2
            assert stage.value("gpuagent_dead_process_memory_used_bytes", user="alice") == 38 * GIB
            assert stage.value("gpuagent_dead_process_memory_used_bytes", user="bob") == 5 * GIB
            assert stage.value("gpuagent_process_zombie", process="[dead]") == 1

    asyncio.run(run())


def test_the_sum_over_processes_is_below_what_is_used() -> None:
    """NUM-11: managed memory belongs to no process, and is told as unattributed."""

    async def run() -> None:
        scenario = "gpus:\n  - {model: h100, memory: {base_used: 5GiB}, processes: [{name: a, memory: 1GiB}]}\n"
        async with rig(scenario, events=False) as stage:
            await stage.tick()

            assert stage.value("gpuagent_gpu_memory_unattributed_bytes") == 5 * GIB
            assert stage.value("gpuagent_gpu_memory_used_bytes") == 6 * GIB

    asyncio.run(run())


def test_one_pid_on_two_gpus() -> None:
    """NUM-08: has a row for each of them, though it is one process."""

    async def run() -> None:
        gpu = "{model: h100, processes: [{name: a, pid: 4200000, memory: 1GiB, kind: CG}]}"
        async with rig(f"gpus:\n  - {gpu}\n  - {gpu}\n", events=False) as stage:
            snapshot = await stage.tick()

            assert [(p.gpu_index, p.pid, p.kinds) for p in snapshot.processes] == [
                (0, 4200000, "CG"),
                (1, 4200000, "CG"),
            ]
            assert snapshot.processes_seen == 1
            assert stage.value("gpuagent_gpu_memory_processes_bytes", gpu="0") == GIB

    asyncio.run(run())


def test_another_pid_namespace() -> None:
    """PROC-04: processes are shown with their memory and as nobody's; the node says that it cannot tell."""

    async def run() -> None:
        async with rig("healthy", host_pid_namespace=False, events=False) as stage:
            snapshot = await stage.tick()

            assert {process.state for process in snapshot.processes} == {ProcessState.UNRESOLVED}
            assert {process.info for process in snapshot.processes} == {None}
            assert stage.value("gpuagent_host_pid_namespace") == 0
            assert stage.value("gpuagent_dead_processes", gpu="0") == 0
            assert stage.value("gpuagent_process_memory_used_bytes", process="[unresolved]") is not None
            assert stage.value("gpuagent_pci_gpus") is None

    asyncio.run(run())


def test_memory_that_the_driver_does_not_tell() -> None:
    """NUM-01: the process is there, its memory is not: neither 0 nor 1.8e19."""

    async def run() -> None:
        async with rig("healthy", events=False) as stage:
            stage.fail(FaultKind.UNAVAILABLE_MEMORY)
            snapshot = await stage.tick()

            assert {process.used_bytes for process in snapshot.processes} == {None}
            assert stage.value("gpuagent_process_memory_used_bytes") is None
            assert stage.value("gpuagent_process_info", process="whisper-server") == 1
            assert at(snapshot, 0).state is GpuState.OK
            assert failing(at(snapshot, 0)) == {}

    asyncio.run(run())


def test_unified_memory() -> None:
    """NUM-05: its memory is the machine's: what can still be given out is free, and the page cache is no use of it."""

    async def run() -> None:
        async with rig("unified-memory", events=False) as stage:
            reading = at(await stage.tick(), 0)

            assert reading.state is GpuState.OK
            assert reading.identity.unified_memory
            assert reading.memory is not None
            assert reading.memory.total_bytes == 128 * GIB
            assert stage.value("gpuagent_gpu_memory_free_bytes") == stage.value("gpuagent_host_memory_available_bytes")
            assert reading.reconciliation is not None
            assert (
                reading.reconciliation.processes_bytes + reading.reconciliation.host_bytes == reading.memory.used_bytes
            )
            assert stage.value("gpuagent_gpu_memory_host_bytes") == reading.reconciliation.host_bytes
            assert stage.value("gpuagent_host_memory_pressure_ratio", waiting="some") == 0
            assert stage.value("gpuagent_gpu_info", memory_kind="unified") == 1
            assert stage.value("gpuagent_process_memory_used_bytes", process="ollama") == 63 * GIB
            assert stage.value("gpuagent_gpu_memory_unattributed_bytes") == 0
            assert failing(reading) == {}

    asyncio.run(run())


def test_memory_of_a_machine_whose_gpus_have_their_own() -> None:
    """NUM-05: is for an exporter of the machine: there is none of it."""

    async def run() -> None:
        async with rig("healthy", events=False) as stage:
            await stage.tick()

            assert not any(name.startswith("gpuagent_host_memory") for name in stage.names())

    asyncio.run(run())


def test_a_lost_gpu_is_not_taken_for_unified_memory() -> None:
    """NUM-05: only NOT_SUPPORTED to every form of the question means that."""

    async def run() -> None:
        async with rig("healthy", events=False) as stage:
            stage.fail(FaultKind.LOST, gpu=0)
            await stage.tick()

            assert stage.value("gpuagent_gpu_info", gpu="0", memory_kind="unified") is None

    asyncio.run(run())


def test_mps_clients() -> None:
    """PROC-08: each client of an MPS server is a process of its own, with its kind."""

    async def run() -> None:
        gpu = "{model: h100, processes: [{name: client, count: 2, kind: M, memory: 1GiB}]}"
        async with rig(f"gpus:\n  - {gpu}\n", events=False) as stage:
            snapshot = await stage.tick()

            assert [(process.kinds, process.used_bytes) for process in snapshot.processes] == [("M", GIB)] * 2
            assert stage.value("gpuagent_gpu_memory_processes_bytes") == 2 * GIB

    asyncio.run(run())


def test_mig_instances_count_once() -> None:
    """PROC-09: compute instances share the memory of their GPU instance; utilization of the parent is absent."""

    async def run() -> None:
        async with rig("mig", events=False) as stage:
            await stage.tick()
            snapshot = await stage.tick(slow=True)
            names = {
                family.name: [dict(zip(family.labels, sample.labels, strict=True)) for sample in samples]
                for family, samples in series(snapshot, stage.clock.now())
            }

            assert [x["gpu_instance_id"] for x in names["gpuagent_mig_memory_used_bytes"]] == ["9", "3", "1"]
            assert [x["profile"] for x in names["gpuagent_mig_memory_used_bytes"]] == ["1g.10gb", "2g.20gb", "3g.40gb"]
            assert len(names["gpuagent_mig_info"]) == 4
            assert stage.value("gpuagent_mig_memory_used_bytes", gpu_instance_id="1") == 24 * GIB
            assert stage.value("gpuagent_gpu_memory_processes_bytes", gpu="0") == 42 * GIB
            assert stage.value("gpuagent_gpu_utilization_ratio", gpu="0") is None
            assert stage.value("gpuagent_mig_profile_sm_active_ratio", gpu_instance_id="9") is not None
            assert (
                stage.value("gpuagent_process_memory_used_bytes", process="rerank", compute_instance_id="1") == 6 * GIB
            )

    asyncio.run(run())


def test_mig_reconfigured() -> None:
    """PROC-10: an instance that is destroyed takes its series along; one of the same id is another."""

    async def run() -> None:
        gpu = """{model: h100, mig: [
          {gpu_instance: 3, profile: 2g.20gb, memory: 20GiB, uuid: MIG-old, until: 20s},
          {gpu_instance: 3, profile: 2g.20gb, memory: 20GiB, uuid: MIG-new, from: 40s}]}"""
        async with rig(f"gpus:\n  - {gpu}\n", events=False) as stage:
            readings = [at(await stage.tick(8, slow=True), 0) for _ in range(6)]

            uuids = [[mig.uuid for mig in reading.mig] for reading in readings]
            assert uuids == [["MIG-old"], ["MIG-old"], [], [], ["MIG-new"], ["MIG-new"]]
            assert {reading.state for reading in readings} == {GpuState.OK}
            assert stage.value("gpuagent_mig_info", mig_uuid="MIG-old") is None
            # A profile is the difference of two samples: the first of the new one has none to be compared with.
            profiled = [mig.profile_metrics is not None for reading in readings for mig in reading.mig]
            assert profiled == [False, True, False, True]

    asyncio.run(run())


@pytest.mark.exhaustive
@pytest.mark.slow
def test_ten_thousand_processes_come_and_go() -> None:
    """EXP-03: the series are bounded, what is gone is gone from the next scrape, and nothing is kept of it."""
    scenario = """
gpus:
  - model: h100
    processes: [{name: "job-{n}", memory: 1MiB, utilization: {sm: 1}, count: 10000, every: 0.02s, life: 2s}]
"""

    async def run() -> None:
        async with rig(scenario, events=False) as stage:
            lengths = set()
            for tick in range(200):
                snapshot = await stage.tick(slow=tick % 15 == 0)
                listed = {str(process.pid) for process in snapshot.processes}
                shown = pids_shown(stage)
                assert shown <= {*listed, ""}
                if 5 < tick < 195:
                    lengths.add((len(shown), len(snapshot.processes)))

            assert lengths == {(TOP + 1, 100)}
            assert snapshot.processes_seen > 9_900
            assert set(sizes(stage).values()) == {len(snapshot.processes)}

    asyncio.run(run())


def pids_shown(stage: Rig) -> set[str]:
    """Pids in the series of process memory, as `/metrics` bounds them; "" is the sum of the rest."""
    return {
        dict(zip(family.labels, sample.labels, strict=True))["pid"] or ""
        for family, samples in series(stage.monitor.snapshot, stage.clock.now(), top=TOP)
        if family.name == "gpuagent_process_memory_used_bytes"
        for sample in samples
    }


def sizes(stage: Rig) -> dict[str, int]:
    """What is kept of processes between two ticks."""
    table = stage.monitor._processes
    collector = stage.monitor._pool[0]._collector
    assert isinstance(table, ProcessTable)
    assert isinstance(collector, Collector)
    (samples,) = (state for state in collector.device._states.values() if hasattr(state, "newest"))
    return {
        "entries": len(table._entries),
        "listed": sum(len(pids) for pids in stage.monitor._pids.values()),
        "samples": len(samples.newest),
    }


def test_a_list_that_cannot_be_read_has_not_become_empty() -> None:
    """PROC-01: a dead pid is still asked for while its GPU is blind: it must not come back as a stranger's."""
    asked = AskedFor()

    async def run() -> None:
        async with rig("dead-process", processes=asked, events=False) as stage:
            first = await stage.tick()
            stage.fail(FaultKind.HANG, gpu=0)
            await stage.hasty_tick(5, well=(1,))

            assert {process.pid for process in first.processes} == asked.pids[-1] != set()

    asyncio.run(run())


def test_names_that_are_not_utf_8() -> None:
    """EXP-04: neither a GPU's name nor a process' costs the scrape."""

    async def run() -> None:
        gpu = r"{model: h100, processes: [{name: 'tr\xffin', memory: 1GiB}]}"
        async with rig(f"gpus:\n  - {gpu}\n", events=False) as stage:
            stage.fail(FaultKind.NON_UTF8_NAME)
            snapshot = await stage.tick()

            assert at(snapshot, 0).state is GpuState.OK
            assert at(snapshot, 0).identity.name == r"NVIDIA \xff\xfe\x80"
            (process,) = snapshot.processes
            assert process.info is not None
            assert process.info.name.encode()

    asyncio.run(run())
