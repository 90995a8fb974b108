"""What the alerting half hands to remedies of the rule behind an alert."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpuagent.core.clock import ManualClock
from gpuagent_alerts.remedies.alert_evaluation import AlertEvaluation
from gpuagent_alerts.remedies.safeguards.rule_analysis import RuleAnalysis
from tests.agent.service.alerting.bench import BUSY, alerting, config, rules, run

FULL = (
    "alert: Full, expr: gpuagent_gpu_memory_used_ratio > 0.9, "
    "labels: {severity: critical, unit: gpu-team, gpu_model: '{{ $labels.gpu }}'}"
)
TEMPLATE = "alert: Writes, expr: gpuagent_gpu_memory_used_ratio > 0.9, labels: {user: '{{ $labels.gpu }}'}"


def test_labels_of_the_result(tmp_path: Path) -> None:
    """Remedies are given the analysis of the rule, and the labels of the result without those that the rule writes."""
    given: list[AlertEvaluation] = []

    async def listen(evaluations: Sequence[AlertEvaluation]) -> None:
        given.extend(evaluations)

    async def test() -> None:
        async with alerting(config(tmp_path, None), rules(FULL, TEMPLATE), ManualClock(), tmp_path / "s") as bench:
            bench.alerting.listen(listen, tuple, lambda _: "")
            await bench.show(BUSY, times=3)
            found = {each.alert.name: each for each in given}
            uuid = BUSY.gpus[0].identity.uuid
            assert found["Full"].analysis == RuleAnalysis()
            assert found["Full"].alert.labels["unit"] == "gpu-team"
            assert found["Full"].result_labels == {"gpu": "0", "uuid": uuid}
            assert "label user is a template" in found["Writes"].analysis.refusal

    run(test)
