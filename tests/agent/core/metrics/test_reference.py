"""The metric reference: what it says is what is served, in both directions."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from gpuagent.collector.tick import Monitor, MonitorContext, TickTimeouts
from gpuagent.config.agent import Metrics
from gpuagent.config.models import Config
from gpuagent.core.clock import ManualClock
from gpuagent.core.growth import DetectorLoad
from gpuagent.core.metrics import FAMILIES
from gpuagent.core.metrics.alerting import (
    AlertCount,
    AlertingFigures,
    ReceiverCounts,
    RuleFailures,
    Undelivered,
    UndeliveredReason,
)
from gpuagent.core.metrics.clients import CLIENT_FAMILIES, SOURCE_FAMILIES, TORCH_FAMILIES
from gpuagent.core.metrics.growth import DETECTOR_FAMILIES, GPU_GROWTH_FAMILIES, GROWTH_FAMILIES, MIG_GROWTH_FAMILIES
from gpuagent.core.metrics.reference import GROUPS, render
from gpuagent.core.metrics.remedies import REMEDY_FAMILIES
from gpuagent.core.metrics.usage import USAGE_FAMILIES
from gpuagent.driver.nvml.driver import NvmlDriver
from gpuagent.driver.nvml.library import Library
from gpuagent.procfs.files import RealProc
from gpuagent.procfs.table import ProcessTable
from gpuagent.service.view import View
from gpuagent_alerts.leak.sensor import LeakDetection
from gpuagent_simulator.faults import FaultKind
from gpuagent_simulator.node import SimulatedNode
from gpuagent_simulator.scenario import load_scenario, shipped_scenarios
from tests.agent.collector.calls import Recorder
from tests.fakes.nvml import use
from tests.fakes.proc import FakeWatcher
from tests.fakes.remedies import full_remedies
from tests.fakes.snapshots import full_clients, full_servers
from tests.fakes.usage import full_usage

DOCUMENT = Path(__file__).parents[4] / "docs" / "metrics.md"

NEEDS_THE_MACHINE = {
    "gpuagent_gpu_retired_pages": "before Ampere, which no shipped scenario is",
    "gpuagent_gpu_retired_pages_pending": "before Ampere, which no shipped scenario is",
    "gpuagent_gpu_xid_unrepaired_timestamp_seconds": "an Xid that takes a repair: no scenario ships one",
    "gpuagent_gpu_energy_integrated_joules_total": "before Volta, which no shipped scenario is",
    "gpuagent_gpu_memory_own_limit_bytes": "a memory limit of the agent's own cgroup",
    "gpuagent_pause_remaining_seconds": "a person who pauses the agent",
    "gpuagent_process_uninterruptible": "a process in D state: no scenario ships one",
    "gpuagent_gpu_memory_fast_growth_expected": "growth that would fill the GPU within minutes",
    **{
        family.name: "minutes to hours of growth"
        for families in (GPU_GROWTH_FAMILIES, GROWTH_FAMILIES, MIG_GROWTH_FAMILIES)
        for family in families
        if not family.name.endswith(("_verdict", "_leak_suspected"))
    },
    **{family.name: "an app with the embedded client: no scenario has one" for family in TORCH_FAMILIES},
}
"""Documented metrics that no shipped scenario shows, each with the reason."""

_served: dict[str, set[str]] = {}
SOME_ALERTS = AlertingFigures(
    rules=1,
    evaluation_seconds=0.001,
    alerts=(AlertCount("GpuLost", "firing", "critical", 1),),
    failures=(RuleFailures("group", "rule", 1),),
    receivers=(ReceiverCounts("ops", 1, 1, 2.0, 1, 1, 1),),
    rows_set_aside=(("told", 1),),
    undelivered=(Undelivered("ops", UndeliveredReason.DEAD, "", None, 2),),
)


def documented_names() -> set[str]:
    """The first column of every table."""
    return set(re.findall(r"^\| `(gpuagent_\w+)`", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE))


def served_names(scenario: str) -> set[str]:
    """Names of our own in the scrapes of the first two minutes of a scenario, and until a Xid of it is counted."""
    if scenario not in _served:
        _served[scenario] = asyncio.run(_scrape(scenario))
    return _served[scenario]


async def _scrape(scenario: str) -> set[str]:
    clock = ManualClock()
    loaded = load_scenario(scenario)
    node = SimulatedNode(loaded, clock, fallback=RealProc())
    has_xids = any(fault.kind is FaultKind.XID for fault in loaded.faults)
    recorder = Recorder(node.library)
    names: set[str] = set()
    with use(recorder):
        table = ProcessTable(
            node.proc,
            clock,
            watch=FakeWatcher(),
            boot_id="boot",
            boot_time_seconds=node.proc.boot_time_seconds,
            host_pid_namespace=True,
        )
        place = MonitorContext(
            boot_id="boot",
            simulated=node.name,
            pci_gpus=node.pci_gpu_count,
            host_memory=node.host_memory,
            memory_pressure=node.memory_pressure,
        )
        pace = TickTimeouts(deadline_seconds=0.2)
        monitor = Monitor(NvmlDriver(Library(max_pid=node.max_pid), node.host_memory), table, clock, pace, place)
        view = View(
            Config(metrics=Metrics(nvlink_links=True, mig_traffic=True)),
            clock,
            node.name,
            lambda: SOME_ALERTS,
            lambda: [
                (CLIENT_FAMILIES, full_clients()),
                (REMEDY_FAMILIES, full_remedies()),
                (USAGE_FAMILIES, full_usage()),
                (SOURCE_FAMILIES, full_servers()),
                (DETECTOR_FAMILIES, DetectorLoad(2, 0)),
            ],
        )
        leaks = LeakDetection("balanced", clock)

        async def scrape() -> set[str]:
            view.update(leaks.observe(await monitor.tick()))
            return set(re.findall(r"^(gpuagent_\w+)", view.metrics(openmetrics=False).decode(), re.MULTILINE))

        names |= await scrape()
        if has_xids:  # only what happens after the registration is delivered, to a thread of its own
            assert recorder.waiting_for_events.wait(20)
        for _ in range(24):
            clock.advance(5)
            monitor.request_slow()
            names |= await scrape()
        while has_xids and not (monitor.snapshot and monitor.snapshot.xids):
            names |= await scrape()
        node.release()
        await monitor.close()
    return names


def test_the_document_is_what_the_generator_writes() -> None:
    """EXP-09: docs/metrics.md is made again after each change of the catalogue."""
    written = DOCUMENT.read_text(encoding="utf-8")
    assert written == render(), "write it anew: python -m gpuagent.core.metrics.reference > docs/metrics.md"


def test_every_family_is_in_one_group() -> None:
    """EXP-09: a new family cannot be forgotten, and none is told twice."""
    grouped = [family.name for group in GROUPS for family in group.families]

    assert sorted(grouped) == sorted(family.name for family in FAMILIES)


@pytest.mark.few(5)
@pytest.mark.slow
@pytest.mark.parametrize("scenario", shipped_scenarios())
def test_what_a_scenario_serves_is_documented(scenario: str) -> None:
    """EXP-09: no metric on any shipped scenario is missing from the documentation."""
    names = served_names(scenario)

    assert "gpuagent_build_info" in names
    assert names - documented_names() == set()


@pytest.mark.slow
def test_what_is_documented_is_served_by_some_scenario() -> None:
    """EXP-09: the documentation promises no metric that nothing can show."""
    served = set().union(*(served_names(scenario) for scenario in shipped_scenarios()))

    assert documented_names() - served == set(NEEDS_THE_MACHINE)
