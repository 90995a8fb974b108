"""Rules and rows for tests of states."""

from __future__ import annotations

from gpuagent_alerts.alert import Alert
from gpuagent_alerts.promql.values import Row
from gpuagent_alerts.rules.file import load_rule_text
from gpuagent_alerts.rules.model import AlertRule, RuleGroup
from gpuagent_alerts.states.machine import Transition

WALL = 1_700_000_000.0
"""Unix time at clock 0 of these tests."""


def groups(*rules: str, limit: int = 0, name: str = "g") -> tuple[RuleGroup, ...]:
    """A group of rules in YAML's flow style, without their braces."""
    lines = "".join(f"  - {{{rule}}}\n" for rule in rules)
    return load_rule_text(f"groups:\n- name: {name}\n  limit: {limit}\n  rules:\n{lines}")


def alert_rule(options: str = "") -> AlertRule:
    """An alert on m."""
    ((rule,),) = (group.rules for group in groups(f"alert: A, expr: m{options and f', {options}'}"))
    assert isinstance(rule, AlertRule)
    return rule


def row(value: float = 1.0, **labels: str) -> Row:
    """A result of the expression."""
    return Row({"__name__": "m", **labels}, value)


def changes(transitions: list[Transition]) -> list[tuple[str, str]]:
    """What happened, with the label gpu of each alert."""
    return [(transition.change.value, transition.alert.labels.get("gpu", "")) for transition in transitions]


def only(transitions: list[Transition]) -> Alert:
    """The alert of the one transition."""
    (transition,) = transitions
    return transition.alert
