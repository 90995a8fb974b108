"""All of it, in the order in which one thing needs the other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

from gpuagent.collector.tick import Monitor, TickTimeouts
from gpuagent.doctor import driver, host, service, swapping
from gpuagent.doctor.finding import Finding
from gpuagent.node import Node, real_node, simulated_node

_DEADLINE_SECONDS = 5.0


def examine(config_path: Path | None = None, simulate: str | None = None) -> Iterator[Finding]:
    """Every finding about this machine (or a scenario), as it is found."""
    config, found = service.configuration(config_path, simulated=simulate is not None)
    yield from found
    yield from driver.binding()
    if simulate is None:
        yield from driver.library()
        yield from driver.device_nodes()
        yield from driver.profiling()
        yield from swapping.wsl()
    node = simulated_node(config, simulate) if simulate else real_node(config, keep_inventory=False)
    yield from _gpus(node)
    yield from host.pid_namespace()
    yield from host.process_visibility()
    yield from host.capabilities()
    yield from host.pidfd()
    yield from host.descriptors()
    yield from host.clock()
    yield from service.directories(config)
    yield from service.access()
    yield from service.agent(config)


def _gpus(node: Node) -> Iterator[Finding]:
    """Two ticks: the collectors that compare two samples fail, if at all, at the second."""
    pace = TickTimeouts(fresh_seconds=_DEADLINE_SECONDS, deadline_seconds=_DEADLINE_SECONDS)
    monitor = Monitor(node.driver, node.processes, node.clock, pace, node.place)

    async def measure() -> None:
        await monitor.tick()
        await asyncio.sleep(0.2)
        monitor.request_slow()
        await monitor.tick()
        await monitor.close()

    asyncio.run(measure())
    snapshot = monitor.snapshot
    assert snapshot is not None  # noqa: S101  a tick always leaves one
    yield from driver.nvml(snapshot)
    for reading in snapshot.gpus:
        yield from driver.gpu(reading)
