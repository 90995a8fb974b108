"""Why an alert ended: what was when its condition held last, compared with what is now.

A reason is given only where the measurements show it. Everything else is "no longer true", with the value now.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from gpuagent.alerting.end_reasons import Case, Facts, facts_of, reason_by_name, reason_of_process
from gpuagent.core.identity import ProcessId
from gpuagent.core.snapshot import Snapshot
from gpuagent.core.units import format_bytes, format_duration
from gpuagent_alerts.alert import Alert
from gpuagent_alerts.annotations import UNKNOWN_END
from gpuagent_alerts.promql.expression import compile_measured_side
from gpuagent_alerts.promql.series import SeriesIndex
from gpuagent_alerts.promql.values import EvaluationError
from gpuagent_alerts.remedies.ending import RemedyEnding, no_remedy
from gpuagent_alerts.rules.house_format import percentage
from gpuagent_alerts.rules.model import AlertRule
from gpuagent_alerts.states.group import RunningRule
from gpuagent_alerts.states.machine import Change, Transition

RemedyOf = Callable[[str, str], RemedyEnding | None]
"""What a remedy did to the process of this pid on the GPU of this UUID; None where none helped."""
IsAlive = Callable[[ProcessId], bool | None]
"""Whether a process runs; None where that cannot be told."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """What an evaluation of rules saw."""

    snapshot: Snapshot
    index: SeriesIndex
    wall_seconds: float


class Endings:
    """Remembers what each firing alert is about, and says why it ended. For one event loop."""

    def __init__(self, rules: Callable[[], Iterable[RunningRule]]) -> None:
        self._remedy_of: RemedyOf = no_remedy
        self._is_alive: IsAlive = _unknown
        self._rules = rules
        self._facts: dict[str, Facts] = {}

    def ask(self, remedy_of: RemedyOf, is_alive: IsAlive) -> None:
        """Ask these from now on: what a remedy did to a process, and whether a process runs."""
        self._remedy_of, self._is_alive = remedy_of, is_alive

    def explain(self, transitions: Iterable[Transition], seen: Evaluated) -> tuple[Transition, ...]:
        """Return the transitions of an evaluation; those that ended have the reason."""
        explained = []
        for change, alert in transitions:
            if change is Change.ENDED:
                facts = self._facts.pop(alert.fingerprint, None)
                reason = alert.end_reason or self._reason(alert, facts, seen)
                explained.append(Transition(change, replace(alert, end_reason=reason)))
                continue
            if alert.true_until is None and (facts := facts_of(alert.labels, seen.snapshot)) is not None:
                self._facts[alert.fingerprint] = facts
            explained.append(Transition(change, alert))
        return tuple(explained)

    def _reason(self, alert: Alert, before: Facts | None, seen: Evaluated) -> str:
        case = Case(alert, before, seen.snapshot, seen.wall_seconds, self._is_alive)
        remedy = self._remedy_of(alert.labels.get("pid", ""), alert.labels.get("uuid", ""))
        return reason_of_process(case, remedy) or reason_by_name(case) or self._value_now(alert, seen)

    def _value_now(self, alert: Alert, seen: Evaluated) -> str:
        for running in self._rules():
            rule = running.rule
            if isinstance(rule, AlertRule) and rule.name == alert.name and _has_labels_of(rule, alert.labels):
                if text := _measured(rule, alert.labels, seen):
                    return f"{UNKNOWN_END}: {text} now"
                break
        return UNKNOWN_END


def _unknown(_: ProcessId) -> bool | None:
    return None


def _has_labels_of(rule: AlertRule, labels: Mapping[str, str]) -> bool:
    return all(labels.get(name, "") == one.text for name, one in rule.labels.items() if one.is_constant)


def _measured(rule: AlertRule, labels: Mapping[str, str], seen: Evaluated) -> str:
    """Return the value that the rule compares with its threshold, for the alert of these labels; "" if it is gone."""
    side = compile_measured_side(rule.expression)
    if side is None:
        return ""
    try:
        rows = side.rows(seen.index, seen.wall_seconds)
    except EvaluationError:
        return ""
    own = {name: text for name, text in labels.items() if name != "alertname" and name not in rule.labels}
    found = [
        row.value
        for row in rows
        if {name: text for name, text in row.labels.items() if name != "__name__" and name not in rule.labels} == own
    ]
    if len(found) != 1 or not math.isfinite(found[0]):
        return ""
    metrics = side.metric_names
    return format_quantity(next(iter(metrics)) if len(metrics) == 1 else "", found[0])


def format_quantity(metric: str, value: float) -> str:
    """Return a value in the unit that the metric's name ends with."""
    if metric.endswith("_bytes") and value >= 0:
        return format_bytes(value)
    if metric.endswith("_ratio"):
        return percentage(value)
    if metric.endswith("_seconds") and value >= 0:
        return format_duration(value)
    return f"{value:.4g}"
