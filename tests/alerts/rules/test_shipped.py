"""The rules that come with the agent."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest
import yaml

from gpuagent.core.matchers import Matchers, parse_matcher
from gpuagent_alerts.notify.inhibition import LOSS_RULES, TIER_RULES
from gpuagent_alerts.rules.file import find_unknown_metrics, load_rule_file
from gpuagent_alerts.rules.model import AlertRule
from gpuagent_alerts.rules.unit_test import run_unit_tests
from gpuagent_alerts.shipped import RULES_FILE, TESTS_FILE
from gpuagent_alerts.states.missing import FAMILIES
from tests.alerts.rules import promtool

RULES = [rule for group in load_rule_file(RULES_FILE) for rule in group.rules]
NAMES = {
    "AppAboveDeclaredMemory",
    "GpuMemoryOversubscribed",
    "GpuMemoryHigh", "GpuMemoryFull", "GpuInstanceMemoryFull", "GpuDeadProcessesHoldMemory", "GpuMemoryUnattributed",
    "GpuProcessIdleHoldingMemory", "GpuXidCritical", "GpuXidWarning", "GpuEccUncorrectable", "GpuRowRemapFailed",
    "GpuRowRemapPending", "GpuRecoveryAction", "GpuLost", "GpuCountDropped", "GpuThrottledThermal",
    "GpuThrottledPower", "GpuMonitorBlind", "Watchdog", "GpuProcessMemoryLeak", "GpuMemoryLeak",
    "GpuMemoryExhaustionSoon", "GpuRemedy", "GpuRemedyAnnounced", "GpuProcessUnkillable", "GpuRemediesStopped",
    "GpuBudgetExceeded", "GpuMemoryStallImminent", "GpuHeldIdle",
}  # fmt: skip


def test_there_are_these_rules() -> None:
    """Their names are a contract: silences, routes and `disabled_rules` go by them."""
    assert {rule.name for rule in RULES} == NAMES


@pytest.mark.parametrize("rule", RULES, ids=[f"{rule.name}-{rule.line}" for rule in RULES])
def test_each_says_what_it_means_and_what_to_do(rule: AlertRule) -> None:
    """A severity out of four; a summary and a description that are whole sentences, whatever the labels."""
    assert isinstance(rule, AlertRule)
    assert rule.label_texts["severity"] in {"critical", "warning", "info", "none"}
    texts = {"summary", "pending_summary", "resolved_summary", "description", "runbook_url"}
    assert set(rule.annotations) - {"reasons"} == texts
    for template in rule.annotations.values():
        text = template.fill({"gpu": "0"}, 0.5)
        assert "{{" not in text
        assert len(text) > 10
    assert rule.annotations["description"].text.strip().endswith(".")


@pytest.mark.parametrize("rule", RULES, ids=[f"{rule.name}-{rule.line}" for rule in RULES])
def test_no_text_is_for_two_states(rule: AlertRule) -> None:
    """What is true of a firing alert is not said of a pending or an ended one, whatever the labels and the value."""
    labels = {"gpu": "0", "process": "serve", "pid": "7", "user": "ml", "xid": "79", "budget": "team", "app": "web"}
    filled = {
        name: " ".join(template.fill(labels, 0.95, house_format=True).split()).lower()
        for name, template in rule.annotations.items()
    }
    others = filled["pending_summary"], filled["resolved_summary"]
    assert others[0] != others[1]
    for other in others:
        assert other not in filled["summary"]
        assert not any(filled[name] in other for name in ("summary", "description"))


@pytest.mark.parametrize("rule", RULES, ids=[f"{rule.name}-{rule.line}" for rule in RULES])
def test_no_text_claims_a_time_that_has_not_passed(rule: AlertRule) -> None:
    """A firing text names no time but the rule's own `for`; a pending one says how long it takes, and just that."""
    texts = {name: template.text for name, template in rule.annotations.items()}
    for claimed in re.findall(r"for (?:the last )?((?:\d+|an?) (?:second|minute|hour)s?)", texts["summary"]):
        assert SPOKEN[claimed] == rule.for_seconds
    waits = re.findall(
        r"this fires once that has (?:lasted|been so for) ([^;]*)$", " ".join(texts["pending_summary"].split())
    )
    assert [SPOKEN[one] for one in waits] == ([rule.for_seconds] if rule.for_seconds else [])


SPOKEN = {
    "15 seconds": 15, "30 seconds": 30, "a minute": 60, "2 minutes": 120, "5 minutes": 300, "10 minutes": 600,
    "15 minutes": 900, "an hour": 3600,
}  # fmt: skip


def test_every_metric_is_in_the_catalogue() -> None:
    """ALERT-06: none of them looks at a series that cannot be."""
    known = {family.name for family in FAMILIES}
    assert find_unknown_metrics(load_rule_file(RULES_FILE), known) == []


@pytest.mark.slow
def test_their_unit_tests_pass_here() -> None:
    """ALERT-01 to ALERT-05 are among them."""
    assert run_unit_tests(TESTS_FILE).problems == []


def test_every_rule_fires_in_a_unit_test() -> None:
    """A rule that no test has seen firing may never fire."""
    text = TESTS_FILE.read_text()
    expected = yaml.safe_load(text)["tests"]
    fired = {
        case["alertname"] for test in expected for case in test.get("alert_rule_test", ()) if case["exp_alerts"]
    } | set(re.findall(r"labels: '(?:ALERTS)?\{alertname=\"(\w+)\"", text))
    assert NAMES - fired == set()


@pytest.mark.slow
@pytest.mark.needs("promtool")
def test_prometheus_loads_them_and_agrees() -> None:
    """Unchanged, without a complaint, and with the same verdict on every test."""
    lint = subprocess.run(["promtool", "check", "rules", "--lint=all", "--lint-fatal", str(RULES_FILE)], check=False)
    assert lint.returncode == 0
    assert promtool.run_unit_tests([Path(TESTS_FILE)]) == {TESTS_FILE: ""}


def sources_and_targets() -> list[tuple[AlertRule, AlertRule, bool]]:
    """Every pair of rules of which the one mutes the other, and whether it does so as it takes the data away."""
    rules = [rule for rule in RULES if isinstance(rule, AlertRule)]
    return [
        (source, target, each in LOSS_RULES)
        for each in (*LOSS_RULES, *TIER_RULES)
        for source, target in product(taken(each.source, rules), taken(each.target, rules))
        if source is not target
    ]


def taken(matchers: tuple[str, ...], rules: Sequence[AlertRule]) -> list[AlertRule]:
    """Those whose alerts may match: of labels that an expression writes, anything may be the value."""
    parsed = [parse_matcher(text) for text in matchers]
    found = []
    for rule in rules:
        labels = {"alertname": rule.name, **rule.label_texts}
        if Matchers(one for one in parsed if one.name in labels)(labels):
            found.append(rule)
    return found


@pytest.mark.parametrize(
    ("source", "target", "blinds"), sources_and_targets(), ids=lambda one: str(getattr(one, "line", one))
)
def test_what_mutes_is_kept_for_longer_than_what_it_mutes(source: AlertRule, target: AlertRule, blinds: bool) -> None:
    """Both conditions end with one process: then no target outlives its source, also where groups come in turn."""
    lasts = source.keep_firing_for_seconds + (source.for_seconds if blinds else 0.0)
    assert target.keep_firing_for_seconds <= lasts - 30.0 or target.keep_firing_for_seconds == 0.0
