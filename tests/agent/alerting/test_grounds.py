"""What the alerting half says of the rules that ladders are meant for, and hands to remedies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuagent.clock import ManualClock
from gpuagent_alerts.remedies.grounds import Grounds
from gpuagent_alerts.remedies.judged import Judged
from tests.agent.alerting.bench import BUSY, alerting, config, rules, run

FULL = (
    "alert: Full, expr: gpuagent_gpu_memory_used_ratio > 0.9, "
    "labels: {severity: critical, unit: gpu-team, gpu_model: '{{ $labels.gpu }}'}"
)
OLD = "alert: Old, expr: 'old:memory:sum > 1', labels: {severity: critical}"
TEMPLATE = "alert: Writes, expr: gpuagent_gpu_memory_used_ratio > 0.9, labels: {user: '{{ $labels.gpu }}'}"


def ladder(matcher: str, step: str = "kill") -> dict[str, object]:
    """One step for what this matches."""
    return {"match": [matcher], "steps": [{step: {}}], "victim": "largest"}


def test_labels_of_the_result(tmp_path: Path) -> None:
    """Remedies are given the grounds of the rule, and the labels of the result without those that the rule writes."""
    given: list[Judged] = []

    async def listen(judged: Sequence[Judged]) -> None:
        given.extend(judged)

    async def test() -> None:
        async with alerting(config(tmp_path, None), rules(FULL, TEMPLATE), ManualClock(), tmp_path / "s") as bench:
            bench.alerting.listen(listen, tuple, lambda _: "")
            await bench.show(BUSY, times=3)
            found = {each.alert.name: each for each in given}
            uuid = BUSY.gpus[0].identity.uuid
            assert found["Full"].grounds == Grounds()
            assert found["Full"].alert.labels["unit"] == "gpu-team"
            assert found["Full"].result_labels == {"gpu": "0", "uuid": uuid}
            assert "label user is a template" in found["Writes"].grounds.refusal

    run(test)


@pytest.mark.parametrize(
    ("ladders", "warned"),
    [
        ([ladder('alertname="Old"')], ["Old"]),
        ([ladder('alertname=~"Old|Full|Writes"')], ["Old", "Writes"]),
        ([ladder('severity="critical"')], ["Old"]),
        ([ladder('alertname="Full"')], []),
        ([ladder('alertname="Old"', "release_cache")], []),
        ([], []),
    ],
)
def test_says_which_ladder_is_without_grounds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, ladders: list[dict[str, object]], warned: list[str]
) -> None:
    """At the start and after a reload, each rule that a ladder waits for in vain is told once, with the reason."""
    groups = rules(FULL, OLD, TEMPLATE)

    def told() -> list[str]:
        texts = [each.getMessage() for each in caplog.records if "no ladder disrupts" in each.getMessage()]
        caplog.clear()
        assert all("read the metrics themselves" in text or "is a template" in text for text in texts)
        return [text.split()[1] for text in texts]

    async def test() -> None:
        settings = config(tmp_path, None, remedies={"ladders": ladders})
        async with alerting(settings, groups, ManualClock(), tmp_path / "s") as bench:
            assert told() == warned
            await bench.alerting.reload(settings, groups, lambda: True)
            assert told() == warned

    run(test)
