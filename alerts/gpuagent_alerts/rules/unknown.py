"""Rules that can never be true on the node: nothing makes the series that they look at (ALERT-06)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuagent_alerts.rules.faults import RuleFault, guess
from gpuagent_alerts.rules.model import AlertRule, RecordRule, RuleGroup

_OF_RULES = frozenset({"ALERTS", "ALERTS_FOR_STATE"})
"""Series that alert rules make."""
_SHOWN = 5


def find_unknown_metrics(groups: Sequence[RuleGroup], known: Iterable[str]) -> list[RuleFault]:
    """One note for each rule that selects a metric which is neither `known` nor recorded by a rule.

    A note, and no fault: the same file may also run in a Prometheus that has other metrics.
    """
    recorded = {rule.name for group in groups for rule in group.rules if isinstance(rule, RecordRule)}
    names = set(known) | recorded | _OF_RULES
    notes = []
    for group in groups:
        for rule in group.rules:
            unknown = sorted(rule.expression.metric_names - names)
            if unknown:
                what = "fire" if isinstance(rule, AlertRule) else "have a result"
                notes.append(
                    RuleFault(
                        rule.file,
                        rule.line,
                        f"the agent has no metric {', '.join(unknown[:_SHOWN])}: here this rule may never {what}",
                        group.name,
                        rule.name,
                        guess(unknown[0], names),
                    )
                )
    return notes
