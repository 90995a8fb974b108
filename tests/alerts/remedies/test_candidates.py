"""Why an alert that fires is about nobody: in words, for each of the ways in which that comes about."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuagent.core.hardware import Memory, MemoryKind, MigInstance
from gpuagent.core.snapshot import GpuState, Reconciliation, Snapshot
from gpuagent.core.units import GIB
from gpuagent_alerts.alert import Alert, Status
from gpuagent_alerts.remedies.alert_evaluation import AlertEvaluation
from gpuagent_alerts.remedies.candidates import candidates_of, why_nobody
from gpuagent_alerts.remedies.safeguards.rule_analysis import RuleAnalysis
from tests.fakes.snapshots import full_snapshot


def shown() -> Snapshot:
    """A snapshot whose GPUs can be read."""
    snapshot = full_snapshot()
    gpus = tuple(replace(gpu, state=GpuState.OK, processes_known=True, act_refusal="") for gpu in snapshot.gpus)
    return replace(snapshot, gpus=gpus)


UUID = shown().gpus[0].identity.uuid
BLIND = replace(shown(), gpus=(replace(shown().gpus[0], state=GpuState.BLIND, reason="a call hangs"),))


def evaluation(result: dict[str, str], analysis: RuleAnalysis | None = None, **written: str) -> AlertEvaluation:
    """An alert with this result; `written` are labels that its rule adds."""
    alert = Alert({"alertname": "Full", **result, **written}, {}, Status.FIRING, 1.7e9)
    return AlertEvaluation(alert, "x", True, 1.0, 0.0, analysis=analysis or RuleAnalysis(), result_labels=result)


@pytest.mark.parametrize(
    ("what", "snapshot", "reason"),
    [
        (
            evaluation({"uuid": UUID}, RuleAnalysis(refusal="it reads recorded series")),
            shown(),
            "it reads recorded series",
        ),
        (evaluation({"uuid": UUID}, pid="7"), shown(), "writes the label pid"),
        (evaluation({"gpu": "0"}), shown(), "no label uuid"),
        (evaluation({"uuid": "GPU-elsewhere"}), shown(), "no GPU with UUID GPU-elsewhere"),
        (evaluation({"uuid": UUID}), BLIND, "cannot be read (a call hangs)"),
        (evaluation({"uuid": UUID, "pid": "7"}), shown(), "pid 7 cannot be acted on"),
        (evaluation({"uuid": UUID, "user": "alice"}), shown(), "nobody in particular"),
        (evaluation({"uuid": UUID, "budget": "team"}), shown(), "the budget team"),
        (evaluation({"uuid": UUID}), shown(), "no process on the GPU"),
    ],
)
def test_each_way_has_its_reason(what: AlertEvaluation, snapshot: Snapshot, reason: str) -> None:
    """Whoever asks why nothing is done is told what is missing."""
    assert reason in why_nobody(what, snapshot, disrupts=True)


def test_a_ladder_that_disrupts_nobody_needs_no_grounds() -> None:
    """Doubtful grounds are no reason where no step is noticed."""
    what = evaluation({"uuid": UUID}, RuleAnalysis(refusal="it reads recorded series"))
    assert "recorded" not in why_nobody(what, shown(), disrupts=False)


MIG_FREE, USED = "gpuagent_mig_memory_free_bytes", "gpuagent_process_memory_used_bytes"
GPU_USED, TOTAL = "gpuagent_gpu_memory_used_bytes", "gpuagent_gpu_memory_total_bytes"
FULL = "and on (gpu, uuid) gpuagent_gpu_memory_free_bytes < 70 * 1024^3"


@pytest.mark.parametrize(
    ("text", "instance", "named", "of"),
    [
        ("gpuagent_gpu_memory_free_bytes < 70 * 1024^3", "", False, ""),
        ("gpuagent_gpu_memory_free_bytes < 100 * 1024^3", "", False, "GPU with 80.0 GiB"),
        # What an instance has is less than what its GPU has
        (f"{MIG_FREE} < 9 * 1024^3", "1", False, ""),
        (f"{MIG_FREE} < 15 * 1024^3", "1", False, "MIG instance with 10.0 GiB"),
        (f"{MIG_FREE} < 15 * 1024^3", "2", False, ""),
        (f"{MIG_FREE} < 9 * 1024^3", "3", False, ""),
        (f"{USED} > 500 * 1024^2", "1", False, ""),
        (f"{USED} > 1e9 {FULL}", "1", False, ""),
        # Less than a hundredth of the GPU
        (f"{USED} > 500 * 1024^2", "", False, "GPU with 80.0 GiB"),
        (f"{USED} > 1024^3", "", False, ""),
        (f"{USED} > 500 * 1024^2", "", True, ""),
    ],
)
def test_an_amount_that_suits_larger_gpus_alone(text: str, instance: str, named: bool, of: str) -> None:
    """On a GPU of 80 GiB less than 100 GiB are free whatever is used: nobody is a candidate, and it says why."""
    first = shown().gpus[0]
    memory = Memory(total_bytes=80 * 2**30, used_bytes=20 * 2**30, free_bytes=60 * 2**30)
    parts = tuple(
        MigInstance(f"MIG-{number}", number, 0, "a", Memory(total_bytes=gib * 2**30))
        for number, gib in ((1, 10), (2, 40))
    )
    snapshot = replace(shown(), gpus=(replace(first, memory=memory, mig=parts), *shown().gpus[1:]))
    labels = {"uuid": UUID, **({"gpu_instance_id": instance} if instance else {})}
    what = evaluation(labels, RuleAnalysis(named=named))._replace(expression=text)
    reason = why_nobody(what, snapshot, disrupts=True)

    assert ("true whatever is used of a" in reason) == bool(of)
    assert of in reason
    if not instance:
        assert candidates_of(what, snapshot, (), disrupts=False) != []


@pytest.mark.parametrize(
    ("text", "loose"),
    [
        ("gpuagent_gpu_memory_free_bytes < 41 * 1024^3", True),
        ("60 >= gpuagent_gpu_memory_free_bytes / 1024^3", True),
        (f"{USED} > 1e9 {FULL}", True),
        # What is left, in other spellings
        (f"{GPU_USED} + 70 * 1024^3 > {TOTAL}", True),
        (f"{GPU_USED} > {TOTAL} - 70 * 1024^3", True),
        (f"{TOTAL} - {GPU_USED} < 70e9", True),
        (f"gpuagent_gpu_memory_free_bytes - {GPU_USED} < 60e9", True),
        (f"-{GPU_USED} < 70e9 - {TOTAL}", True),
        (f"gpuagent_gpu_memory_used_ratio > 1 - 70e9 / {TOTAL}", True),
        (f"({TOTAL} - {GPU_USED}) / 1024^3 <= 60", True),
        (f"max by (gpu, uuid) ({GPU_USED}) + 70e9 > max by (gpu, uuid) ({TOTAL})", True),
        (f"{USED} > on (gpu, uuid) group_left () ({TOTAL} - 70e9)", True),
        (f"{GPU_USED} > 5e9 and {GPU_USED} + 70e9 > {TOTAL}", True),
        ("gpuagent_mig_memory_used_bytes + 70e9 > gpuagent_mig_memory_total_bytes", True),
        (f"{GPU_USED} + 20e9 > {TOTAL}", False),
        (f"{GPU_USED} > {TOTAL} - 30 * 1024^3", False),
        (f"{TOTAL} - gpuagent_gpu_memory_free_bytes > 8 * 1024^3", False),
        (f"{GPU_USED} > 0.2 * {TOTAL}", False),
        (f"{GPU_USED} - 8e9 > 0.1 * {TOTAL}", False),
        (f"{USED} > on (gpu, uuid) group_left () (0.2 * {TOTAL})", False),
        ("gpuagent_gpu_memory_free_bytes < 40 * 1024^3", False),
        ("gpuagent_gpu_memory_used_bytes > 8 * 1024^3", False),
    ],
)
def test_too_little_free_is_less_than_half(text: str, loose: bool) -> None:
    """On a GPU of 80 GiB a rule about less than 41 GiB free is true while most of it is free: nobody is chosen."""
    memory = Memory(total_bytes=80 * 2**30, used_bytes=20 * 2**30, free_bytes=60 * 2**30)
    snapshot = replace(shown(), gpus=(replace(shown().gpus[0], memory=memory), *shown().gpus[1:]))
    what = evaluation({"uuid": UUID}, RuleAnalysis())._replace(expression=text)

    assert ("more than half of 80.0 GiB is free" in why_nobody(what, snapshot, disrupts=True)) == loose
    assert (candidates_of(what, snapshot, (), disrupts=True) == []) == loose


@pytest.mark.parametrize(
    ("kind", "host_gib", "named", "spared"),
    [
        (MemoryKind.UNIFIED, 39, {}, True),
        (MemoryKind.UNIFIED, 37, {}, False),
        (MemoryKind.UNIFIED, 39, {"pid": "10"}, False),
        (MemoryKind.DEDICATED, 0, {}, False),
    ],
)
def test_what_is_used_beside_a_gpu_accuses_none_of_its_processes(
    kind: MemoryKind, host_gib: int, named: dict[str, str], spared: bool
) -> None:
    """KILL-08, NUM-05: of shared memory the larger part has to be the processes', unless the rule names one of them."""
    gpu = shown().gpus[0]
    split = Reconciliation(38 * GIB, 0, 0, host_gib * GIB)
    gpu = replace(gpu, identity=replace(gpu.identity, memory_kind=kind), reconciliation=split)
    snapshot = replace(shown(), gpus=(gpu, *shown().gpus[1:]))
    what = evaluation({"uuid": UUID, **named}, RuleAnalysis())._replace(
        expression="gpuagent_gpu_memory_free_bytes < 1e9"
    )

    assert ("used beside the GPU" in why_nobody(what, snapshot, disrupts=True)) == spared
    if spared:
        assert candidates_of(what, snapshot, (), disrupts=True) == []
        assert "used beside the GPU" not in why_nobody(what, snapshot, disrupts=False)
