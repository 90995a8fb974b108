"""What is told of a snapshot, and how grave it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuagent.core.hardware import Clocks, Ecc, Memory, MemoryKind, Power
from gpuagent.core.metrics.alerting import FiringAlert
from gpuagent.core.snapshot import CollectorRun, GpuState, NvmlState, ProcessState, Reconciliation, Snapshot, XidCount
from gpuagent.core.units import GIB
from gpuagent.core.wording import MPS_UNKNOWN, NO_PCI_ADDRESS, WITHHELD
from gpuagent.core.xids import Severity
from gpuagent_exporters.status.gpu_problems import with_begin_of_loss
from gpuagent_exporters.status.problems import find_problems
from gpuagent_exporters.status.severity import Problem, joined
from tests.fakes.readings import NOW, WALL, absent_gpu, gpu, identity, mig_instance, process, snapshot

CRITICAL, WARNING, INFO = Severity.CRITICAL, Severity.WARNING, Severity.INFO


def found(of: Snapshot | None, now: float = NOW) -> list[tuple[Severity, str]]:
    """Severity and kind of every problem."""
    return [(problem.severity, problem.kind) for problem in find_problems(of, now)]


def only(of: Snapshot, now: float = NOW) -> Problem:
    """The one problem there is."""
    (problem,) = find_problems(of, now)
    return problem


def test_a_lost_gpu_is_lost_for_as_long_as_its_alert_says() -> None:
    """GPU-04: an agent that was started again has not forgotten since when, whatever the alert knows of the GPU."""
    lost = replace(absent_gpu(1, GpuState.LOST, "the GPU is lost"), since_seconds=NOW, lost_since_seconds=NOW)
    lost = replace(lost, identity=replace(lost.identity, uuid=""))
    seen = snapshot([gpu(0), lost])
    alert = FiringAlert("GpuLost", "critical", about_growth=False, gpu=1, began_at=seen.time_seconds - 300.0)
    shown = with_begin_of_loss(seen, [alert, FiringAlert("GpuLost", "critical", about_growth=False, gpu=0)])
    assert shown is not None
    (problem,) = [one for one in find_problems(shown, NOW) if one.kind == "gpu_lost"]
    assert problem.text.startswith("lost for 5 min")


def test_what_is_not_known_of_a_gpu_has_the_age_of_its_figures() -> None:
    """GPU-05: one age on every line: that of the last reading."""
    blind = replace(absent_gpu(0, GpuState.BLIND, "a call hangs"), since_seconds=NOW - 50, measured_seconds=NOW - 110)
    (problem,) = [one for one in find_problems(snapshot([blind]), NOW) if one.kind == "gpu_blind"]
    assert problem.text.startswith("nothing is known of it for 1 min 50 s:")


def test_a_full_gpu_names_nobody_for_what_is_nobodys() -> None:
    """MEM-02: the largest process is not who fills the GPU where more belongs to none."""
    full = gpu(0, used_gib=23.9, reconciliation=Reconciliation(2 * GIB, 0, int(21.9 * GIB)))
    (problem,) = [
        one for one in find_problems(snapshot([full], [process(used_gib=2.0)]), NOW) if one.kind == "memory_full"
    ]
    assert problem.text.endswith("; 21.9 GiB of it held by no process that the driver lists")
    untold = snapshot([full], [process(used_gib=None), process(4243, used_gib=None)])
    (problem,) = [one for one in find_problems(untold, NOW) if one.kind == "memory_full"]
    assert problem.text.endswith("; 21.9 GiB of it unassigned: the driver does not tell the memory of 2 processes")


def test_shared_memory_that_cannot_be_seen() -> None:
    """NUM-05: where a container's share alone is seen, a GPU that shares the machine's memory says what it lacks."""
    unseen = gpu(identity=identity(memory_kind=MemoryKind.UNIFIED), memory=Memory(), reconciliation=None)
    problem = only(snapshot([unseen]))
    assert (problem.severity, problem.kind) == (WARNING, "memory_view")
    assert "`gpuagent doctor`" in problem.advice
    limited = gpu(memory=Memory(), reconciliation=None, figures={"memory_own_limit_bytes": 8 * GIB})
    problem = only(snapshot([limited]))
    assert (problem.severity, problem.kind) == (WARNING, "memory_view")
    assert problem.text.startswith("the driver limits the agent's own cgroup to 8.0 GiB of it")
    own = gpu(memory=Memory(), reconciliation=None)
    assert [each for each in find_problems(snapshot([own]), NOW) if each.kind == "memory_view"] == []


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
    [(21.3, []), (21.5, [(WARNING, "memory_full")]), (23.4, [(CRITICAL, "memory_full")])],
    ids=["90 %", "over 90 %", "over 98 %"],
)
def test_memory_that_runs_out(used_gib: float, expected: list[tuple[Severity, str]]) -> None:
    """Full memory is told with what is left and with the process that holds most of it."""
    here = snapshot([gpu(used_gib=used_gib)], [process(7, used_gib=1.0), process(8, used_gib=20.0)])

    assert found(here) == expected
    assert all("python3 (pid 8) holds 20.0 GiB" in problem.text for problem in find_problems(here, NOW))


@pytest.mark.parametrize(
    ("used_gib", "shares", "expected"),
    [
        (22.8, [("VLLM::EngineCore", 22.5)], []),
        (23.8, [("VLLM::EngineCore", 22.9)], [(CRITICAL, "memory_full")]),
        (22.8, [("python3", 22.5)], [(WARNING, "memory_full")]),
        (22.8, [("VLLM::EngineCore", 18.6), ("python3", 3.9)], [(WARNING, "memory_full")]),
        (22.8, [("VLLM::EngineCore", 22.0), ("python3", 0.5)], []),
    ],
    ids=["by design", "full all the same", "another program", "another fills the rest", "its helper beside it"],
)
def test_a_server_that_preallocates_is_no_problem(
    used_gib: float, shares: list[tuple[str, float]], expected: list[tuple[Severity, str]]
) -> None:
    """Memory that is high by design is no problem until it is full, on a GPU and in a MIG instance."""
    held = [process(7 + at, name=name, command=name, used_gib=gib) for at, (name, gib) in enumerate(shares)]
    assert found(snapshot([gpu(used_gib=used_gib)], held)) == expected

    instance = mig_instance(3, used_gib, total_gib=24.0)
    inside = [one._replace(gpu_instance_id=3) for one in held]
    here = snapshot([gpu(used_gib=used_gib, total_gib=80, mig=(instance,))], inside)
    assert found(here) == expected


def test_a_full_gpu_says_who_holds_it_as_its_incident_does() -> None:
    """Nobody is named who is one of many alike; a process that has ended is named as long as it is known."""
    many = [process(pid, used_gib=0.375) for pid in range(1, 61)]
    (problem,) = find_problems(snapshot([gpu(0, used_gib=23.8)], many), NOW)
    assert problem.text.endswith("; 22.5 GiB of it held by 60 processes")

    alive = process(8, used_gib=20.0)
    dead = alive._replace(state=ProcessState.DEAD, former=alive.info, info=None)
    seen = snapshot([gpu(0, used_gib=23.8)], [dead, process(7, used_gib=3.0)])
    full = next(one for one in find_problems(seen, NOW) if one.kind == "memory_full")
    assert full.text.endswith("; python3 (pid 8), which has ended, holds 20.0 GiB")


def test_memory_of_an_instance_that_runs_out() -> None:
    """PROC-09: under MIG each instance has a wall of its own, though the GPU as a whole has room."""
    problem = only(snapshot([gpu(used_gib=9.7, total_gib=80, mig=(mig_instance(3, 9.7), mig_instance(4, 1.0)))], []))

    assert (problem.severity, problem.kind) == (CRITICAL, "memory_full")
    assert "MIG instance 3 (1g.10gb)" in problem.text


def test_memory_that_compute_instances_share_is_full_once() -> None:
    """PROC-09: two compute instances in one GPU instance have one wall between them."""
    shared = tuple(mig_instance(3, 9.7, profile=f"{number}c", compute=number) for number in range(2))

    assert "MIG instance 3 (0c)" in only(snapshot([gpu(used_gib=9.7, total_gib=80, mig=shared)], [])).text


def test_unified_memory_that_is_full() -> None:
    """NUM-05: is so for GPU and CPU at once, and who uses more of it is named."""
    split = Reconciliation(20 * GIB, 0, 0, 99 * GIB)
    unified = gpu(identity=identity(memory_kind=MemoryKind.UNIFIED), used_gib=119, total_gib=120, reconciliation=split)
    problem = only(snapshot([unified]))

    assert problem.text == "memory of GPU and CPU is 99 % full, 768.0 MiB left; 99.0 GiB of it are used beside the GPU"
    assert "the whole machine may hang" in problem.advice


def test_a_lost_gpu_that_answers_again() -> None:
    """GPU-01: it stays critical, as its alert does, until a new session shows that it is back."""
    problem = only(snapshot([gpu(lost_since_seconds=NOW - 65)]))

    assert (problem.severity, problem.kind) == (CRITICAL, "gpu_lost")
    assert problem.text.startswith("was lost 1 min 5 s ago and answers again")


@pytest.mark.parametrize(
    ("letter", "expected"),
    [("Z", [(WARNING, "zombie_processes")]), ("D", [(INFO, "uninterruptible_processes")]), ("S", []), ("R", [])],
)
def test_processes_that_no_signal_reaches(letter: str, expected: list[tuple[Severity, str]]) -> None:
    """PROC-02: a zombie or a process in D state that holds memory is flagged."""
    assert found(snapshot([gpu()], [process(kernel_state=letter)])) == expected


def test_a_zombie_without_memory_is_nobodys_problem() -> None:
    """PROC-02: what matters is the memory, not the corpse."""
    assert found(snapshot([gpu()], [process(used_gib=0.0, kernel_state="Z")])) == []


def test_memory_that_the_driver_does_not_tell() -> None:
    """NUM-01: unknown memory of a dead process is called unknown, not 0 B."""
    problem = only(snapshot([gpu()], [process(5, state=ProcessState.DEAD, used_gib=None)]))

    assert "does not tell how much" in problem.text


@pytest.mark.parametrize(
    ("unattributed_gib", "total_gib", "expected"),
    [
        (1.0, 16.0, []),
        (1.1, 16.0, [(WARNING, "unattributed")]),
        (1.1, 80.0, []),
        (4.1, 80.0, [(WARNING, "unattributed")]),
    ],
)
def test_unattributed_memory(unattributed_gib: float, total_gib: float, expected: list[tuple[Severity, str]]) -> None:
    """NUM-11: memory that is nobody's is told from 1 GiB and from 5 % of the GPU on."""
    split = Reconciliation(0, 0, int(unattributed_gib * GIB))

    assert found(snapshot([gpu(used_gib=10, total_gib=total_gib, reconciliation=split)], [])) == expected


