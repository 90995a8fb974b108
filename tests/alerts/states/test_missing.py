"""Which series are missing in a tick, and which rules and instances that concerns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuagent.core.snapshot import CollectorRun, GpuState, NodeReading, NvmlState, Snapshot
from gpuagent_alerts.states.group import GroupRunner
from gpuagent_alerts.states.missing import Missing, find_missing, select
from tests.alerts.states.rules import groups
from tests.fakes.readings import NOW, WALL, absent_gpu, gpu

HEALTHY = Snapshot(
    time_seconds=WALL, clock_seconds=NOW, node=NodeReading(nvml_state=NvmlState.READY), gpus=(gpu(0), gpu(1))
)


def runs(*failed: str) -> tuple[CollectorRun, ...]:
    """All that a GPU's collectors tell, with these failed."""
    names = ("memory", "processes", "process_utilization", "mig", "ecc", "thermal", "clocks")
    return tuple(CollectorRun(name, name not in failed, 0.0, "" if name not in failed else "why") for name in names)


def snapshot(*failed: str, **changes: Any) -> Snapshot:
    """Two GPUs; these collectors of the first have failed."""
    return replace(HEALTHY, gpus=(gpu(0, runs=runs(*failed)), gpu(1, runs=runs())), **changes)


def frozen(missing: Missing, expr: str, labels: dict[str, str] | None = None, *more: str) -> bool:
    """Whether an instance of an alert on this expression is frozen."""
    runners = [GroupRunner.of(group) for group in groups(f"alert: A, expr: '{expr}'", *more)]
    selections = select(runners)
    return missing.frozen(selections[runners[0].rules[0].key])(labels if labels is not None else {"gpu": "0"})


def test_nothing_is_missing_on_a_healthy_node() -> None:
    """And that costs nothing: the answer is the same for all."""
    missing = find_missing(HEALTHY)
    assert not missing
    assert not frozen(missing, "gpuagent_gpu_memory_used_bytes > 1")


@pytest.mark.parametrize(
    ("failed", "expr"),
    [
        ("memory", "gpuagent_gpu_memory_used_ratio > 0.9"),
        ("memory", "gpuagent_gpu_memory_unattributed_bytes > 1"),
        ("processes", "gpuagent_process_memory_used_bytes > 1"),
        ("processes", "gpuagent_process_zombie == 1"),
        ("processes", "gpuagent_dead_processes > 0"),
        ("ecc", "gpuagent_gpu_row_remap_failed == 1"),
        ("mig", "gpuagent_mig_memory_used_bytes > 1"),
        ("processes", "gpuagent_gpu_memory_used_ratio > 0.9 unless on (gpu) gpuagent_process_memory_used_bytes"),
    ],
)
def test_a_failed_collector_freezes_what_it_feeds(failed: str, expr: str) -> None:
    """ALERT-06: on that GPU; on the other one, everything goes on."""
    missing = find_missing(snapshot(failed))
    assert frozen(missing, expr, {"gpu": "0", "uuid": "GPU-00000000"})
    assert frozen(missing, expr, {"gpu": "0"})
    assert not frozen(missing, expr, {"gpu": "1", "uuid": "GPU-00000001"})


def test_other_collectors_go_on() -> None:
    """A failing one costs its own series and nothing else."""
    missing = find_missing(snapshot("ecc"))
    assert not frozen(missing, "gpuagent_gpu_memory_used_ratio > 0.9")
    assert not frozen(missing, "gpuagent_gpu_temperature_celsius > 90")


def test_an_instance_without_a_gpu_is_concerned_by_any() -> None:
    """A sum over all GPUs is wrong when one is missing."""
    missing = find_missing(snapshot("memory"))
    assert frozen(missing, "sum(gpuagent_gpu_memory_used_bytes) > 1", {})
    assert frozen(missing, "sum(gpuagent_gpu_memory_used_bytes) > 1", {"alertname": "A"})


def test_a_selector_that_leaves_the_gpu_out_is_not_concerned() -> None:
    """What the rule does not look at cannot be missed."""
    missing = find_missing(snapshot("memory"))
    assert not frozen(missing, 'sum(gpuagent_gpu_memory_used_bytes{gpu="1"}) > 1', {})
    assert not frozen(missing, 'sum(gpuagent_gpu_memory_used_bytes{gpu=~"1|2"}) > 1', {})
    assert frozen(missing, 'sum(gpuagent_gpu_memory_used_bytes{gpu!="1"}) > 1', {})


@pytest.mark.parametrize("state", [GpuState.LOST, GpuState.BLIND, GpuState.GONE, GpuState.STARTING, GpuState.FAILED])
def test_a_gpu_that_cannot_be_read_freezes_all_of_it(state: GpuState) -> None:
    """ALERT-06: lost, blind, gone, starting or failed."""
    missing = find_missing(replace(HEALTHY, gpus=(absent_gpu(0, state), gpu(1, runs=runs()))))
    for expr in ("gpuagent_gpu_memory_used_ratio > 0.9", "gpuagent_gpu_temperature_celsius > 90"):
        assert frozen(missing, expr, {"gpu": "0"})
        assert not frozen(missing, expr, {"gpu": "1"})


