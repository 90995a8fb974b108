"""What no series carries, in words: why an alert about growing memory is true, and what was done about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from gpuagent.core.growth import Growth, MemoryKey
from gpuagent.core.identity import NO_INSTANCE
from gpuagent.core.metrics.alerting import FiringAlert
from gpuagent.core.snapshot import Snapshot
from gpuagent_alerts.alert import Alert
from gpuagent_alerts.remedies.families import GROWTH
from gpuagent_alerts.states.engine import RuleEngine
from gpuagent_alerts.states.instance import State

REMEDY_ANNOTATION = "remedy"
_SEVERITIES = frozenset({"critical", "warning", "info"})
_MOST_DIGITS = 10


def with_remedy(alert: Alert, done: str) -> Alert:
    """The alert, and what a remedy did about it, if one did."""
    return replace(alert, annotations={**alert.annotations, REMEDY_ANNOTATION: done}) if done else alert


def explainer(snapshot: Snapshot) -> Callable[[Mapping[str, str]], str]:
    """For the labels of an alert: the reasons for the process that they name, else for the GPU."""
    return partial(_explain, snapshot.growth)


def subjects_of(engine: RuleEngine) -> Iterator[FiringAlert]:
    """Return what each alert that fires is about."""
    for running in engine.rules():
        about_growth = bool(running.rule.expression.metric_names & GROWTH)
        for instance in running.states.instances if running.states is not None else ():
            if instance.state is State.FIRING:
                yield subject_of(instance.labels, about_growth=about_growth)


def subject_of(labels: Mapping[str, str], *, about_growth: bool) -> FiringAlert:
    """Return what an alert with these labels is about. A rule may set any label to any text: that names nobody."""
    severity = labels.get("severity")
    pid, instance = labels.get("pid", ""), labels.get("gpu_instance_id", "")
    return FiringAlert(
        labels.get("alertname", ""),
        severity if severity in _SEVERITIES else None,
        about_growth,
        labels.get("uuid", ""),
        int(pid) if _is_number(pid) else 0,
        int(instance) if _is_number(instance) else NO_INSTANCE,
    )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS


def _explain(growth: Mapping[MemoryKey, Growth], labels: Mapping[str, str]) -> str:
    pid, instance = labels.get("pid", "0"), labels.get("gpu_instance_id", str(NO_INSTANCE))
    try:
        key = MemoryKey(labels.get("uuid", ""), int(pid), int(instance))
    except ValueError:  # a rule may set any label to any text
        return ""
    said = growth.get(key)
    return "; ".join(said.reasons) if said is not None else ""