def test_memory_of_processes_without_figures() -> None:
    """NUM-01: where the driver tells no process's memory, all of it is unattributed, and that is no warning."""
    split = Reconciliation(0, 0, 10 * GIB)
    problem = only(snapshot([gpu(reconciliation=split)], [process(used_gib=None)]))

    assert (problem.severity, problem.kind) == (INFO, "unattributed")
    assert "does not tell the memory of 1 process:" in problem.advice


def test_a_pid_namespace_of_its_own() -> None:
    """PROC-04: the agent says that its pids are not the driver's, and how to run it instead."""
    problem = only(snapshot(node={"host_pid_namespace": False}))

    assert (problem.severity, problem.kind) == (WARNING, "pid_namespace")
    assert "--pid=host" in problem.advice


def test_a_list_of_processes_that_is_not_trusted() -> None:
    """NUM-10: a driver that shuffles its process list is named as the reason."""
    assert found(snapshot([gpu(processes_trusted=False)])) == [(WARNING, "processes_untrusted")]


def test_figures_that_cannot_be_true() -> None:
    """NUM-12: told once, with what contradicts what, and not again as a collector that failed."""
    runs = (CollectorRun("processes", False, 0.0, f"the driver's figures {WITHHELD}"),)
    problem = only(snapshot([gpu(act_refusal="too much", processes_known=False, reconciliation=None, runs=runs)]))

    assert (problem.severity, problem.kind, problem.text) == (WARNING, "figures_untrusted", "too much")
    assert "nvidia-smi" in problem.advice


