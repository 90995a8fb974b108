"""An evaluation that failed is none: what fired before it is no reason to act."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpuagent.core.clock import ManualClock
from gpuagent_alerts.remedies.alert_evaluation import AlertEvaluation
from gpuagent_alerts.states.engine import RuleEngine
from tests.agent.service.alerting.bench import BUSY, FULL, alerting, config, rules, run


def test_no_reason_to_act(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KILL-02: remedies are given no reason from an evaluation that was not applied; the next one gives it again."""
    given: list[Sequence[AlertEvaluation]] = []

    async def listen(evaluations: Sequence[AlertEvaluation]) -> None:
        given.append(evaluations)

    def fail(*_: Any) -> None:
        raise RuntimeError("a defect")

    async def test() -> None:
        async with alerting(config(tmp_path, None), rules(FULL), ManualClock(), tmp_path / "s") as bench:
            bench.alerting.listen(listen, tuple, lambda _: "")
            await bench.show(BUSY, times=3)
            with monkeypatch.context() as patched:
                patched.setattr(RuleEngine, "evaluate", fail)
                await bench.show(BUSY)
            failed = given[-1]
            await bench.show(BUSY)
            assert [bool(each.objection) for each in failed] == [True]
            assert [bool(each.objection) for each in given[-1]] == [False]

    run(test)