@pytest.mark.parametrize("state", [GpuState.LOST, GpuState.BLIND, GpuState.GONE])
def test_what_tells_of_the_failure_is_never_missing(state: GpuState) -> None:
    """Or nobody would hear of it. Xids come by another way than the GPU's readings."""
    missing = find_missing(replace(HEALTHY, gpus=(absent_gpu(0, state),)))
    for expr in (
        "gpuagent_gpu_blind == 1",
        "gpuagent_collector_success == 0",
        "gpuagent_gpu_lost == 1 or gpuagent_gpu_blind == 1",
        "gpuagent_gpus < gpuagent_gpus_expected",
        "time() - gpuagent_xid_last_timestamp_seconds < 900",
        "vector(1)",
    ):
        assert not frozen(missing, expr), expr


@pytest.mark.parametrize(("state", "is_frozen"), [(GpuState.LOST, False), (GpuState.OK, False), (GpuState.BLIND, True)])
def test_whether_a_gpu_is_lost_may_be_unknown(state: GpuState, is_frozen: bool) -> None:
    """A lost GPU on which a call then hangs is not found again."""
    reading = gpu(0, runs=runs()) if state is GpuState.OK else absent_gpu(0, state)
    assert frozen(find_missing(replace(HEALTHY, gpus=(reading,))), "gpuagent_gpu_lost == 1") is is_frozen


@pytest.mark.parametrize("state", [NvmlState.STARTING, NvmlState.FAILED, NvmlState.PAUSED])
def test_without_the_driver_everything_is_missing(state: NvmlState) -> None:
    """ALERT-06: also for GPUs that the agent does not know yet. What it knows by itself is not missing."""
    missing = find_missing(replace(HEALTHY, node=NodeReading(nvml_state=state), gpus=()))
    assert frozen(missing, "gpuagent_gpu_memory_used_ratio > 0.9", {"gpu": "7"})
    assert frozen(missing, "gpuagent_gpus < gpuagent_gpus_expected", {})
    assert frozen(missing, "gpuagent_gpu_lost == 1", {"gpu": "7"})
    assert frozen(missing, "gpuagent_gpu_blind == 1", {"gpu": "7"})
    assert not frozen(missing, "gpuagent_nvml_up == 0", {})
    assert not frozen(missing, "time() - gpuagent_xid_last_timestamp_seconds < 900", {"gpu": "7"})


def test_before_the_first_snapshot_everything_is_missing() -> None:
    """The agent has just started."""
    missing = find_missing(None)
    for expr in (
        "time() - gpuagent_xid_last_timestamp_seconds < 900",
        "gpuagent_gpu_blind == 1",
        "gpuagent_gpu_lost == 1",
    ):
        assert frozen(missing, expr, {"gpu": "7"})
    assert frozen(missing, "gpuagent_nvml_up == 0", {})
    assert not frozen(missing, "vector(1)", {})


def test_a_known_gpu_is_blind_also_while_the_driver_is_away() -> None:
    """What is said of it is said: only of GPUs that are not in the snapshot nothing is."""
    gone = replace(HEALTHY, node=NodeReading(nvml_state=NvmlState.FAILED), gpus=(absent_gpu(0, GpuState.BLIND),))
    assert not frozen(find_missing(gone), "gpuagent_gpu_blind == 1", {"gpu": "0"})


def test_a_collector_of_the_node_concerns_all_gpus() -> None:
    """Without events, no Xid of any GPU is known."""
    missing = find_missing(snapshot(runs=(CollectorRun("xid_events", ok=False, duration_seconds=0.0, reason="why"),)))
    assert frozen(missing, "time() - gpuagent_xid_last_timestamp_seconds < 900", {"gpu": "1"})


def test_recorded_series_stand_for_what_they_are_made_of() -> None:
    """Through any number of recording rules, also such as lead in a circle."""
    missing = find_missing(snapshot("memory"))
    record = "record: a, expr: sum by (gpu) (gpuagent_gpu_memory_used_bytes)"
    assert frozen(missing, "b > 1", {"gpu": "0"}, record, "record: b, expr: a + b")
    assert not frozen(missing, "b > 1", {"gpu": "1"}, record, "record: b, expr: a + b")


def test_a_pattern_of_names_is_followed() -> None:
    """A selector that names no metric looks at all that match."""
    missing = find_missing(snapshot("memory"))
    assert frozen(missing, '{__name__=~"gpuagent_gpu_memory_.*"} > 1')
    assert not frozen(missing, '{__name__=~"gpuagent_gpu_temperature_.*"} > 1')