@pytest.mark.parametrize("refusal", [MPS_UNKNOWN, NO_PCI_ADDRESS])
def test_a_fact_that_is_missing(refusal: str) -> None:
    """PROC-08: figures that contradict nothing are not called impossible, and no reset is proposed."""
    problem = only(snapshot([gpu(act_refusal=refusal)]))

    assert (problem.severity, problem.kind, problem.text) == (WARNING, "figures_untrusted", refusal)
    assert "cannot be true" not in problem.advice
    assert "nvidia-smi -r" not in problem.advice


@pytest.mark.parametrize(
    ("xid", "age_seconds", "expected"),
    [
        *((code, 60, [INFO]) for code in (13, 31, 43, 45, 63, 68, 92)),
        *((code, 60, []) for code in (48, 62, 64, 74, 79, 95, 109, 119, 120)),
        (94, 60, [WARNING]),
        (31, 4000, []),
        (777, 60, [WARNING]),
    ],
)
def test_xids(xid: int, age_seconds: float, expected: list[Severity]) -> None:
    """ALERT-02, ALERT-03: others than hardware Xids are told for an hour; a hardware Xid that was repaired is not."""
    events = (XidCount(0, "GPU-00000000", xid, 2, WALL - age_seconds),)
    problems = find_problems(snapshot(xids=events), NOW)

    assert [problem.severity for problem in problems] == expected
    assert all(f"Xid {xid} " in problem.text and "2 times" in problem.text for problem in problems)


