"""Faults that change while a node runs, and values that cannot be."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pynvml
import pytest

from gpuagent.core.clock import ManualClock
from gpuagent_simulator.curves import ScenarioClock
from gpuagent_simulator.faults import Fault, FaultInjector, FaultKind
from gpuagent_simulator.node import FaultsFile
from gpuagent_simulator.scenario import ScenarioError, load_faults, load_scenario
from tests.simulator.conftest import TWO_H100, OpenNode


def _followed(path: Path) -> tuple[FaultsFile, FaultInjector, ManualClock]:
    """A follower that looks when it is told to; its own thread is ended."""
    clock = ManualClock()
    injector = FaultInjector((), ScenarioClock(clock))
    follower = FaultsFile(path, injector, gpu_count=2)
    follower.close()
    return follower, injector, clock


def _kinds(injector: FaultInjector) -> list[FaultKind]:
    return [fault.kind for fault in injector.of(1)]


def test_faults_come_and_go_with_the_file(tmp_path: Path) -> None:
    """No file is no fault; a line that stays keeps its beginning; times count from when a line is first read."""
    path = tmp_path / "faults.yaml"
    follower, injector, clock = _followed(path)
    assert _kinds(injector) == []

    clock.advance(100)
    path.write_text("faults: [{kind: hang, gpu: 1, until: 10s}]")
    follower.poll()
    clock.advance(5)
    path.write_text("faults: [{kind: hang, gpu: 1, until: 10s}, {kind: full, gpu: 1}]")
    follower.poll()
    assert next((fault.at, fault.until) for fault in injector.of(1)) == (100, 110)
    assert injector.find(FaultKind.FULL, 1) is not None

    path.write_text("")
    follower.poll()
    assert _kinds(injector) == []


def test_a_bad_file_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Mistakes are told with file and line, and what held goes on."""
    path = tmp_path / "faults.yaml"
    path.write_text("faults: [{kind: lost, gpu: 1}]")
    follower, injector, _ = _followed(path)

    path.write_text("faults:\n  - {kind: lots, gpu: 1}\n")
    follower.poll()

    assert _kinds(injector) == [FaultKind.LOST]
    assert f"{path}:2: faults[0].kind" in caplog.text
    path.write_text("faults: [{kind: lost, gpu: 2}]")
    with pytest.raises(ScenarioError, match=r"faults\[0\] is for GPU 2 of 2"):
        load_faults(path, 2)


def test_a_driver_reload_that_was_taken_out_has_happened(tmp_path: Path) -> None:
    """Every reload counts once, whether its line is still there or not."""
    path = tmp_path / "faults.yaml"
    follower, injector, clock = _followed(path)
    for generation in (1, 2):
        path.write_text("faults: [{kind: driver_reload, down: 1s}]")
        follower.poll()
        assert (injector.generation(), injector.driver_is_down()) == (generation, True)
        clock.advance(2)
        path.write_text("")
        follower.poll()
        assert (injector.generation(), injector.driver_is_down()) == (generation, False)


def test_the_file_lies_beside_the_scenario(tmp_path: Path) -> None:
    """A relative name starts at the scenario's folder."""
    (tmp_path / "mine.yaml").write_text("gpus: [{model: h100}]\nfaults_file: faults.yaml\n")

    assert load_scenario(str(tmp_path / "mine.yaml")).faults_file == str(tmp_path / "faults.yaml")


def test_a_full_gpu_is_full_at_once(open_node: OpenNode) -> None:
    """All of its memory is used, the processes keep theirs, and the other GPU is as it was."""
    stage = open_node(TWO_H100)
    before = stage.used_bytes(0)
    stage.node.inject(Fault(FaultKind.FULL, gpu=1))

    memory = pynvml.nvmlDeviceGetMemoryInfo(stage.handle(1), pynvml.nvmlMemory_v2)

    assert memory.free == 0
    assert memory.used + memory.reserved == memory.total
    assert stage.used_bytes(0) == before
    assert len(stage.pids(1)) == 2


def test_garbage_is_put_over_quantities_and_nothing_else(open_node: OpenNode) -> None:
    """NUM-01, NUM-02: numbers of every kind turn to nonsense on that GPU; what callers allocate by stays right."""
    stage = open_node(TWO_H100)
    handle = stage.handle(1)
    stage.node.inject(Fault(FaultKind.GARBAGE_VALUES, gpu=1))

    power = {pynvml.nvmlDeviceGetPowerUsage(handle) for _ in range(12)}
    fields = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION] * 8)

    assert {2**32 - 1, 37_100} <= power
    assert 2**64 - 1 in [field.value.ullVal for field in fields]
    assert len(stage.pids(1)) == 2
    assert pynvml.nvmlDeviceGetCount() == 2
    assert pynvml.nvmlDeviceGetPowerUsage(stage.handle(0)) < 10**6


def test_garbage_in_a_structure_leaves_its_version_alone(open_node: OpenNode) -> None:
    """The version of a struct is the caller's, not an answer."""
    stage = open_node(TWO_H100)
    stage.node.inject(Fault(FaultKind.GARBAGE_VALUES, gpu=0))

    memory = pynvml.nvmlDeviceGetMemoryInfo(stage.handle(0), pynvml.nvmlMemory_v2)

    assert memory.version == ctypes.sizeof(memory) | 2 << 24
    assert memory.used + memory.free != memory.total
