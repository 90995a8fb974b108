"""The agent over a driver that is not NVML."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from gpuagent.collector.tick import Monitor, MonitorContext
from gpuagent.core.clock import ManualClock
from gpuagent.core.metrics.series import series
from gpuagent.core.snapshot import GpuState, Snapshot
from gpuagent.procfs.table import ProcessTable
from gpuagent_simulator.node import SimulatedNode
from gpuagent_simulator.scenario import load_scenario
from tests.fakes.driver import TOTAL_BYTES, BareDriver
from tests.fakes.proc import FakeWatcher
from tests.fakes.rig import PATIENT, at, failing

GIB = 2**30


@contextmanager
def monitored(driver: BareDriver, clock: ManualClock) -> Iterator[Monitor]:
    """A monitor over this driver, with a /proc in which nothing runs."""
    node = SimulatedNode(load_scenario("no-gpus"), clock)
    table = ProcessTable(
        node.proc,
        clock,
        watch=FakeWatcher(),
        boot_id="boot",
        boot_time_seconds=node.proc.boot_time_seconds,
        host_pid_namespace=True,
    )
    try:
        yield Monitor(driver, table, clock, PATIENT, MonitorContext(boot_id="boot"))
    finally:
        node.close()


def exported(snapshot: Snapshot, now_seconds: float) -> dict[str, list[float]]:
    """Values of each metric that is exported of GPUs."""
    return {
        family.name: [sample.value for sample in samples]
        for family, samples in series(snapshot, now_seconds)
        if "gpu" in family.labels and samples
    }


def test_another_vendor() -> None:
    """What a driver tells is measured and exported; what it lacks is absent, and no failure."""
    clock = ManualClock()

    async def run() -> Snapshot:
        with monitored(BareDriver([3 * GIB, 0]), clock) as monitor:
            await monitor.tick()
            clock.advance(1)
            snapshot = await monitor.tick()
            await monitor.close()
            return snapshot

    snapshot = asyncio.run(run())
    metrics = exported(snapshot, clock.now())

    assert (snapshot.node.driver_version, snapshot.node.nvml_initializations) == ("1.2", 1)
    assert [(gpu.identity.uuid, gpu.state, failing(gpu)) for gpu in snapshot.gpus] == [
        ("BARE-0", GpuState.OK, {}),
        ("BARE-1", GpuState.OK, {}),
    ]
    assert metrics["gpuagent_gpu_memory_used_bytes"] == [3 * GIB, 0]
    assert metrics["gpuagent_gpu_memory_total_bytes"] == [TOTAL_BYTES] * 2
    absent = ("ecc", "mig", "nvlink", "process", "temperature", "power", "utilization")
    assert [name for name in metrics if any(part in name for part in absent)] == []
    assert snapshot.processes == ()


def test_a_lost_gpu_of_another_vendor() -> None:
    """Its failure says what has become of it: the other GPU goes on, and it comes back."""
    clock = ManualClock()
    driver = BareDriver([GIB, GIB])

    async def run() -> list[GpuState]:
        with monitored(driver, clock) as monitor:
            states = []
            for used in (GIB, None, GIB):
                driver.used[1] = used
                clock.advance(1)
                monitor.request_slow()
                snapshot = await monitor.tick()
                assert at(snapshot, 0).state is GpuState.OK
                states.append(at(snapshot, 1).state)
            await monitor.close()
            return states

    assert asyncio.run(run()) == [GpuState.OK, GpuState.LOST, GpuState.OK]