@pytest.mark.parametrize("xid", [48, 62, 64, 74, 79, 95, 119, 120, 140])
@pytest.mark.parametrize("age_seconds", [60, 80_000, 900_000])
def test_an_xid_without_a_repair(xid: int, age_seconds: float) -> None:
    """ALERT-02: it is critical until the driver shows the repair, however long ago it was, and says so."""
    event = XidCount(0, "GPU-00000000", xid, 0, WALL - age_seconds)
    problem = only(snapshot([gpu(unrepaired_xids=(event,))], xids=(event,)))

    assert (problem.severity, problem.kind) == (CRITICAL, "xid")
    assert problem.text.startswith(f"Xid {xid} ")
    assert problem.text.endswith("it was not repaired since")


@pytest.mark.parametrize(
    ("ecc", "severity", "kind"),
    [
        (Ecc(volatile_uncorrected=3), WARNING, "ecc_uncorrected"),
        (Ecc(remap_pending=True), WARNING, "remap_pending"),
        (Ecc(retired_pages_pending=True), WARNING, "remap_pending"),
        (Ecc(remap_failed=True), CRITICAL, "memory_defect"),
        (Ecc(sram_threshold_exceeded=True), CRITICAL, "memory_defect"),
        (Ecc(recovery_action=1), CRITICAL, "recovery_action"),
        (Ecc(recovery_action=7), CRITICAL, "recovery_action"),
    ],
)
def test_memory_errors(ecc: Ecc, severity: Severity, kind: str) -> None:
    """Each sign of bad memory is told, the grave ones as such."""
    assert found(snapshot([gpu(ecc=ecc)])) == [(severity, kind)]


def test_old_memory_errors_are_history() -> None:
    """ALERT-02: errors over the GPU's life, and an advice of "none", are nothing to act on now."""
    assert found(snapshot([gpu(ecc=Ecc(aggregate_uncorrected=9, recovery_action=0))])) == []


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("hw_thermal_slowdown", [(WARNING, "slowed_down")]),
        ("sw_thermal_slowdown", [(WARNING, "slowed_down")]),
        ("hw_power_brake_slowdown", [(WARNING, "slowed_down")]),
        ("sw_power_cap", []),
        ("gpu_idle", []),
    ],
)
def test_a_gpu_that_is_slowed_down(reason: str, expected: list[tuple[Severity, str]]) -> None:
    """Heat and failing power are told; that a busy GPU runs into its power limit is how it works."""
    assert found(snapshot([gpu(clocks=Clocks(event_reasons=((reason, True), ("sync_boost", False))))])) == expected


