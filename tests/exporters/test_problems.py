"""What is told of a snapshot, and how grave it is."""

from __future__ import annotations

import dataclasses

import pytest

from gpuagent.reading import (
    GIB,
    Clocks,
    CollectorRun,
    Ecc,
    GpuState,
    NvmlState,
    Power,
    ProcessState,
    Reconciliation,
    Snapshot,
    XidCount,
)
from gpuagent_exporters.problems import find_problems
from gpuagent_exporters.severity import Problem, Severity, joined
from tests.fakes.readings import NOW, WALL, absent_gpu, gpu, identity, mig_instance, process, snapshot

CRITICAL, WARNING, INFO = Severity.CRITICAL, Severity.WARNING, Severity.INFO


def found(of: Snapshot | None, now: float = NOW) -> list[tuple[Severity, str]]:
    """Severity and kind of every problem."""
    return [(problem.severity, problem.kind) for problem in find_problems(of, now)]


def only(of: Snapshot, now: float = NOW) -> Problem:
    """The one problem there is."""
    (problem,) = find_problems(of, now)
    return problem


def test_a_healthy_node_has_none() -> None:
    """A node on which all is well is not talked about."""
    assert find_problems(snapshot(), NOW) == []


def test_before_the_first_measurement() -> None:
    """EXP-06: nothing measured yet is said in words, and is no alarm."""
    assert found(None) == [(INFO, "not_measured")]


@pytest.mark.parametrize(
    ("state", "node", "severity", "kind"),
    [
        (NvmlState.FAILED, {"gpus_expected": 2, "pci_gpus": 2}, CRITICAL, "nvml_failed"),
        (NvmlState.FAILED, {"gpus_expected": 0, "pci_gpus": None}, CRITICAL, "nvml_failed"),
        (NvmlState.FAILED, {"gpus_expected": 0, "pci_gpus": 0}, INFO, "no_gpu"),
        (NvmlState.PAUSED, {}, WARNING, "nvml_paused"),
        (NvmlState.STARTING, {}, INFO, "nvml_starting"),
        (NvmlState.READY, {"gpus_expected": 0, "pci_gpus": 0}, INFO, "no_gpu"),
    ],
    ids=["failed", "failed, PCI unknown", "failed without GPUs", "paused", "starting", "no GPUs"],
)
def test_the_library_as_a_whole(state: NvmlState, node: dict[str, object], severity: Severity, kind: str) -> None:
    """GPU-06, EXP-07: the driver's state is told once; a node without GPUs is no failure."""
    here = snapshot([], node={"nvml_state": state, "nvml_reason": "libnvidia-ml.so.1 was not found", **node})

    assert found(here) == [(severity, kind)]
    if state is NvmlState.FAILED:
        assert "libnvidia-ml.so.1 was not found" in only(here).text


def test_a_failed_library_is_not_repeated_for_each_gpu() -> None:
    """GPU-07: eight GPUs behind one broken driver are one finding, whatever their collectors say."""
    gpus = [absent_gpu(index, GpuState.FAILED, "driver and library versions differ") for index in range(8)]
    node = {"nvml_state": NvmlState.FAILED, "nvml_reason": "driver and library versions differ"}

    assert found(snapshot(gpus, node=node, measured_seconds=NOW - 300)) == [(CRITICAL, "nvml_failed")]


@pytest.mark.parametrize(
    ("state", "severity", "words"),
    [
        (GpuState.LOST, CRITICAL, "GPU 1: lost for 2 min"),
        (GpuState.BLIND, CRITICAL, "nothing is known of it for 2 min"),
        (GpuState.GONE, CRITICAL, "no longer lists it"),
        (GpuState.FAILED, CRITICAL, "cannot be read for 2 min (no permission)"),
        (GpuState.STARTING, INFO, "not read yet"),
    ],
)
def test_a_gpu_that_cannot_be_read(state: GpuState, severity: Severity, words: str) -> None:
    """GPU-01, GPU-02, GPU-04: one bad GPU is one problem, with its index, since when and what to do."""
    problem = only(snapshot([gpu(0), absent_gpu(1, state, "no permission")]))

    assert (problem.severity, problem.kind, problem.gpu) == (severity, f"gpu_{state}", 1)
    assert words in problem.sentence


