"""All checks, in the order in which one thing needs the other: a new one is a function and a line in `CHECKS`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from gpuagent.collector.tick import Monitor, TickTimeouts
from gpuagent.config.models import Config
from gpuagent.core.snapshot import Snapshot
from gpuagent.doctor import machine, service
from gpuagent.doctor.finding import Finding
from gpuagent.doctor.machine import captured_host, captured_machine
from gpuagent.doctor.memory_limits import memory_limits
from gpuagent.node import Node, real_node, simulated_node

_DEADLINE_SECONDS = 5.0


class CheckContext:
    """What the checks look at: the configuration, and one reading of the GPUs, taken when the first check asks."""

    def __init__(self, config: Config, simulate: str | None) -> None:
        self.config = config
        self._simulate = simulate

    @cached_property
    def snapshot(self) -> Snapshot:
        """The GPUs as they are. Raises NoSuchNode for a scenario that does not exist."""
        simulate = self._simulate
        node = simulated_node(self.config, simulate) if simulate else real_node(self.config, keep_inventory=False)
        return _measure(node)


class Check(NamedTuple):
    """One thing to look at."""

    examine: Callable[[CheckContext], Iterator[Finding]]
    real_only: bool = False
    """Says nothing about a simulated node."""
    host_only: bool = False
    """Says nothing about a captured node: its file says what holds of its host."""


CHECKS = (
    Check(lambda _: machine.binding()),
    Check(lambda _: machine.library(), real_only=True),
    Check(lambda _: machine.device_nodes(), real_only=True),
    Check(lambda _: machine.profiling(), real_only=True),
    Check(lambda _: machine.wsl(), real_only=True),
    Check(lambda _: machine.memory_view(), real_only=True),
    Check(lambda subject: machine.nvml(subject.snapshot)),
    Check(lambda subject: machine.gpus(subject.snapshot)),
    Check(lambda subject: memory_limits(subject.config, subject.snapshot), real_only=True),
    Check(lambda _: machine.pid_namespace(), host_only=True),
    Check(lambda _: machine.process_visibility(), host_only=True),
    Check(lambda _: machine.capabilities(), host_only=True),
    Check(lambda _: machine.pidfd()),
    Check(lambda _: machine.descriptors()),
    Check(lambda _: machine.clock()),
    Check(lambda subject: service.directories(subject.config)),
    Check(lambda _: service.access()),
    Check(lambda subject: service.agent(subject.config)),
)


def examine(config_path: Path | None = None, simulate: str | None = None) -> Iterator[Finding]:
    """Yield every finding about this machine (or a scenario), as it is found."""
    if simulate is None:  # what a reading logs of the driver is among the findings
        logging.getLogger().addHandler(logging.NullHandler())
    config, found = service.configuration(config_path, simulated=simulate is not None)
    yield from found
    subject = CheckContext(config, simulate)
    host = captured_host(simulate)
    if host is not None:
        yield from captured_machine(host)
    for check in CHECKS:
        if host is not None and check.host_only:
            continue
        if simulate is None or not check.real_only:
            yield from check.examine(subject)


def _measure(node: Node) -> Snapshot:
    """Return the second of two ticks: the collectors that compare two samples fail, if at all, at that one."""
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
    return snapshot