def test_a_lowered_power_limit() -> None:
    """A power limit below the default is told while it holds the GPU back."""
    held = gpu(
        clocks=Clocks(event_reasons=(("sw_power_cap", True),)),
        power=Power(enforced_limit_watts=200.0, default_limit_watts=300.0),
    )

    assert found(snapshot([held])) == [(INFO, "power_limited")]


def test_collectors_that_fail_for_one_reason_are_one_problem() -> None:
    """EXP-05: what could not be read is named with its reason, once for all GPUs."""
    bad = (CollectorRun("clocks", ok=False, duration_seconds=0.1, reason="timeout"),)
    here = snapshot([gpu(0, runs=bad), gpu(1, runs=bad)], runs=(CollectorRun("xid_events", False, 0.0, "no events"),))
    problems = find_problems(here, NOW)

    assert [problem.text for problem in problems] == [
        "could not be read: xid_events: no events",
        "could not be read: clocks on GPU 0, 1: timeout",
    ]


@pytest.mark.parametrize(("age", "expected"), [(4.9, []), (5.1, [(CRITICAL, "stale")])])
def test_stale_data(age: float, expected: list[tuple[Severity, str]]) -> None:
    """EXP-05: figures that are too old to be the node's present are called so."""
    assert found(snapshot(), NOW + age) == expected


def test_a_slow_poll_interval_is_not_stale() -> None:
    """EXP-05: what is old depends on how often is measured."""
    assert find_problems(snapshot(), NOW + 80, poll_interval_seconds=30) == []


def test_old_data_is_explained_once() -> None:
    """GPU-04: where a blind GPU is why nothing new is known, it is the only problem told."""
    here = snapshot([absent_gpu(0, GpuState.BLIND)], [], measured_seconds=NOW - 120)

    assert found(here) == [(CRITICAL, "gpu_blind")]


def test_what_is_wrong_with_the_state_file_is_told() -> None:
    """ALERT-08: with and without a measurement, and nothing where nothing is wrong."""
    for seen in (None, snapshot()):
        kinds = {found.kind: found.text for found in find_problems(seen, NOW, state_problem="1 of told (no JSON)")}
        assert kinds["state"] == "the agent's state: 1 of told (no JSON)"
        assert "state" not in {found.kind for found in find_problems(seen, NOW)}


def test_whom_rules_leave_alone_is_told_by_number() -> None:
    """KILL-07: with and without a measurement, and nobody's name: the status may be open to everybody."""
    for seen in (None, snapshot()):
        for owners, who in ((1, "1 user, unit or container"), (2, "2 users, units or containers")):
            told = [
                one.text for one in find_problems(seen, NOW, left_alone=owners) if one.kind == "remedies_left_alone"
            ]
            assert len(told) == 1
            assert f"the processes of {who} alone" in told[0]
        assert "remedies_left_alone" not in {found.kind for found in find_problems(seen, NOW)}


def test_the_gravest_come_first() -> None:
    """At 3 a.m. only the first line is read."""
    here = snapshot(
        [gpu(0, ecc=Ecc(remap_pending=True)), absent_gpu(1, GpuState.LOST), gpu(2, used_gib=23.9)],
        [process(gpu_index=0, kernel_state="D")],
        node={"host_pid_namespace": False},
    )

    assert found(here) == [
        (CRITICAL, "gpu_lost"),
        (CRITICAL, "memory_full"),
        (WARNING, "pid_namespace"),
        (WARNING, "remap_pending"),
        (INFO, "uninterruptible_processes"),
    ]


def test_every_problem_stands_alone() -> None:
    """A problem's sentence names its GPU, and the node's problems name none."""
    assert Problem(WARNING, "x", "too hot", gpu=3).sentence == "GPU 3: too hot"
    assert Problem(WARNING, "x", "too hot").sentence == "too hot"


def test_long_lists_are_cut() -> None:
    """A sentence stays one that can be read."""
    assert joined([1, 2]) == "1, 2"
    assert joined(range(7)) == "0, 1, 2, 3, 4 and 2 more"