def test_a_count_that_dropped() -> None:
    """GPU-02: a GPU that PCI shows and the driver does not is missed, though nobody knows its name."""
    problem = only(snapshot([gpu(0)], node={"gpus_expected": 2, "pci_gpus": 2}))

    assert (problem.severity, problem.kind) == (CRITICAL, "gpu_missing")
    assert "1 of 2 GPUs" in problem.text


def test_all_gpus_that_vanished() -> None:
    """GPU-02, EXP-07: a GPU seen before and gone is an alarm also when none is left."""
    assert (CRITICAL, "gpu_missing") in found(snapshot([], node={"gpus_expected": 1, "pci_gpus": 0}))


@pytest.mark.parametrize(
    ("used_gib", "expected"),
    [(21.5, []), (21.7, [(WARNING, "memory_full")]), (23.6, [(CRITICAL, "memory_full")])],
    ids=["90 %", "over 90 %", "over 98 %"],
)
def test_memory_that_runs_out(used_gib: float, expected: list[tuple[Severity, str]]) -> None:
    """Full memory is told with what is left and with the process that holds most of it."""
    here = snapshot([gpu(used_gib=used_gib)], [process(7, used_gib=1.0), process(8, used_gib=20.0)])

    assert found(here) == expected
    assert all("python3 (pid 8) holds 20.0 GiB" in problem.text for problem in find_problems(here, NOW))


def test_memory_of_an_instance_that_runs_out() -> None:
    """PROC-09: under MIG each instance has a wall of its own, though the GPU as a whole has room."""
    problem = only(snapshot([gpu(used_gib=9.7, total_gib=80, mig=(mig_instance(3, 9.7), mig_instance(4, 1.0)))], []))

    assert (problem.severity, problem.kind) == (CRITICAL, "memory_full")
    assert "MIG instance 3 (1g.10gb)" in problem.text


def test_unified_memory_is_not_full() -> None:
    """NUM-05: where the host's RAM serves the GPU too, there is no wall of the GPU's own."""
    unified = gpu(identity=identity(unified_memory=True), used_gib=119, total_gib=120)

    assert found(snapshot([unified])) == []


def test_dead_processes() -> None:
    """PROC-01: memory of a pid that is gone is told, with the advice that no signal helps."""
    dead = process(99, state=ProcessState.DEAD, used_gib=3.0)
    problem = only(snapshot([gpu()], [process(), dead]))

    assert (problem.severity, problem.kind, problem.pid) == (WARNING, "dead_processes", 99)
    assert "3.0 GiB" in problem.text
    assert "reboot" in problem.advice


def test_many_dead_processes_are_one_problem() -> None:
    """PROC-01: 64 dead pids do not push everything else off the screen."""
    problem = only(snapshot([gpu()], [process(n, state=ProcessState.DEAD, used_gib=0.25) for n in range(64)]))

    assert "64 processes that have ended still hold 16.0 GiB: pid 0, 1, 2, 3, 4 and 59 more" in problem.text
    assert problem.pid is None


@pytest.mark.parametrize(
    ("letter", "expected"),
    [("Z", [(WARNING, "zombie_processes")]), ("D", [(INFO, "uninterruptible_processes")]), ("S", []), ("R", [])],
)
def test_processes_that_no_signal_reaches(letter: str, expected: list[tuple[Severity, str]]) -> None:
    """PROC-02: a zombie or a process in D state that holds memory is flagged."""
    assert found(snapshot([gpu()], [process(state=ProcessState.LIVE), process(5, used_gib=1, **{"state_": ""})])) if (
        False
    ) else found(snapshot([gpu()], [in_state(letter)])) == expected


def in_state(letter: str, used_gib: float | None = 1.0) -> object:
    """A live process in a state of the kernel's."""
    live = process(5, used_gib=used_gib)
    assert live.info is not None
    return live._replace(info=dataclasses.replace(live.info, state=letter))
