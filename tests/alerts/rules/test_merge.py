"""Shipped rules, a user's own, and what is left out."""

from __future__ import annotations

import pytest

from gpuagent_alerts.rules.file import find_unknown_metrics, load_rule_text, merge_rules
from gpuagent_alerts.rules.model import RuleFileError, RuleGroup

SHIPPED = load_rule_text(
    "groups:\n"
    "- name: a\n  rules:\n"
    "  - {alert: High, expr: m > 1}\n  - {alert: High, expr: m > 2, labels: {s: x}}\n  - {alert: Low, expr: m < 0}\n"
    "- {name: b, rules: [{alert: Gone, expr: m}]}\n"
)
OWN = load_rule_text("groups:\n- {name: mine, rules: [{alert: High, expr: m > 5}, {record: r, expr: m}]}\n", "own.yaml")


def names(groups: tuple[RuleGroup, ...]) -> list[tuple[str, str]]:
    """Group and rule."""
    return [(group.name, rule.name) for group in groups for rule in group.rules]


def test_a_users_rule_replaces_every_shipped_one_of_its_name() -> None:
    """It stands in the user's group; the others stay in theirs."""
    assert names(merge_rules(SHIPPED, OWN)) == [("a", "Low"), ("b", "Gone"), ("mine", "High"), ("mine", "r")]


def test_a_disabled_rule_is_left_out() -> None:
    """And with it a group that has no other; a user's own rule of that name stays."""
    assert names(merge_rules(SHIPPED, (), ["Gone"])) == [("a", "High"), ("a", "High"), ("a", "Low")]
    assert ("mine", "High") in names(merge_rules(SHIPPED, OWN, ["High"]))


def test_a_disabled_name_that_is_none_is_a_fault() -> None:
    """A misspelt name would leave the rule in force in silence."""
    with pytest.raises(RuleFileError) as caught:
        merge_rules(SHIPPED, OWN, ["Gonne", "r", "Low"], config_file="gpuagent.yaml")
    assert [str(fault) for fault in caught.value.faults] == [
        'gpuagent.yaml: disabled_rules: no shipped rule is named "Gonne"; did you mean Gone?',
        'gpuagent.yaml: disabled_rules: "r" is a rule of your own files; remove it there',
    ]


def test_a_rule_that_can_never_be_true_is_noted() -> None:
    """ALERT-06: a metric that nothing makes is told when the file is loaded, with what was probably meant."""
    groups = load_rule_text(
        "groups:\n- name: g\n  rules:\n"
        "  - {record: r, expr: gpu_used}\n"
        "  - {alert: A, expr: 'gpu_usd > 1 and r and ALERTS and {__name__=~\"x.*\"}'}\n"
    )
    (note,) = find_unknown_metrics(groups, ["gpu_used"])
    assert (note.line, note.rule) == (5, "A")
    assert "no metric gpu_usd" in note.problem
    assert note.remedy == "did you mean gpu_used?"
