"""A rule of one's own on growth, from the simulated driver to the judgment of whom it would end."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuagent.core.growth import Verdict
from gpuagent_alerts.remedies.observation import RemedyRequest
from gpuagent_alerts.remedies.safeguards.policy import AllowList, Policy
from gpuagent_alerts.remedies.safeguards.rule_analysis import analyze_rule
from gpuagent_alerts.remedies.snapshot_targets import all_targets
from gpuagent_alerts.remedies.steps import RemedyStep, StepKind
from gpuagent_alerts.remedies.target import Target
from gpuagent_alerts.rules.file import load_rule_file
from gpuagent_alerts.rules.model import AlertRule
from gpuagent_alerts.states.engine import RuleEngine
from gpuagent_alerts.states.machine import Change
from tests.alerts.leak.node import HOUR, Node, node, run

pytestmark = pytest.mark.slow

PID = 5_000_000
RULES = """
groups:
  - name: mine
    rules:
      - alert: Grows
        expr: gpuagent_process_memory_growth_bytes_per_second * 3600 > 1e9
"""
LOAD = "{shape: plateau, start: 5GiB, level: 9GiB, over: 90m}"
LEAK = "{shape: ramp, start: 20GiB, rate: 2.5MiB, after: 1h}"
STORY = f"""\
gpus:
  - model: h100
    memory: {{total: 80GiB, base_used: 400MiB}}
    processes:
      - {{name: serve, user: ml, pid: {PID}, age: 1h, memory: %s}}
"""


def target(one: Node) -> Target:
    """Return the process as remedies see it now."""
    assert one.snapshot is not None
    (found,) = all_targets(one.snapshot)
    return found


def against(of: Target, rule: AlertRule) -> list[str]:
    """Return what an end of this process because of the rule lacks in evidence."""
    order = RemedyRequest(alert="a1", alertname=rule.name, labels={}, about_growth=analyze_rule(rule).about_growth)
    policy = Policy(allow=AllowList(users=("ml",)))
    return list(policy._evidence(RemedyStep(StepKind.KILL, 1.0), order, of))


@pytest.mark.parametrize(("memory", "hours", "refused"), [(LOAD, 2.0, True), (LEAK, 5.0, False)])
def test_a_process_that_loaded_once(tmp_path: Path, memory: str, hours: float, refused: bool) -> None:
    """While the rule fires about a process that loads slowly, it has no evidence against it; a leak has its own."""
    file = tmp_path / "rules.yaml"
    file.write_text(RULES)
    groups = load_rule_file(file)
    (rule,) = groups[0].rules
    assert isinstance(rule, AlertRule)

    async def test() -> None:
        async with node(STORY % memory) as one:
            one.engine = RuleEngine(groups)
            judged: list[bool] = []
            while one.seconds < hours * HOUR:
                await one.tick()
                if len(one.alerts("Grows")) > len(one.alerts("Grows", Change.ENDED)):
                    judged.append(bool(against(target(one), rule)))
            assert one.alerts("Grows")
            assert (Verdict.LEAKING in one.verdicts_of(PID)) is not refused
            assert all(judged) if refused else not judged[-1]

    run(test)
