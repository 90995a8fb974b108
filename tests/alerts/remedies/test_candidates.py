"""Why an alert that fires is about nobody: in words, for each of the ways in which that comes about."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuagent.core.hardware import Memory
from gpuagent.core.snapshot import GpuState, Snapshot
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


@pytest.mark.parametrize(("free_gib", "is_true_of_all"), [(70, False), (100, True)])
def test_an_amount_that_suits_larger_gpus_alone(free_gib: int, is_true_of_all: bool) -> None:
    """On a GPU of 80 GiB less than 100 GiB are free whatever is used: nobody is a candidate, and it says why."""
    first = shown().gpus[0]
    memory = Memory(total_bytes=80 * 2**30, used_bytes=20 * 2**30, free_bytes=60 * 2**30)
    snapshot = replace(shown(), gpus=(replace(first, memory=memory), *shown().gpus[1:]))
    text = f"gpuagent_gpu_memory_free_bytes < {free_gib} * 1024^3"
    what = evaluation({"uuid": UUID})._replace(expression=text)
    reason = why_nobody(what, snapshot, disrupts=True)

    assert ("true whatever is used of a GPU with 80.0 GiB" in reason) == is_true_of_all
    assert candidates_of(what, snapshot, (), disrupts=False) != []
    assert (candidates_of(what, snapshot, (), disrupts=True) == []) == is_true_of_all
