"""What becomes of alerts that change: why they end, what is logged, and how they are handed over.

Going over to `alerting: prometheus` closes what this agent has told of, as nobody would close it later. What waits to
be sent is still sent, in its order. Then every receiver that takes an alert for firing is told of its end, with words
that say why. Prometheus tells of what goes on, in its own name.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from gpuagent.core.identity import ProcessId
from gpuagent.core.snapshot import GpuState, NvmlState, Snapshot
from gpuagent.core.units import format_bytes, format_duration, format_ratio
from gpuagent_alerts.alert import PROCESS_ENDED, UNKNOWN_END, Alert, Status, fingerprint, shown_annotations
from gpuagent_alerts.messages.end_facts import EndedAlert, MeasuredFacts, facts_of
from gpuagent_alerts.messages.end_reasons import (
    LEFT,
    EndReason,
    reason_by_name,
    reason_of_process,
    tells_of_a_level,
    with_remedies,
)
from gpuagent_alerts.messages.regrowth import Regrowth
from gpuagent_alerts.promql.expression import compile_measured_side
from gpuagent_alerts.promql.series import SeriesIndex
from gpuagent_alerts.promql.values import EvaluationError
from gpuagent_alerts.remedies.outcome import RemedyEnding, no_remedy
from gpuagent_alerts.rules.model import AlertRule
from gpuagent_alerts.states.group import RunningRule
from gpuagent_alerts.states.machine import Change, Transition

log = logging.getLogger(__name__)

_LEAVES_SECONDS = 30.0
"""A process that leaves the driver's list so long after its memory came back is why it did."""
RemedyOf = Callable[[str, str], RemedyEnding | None]
"""Function from a GPU's UUID and a pid to what a remedy did to the process; None where none helped."""
IsAlive = Callable[[ProcessId], bool | None]
"""Test whether a process runs; None where that is unknown."""


@dataclass(frozen=True, slots=True)
class EvaluatedTick:
    """Inputs of an evaluation of rules."""

    snapshot: Snapshot
    index: SeriesIndex
    wall_seconds: float


class EndReasons:
    """Remembers what each firing alert is about, and says why its condition ceased to hold. For one event loop."""

    def __init__(self, rules: Callable[[], Iterable[RunningRule]]) -> None:
        self._remedy_of: RemedyOf = no_remedy
        self._is_alive: IsAlive = _unknown
        self._rules = rules
        self._facts: dict[str, MeasuredFacts] = {}
        self._reasons: dict[str, EndReason] = {}
        """Reasons of alerts that are only kept, and of those that have just ended for certain."""
        self.regrowth = Regrowth()
        """The memory of alerts whose growth had stopped."""
        self._levels: dict[str, float] = {}
        """Unix time at which the reason of an alert was first that of a level, by fingerprint."""
        self._paused: set[str] = set()
        """Fingerprints of alerts that were not measured since measuring was paused."""
        self._unread: set[str] = set()
        """UUIDs of GPUs that could not be read at some tick of this agent."""
        self.former_id: Callable[[int], ProcessId | None] = lambda _: None
        """Function from a pid to the process that an incident which goes on knows by it."""
        self.former_of: Callable[[str], tuple[str, ProcessId] | None] = lambda _: None
        """Function from an alert's fingerprint to name and identity of the process that its incident is about."""
        self.kept_reason: Callable[[str], tuple[str, bool] | None] = lambda _: None
        """Function from the fingerprint of an alert that is only kept to what was seen to become of its process, and
        whether that is certain."""

    def ask(self, remedy_of: RemedyOf, is_alive: IsAlive) -> None:
        """Ask these from now on: what a remedy did to a process, and whether a process runs."""
        self._remedy_of, self._is_alive = remedy_of, is_alive

    def explain(self, transitions: Iterable[Transition], seen: EvaluatedTick) -> tuple[Transition, ...]:
        """Return the transitions of an evaluation; those whose condition does not hold any more have the reason."""
        explained = []
        unread = {gpu.identity.uuid for gpu in seen.snapshot.gpus if gpu.state is not GpuState.OK}
        unlisted = {gpu.identity.uuid for gpu in seen.snapshot.gpus if not gpu.processes_known}
        self._unread |= unread
        is_paused = seen.snapshot.node.nvml_state is NvmlState.PAUSED
        for change, told in transitions:
            alert, name = told, told.fingerprint
            if alert.holds:
                self._reasons.pop(name, None)
                self._levels.pop(name, None)
                self.regrowth.forget(name)
                is_measured = not (alert.unmeasured_seconds or alert.labels.get("uuid", "") in unread | unlisted)
                self._note_pause(name, is_paused=is_paused, is_measured=is_measured)
                if (facts := facts_of(alert.labels, seen.snapshot)) is not None:
                    before = self._facts.get(name)
                    if before is not None and (alert.labels.get("uuid", "") in unread or alert.unmeasured_seconds):
                        facts = facts.with_figures_of(before)
                    elif before is not None and alert.labels.get("uuid", "") in unlisted:
                        facts = facts.with_processes_of(before)
                    self._facts[name] = facts.with_peak_of(before, seen.wall_seconds)
                explained.append(Transition(change, alert))
                continue
            if not alert.end_reason:
                reason = self._reason(alert, seen)
                text = reason.text or self._value_now(alert, seen)
                self._reasons[name] = reason._replace(text=text)
                if tells_of_a_level(reason):
                    self._levels.setdefault(name, seen.wall_seconds)
                alert = replace(alert, end_reason=text, end_is_certain=reason.is_certain)
            facts = self._facts.get(name)
            self.regrowth.follow(alert, None if facts is None else facts.grower, seen.wall_seconds)
            if change is Change.ENDED:
                self._facts.pop(name, None)
                self._paused.discard(name)
                self._reasons.pop(name, None)
                self._levels.pop(name, None)
            explained.append(Transition(change, alert))
        self.regrowth.observe(seen.snapshot, seen.wall_seconds)
        return tuple(explained)

    def _note_pause(self, name: str, *, is_paused: bool, is_measured: bool) -> None:
        """Note of an alert that holds whether measuring was paused since it was measured last."""
        if is_paused and name in self._facts:
            self._paused.add(name)
        elif is_measured and not is_paused:
            self._paused.discard(name)

    def is_over(self, labels: Mapping[str, str], seen: EvaluatedTick) -> bool:
        """Return whether what the alert of these labels was about is over for certain: nobody has to wait and see."""
        reason = self._reason(Alert(labels, {}, Status.FIRING, 0.0), seen)
        if reason.is_certain:
            self._reasons[fingerprint(labels)] = reason
        return reason.is_certain

    def revised(self, alert: Alert) -> Alert:
        """Return an alert that has ended with what has been learned since: that a remedy ended its process."""
        uuid, reason = alert.labels.get("uuid", ""), alert.end_reason
        remedy = self._remedy_of(alert.labels.get("pid", ""), uuid)
        if remedy is not None and reason.startswith((PROCESS_ENDED, LEFT)):
            back = "" if remedy.released_bytes else reason.partition(";")[1:]
            return replace(alert, end_reason=f"{remedy}{''.join(back)}", end_is_certain=True)
        return replace(alert, end_reason=with_remedies(reason, uuid, self._remedy_of))

    def with_reason(self, alert: Alert) -> Alert:
        """Return an alert with why its condition ceased to hold, if it is only kept."""
        reason = self._reasons.get(alert.fingerprint) if alert.is_kept else None
        return alert if reason is None else replace(alert, end_reason=reason.text, end_is_certain=reason.is_certain)

    def _reason(self, alert: Alert, seen: EvaluatedTick) -> EndReason:
        name = alert.fingerprint
        known = self._reasons.get(name)
        if known is not None and (known.is_certain or (name not in self._facts and _tells_of_former(known))):
            return known
        pid, before = alert.labels.get("pid", ""), self._facts.get(name)
        if before is None and (seen_before := self.kept_reason(name)) is not None:
            return EndReason(*seen_before)
        blind = ", or could not read the GPU" if alert.labels.get("uuid", "") in self._unread else ""
        case = EndedAlert(
            alert, before, seen.snapshot, seen.wall_seconds, self._is_alive,
            "" if before is not None else f"gpuagent was not running{blind}",
            name in self._paused, self.former_id(int(pid)) if pid.isdecimal() else None,
        )  # fmt: skip
        former = self.former_of(name) if before is None and not pid else None
        if former is not None:
            case = replace(case, former_name=former[0], former_id=former[1])
        remedy = self._remedy_of(alert.labels.get("pid", ""), alert.labels.get("uuid", ""))
        of_process = reason_of_process(case, remedy)
        reason = of_process if of_process.text else reason_by_name(case)
        if known is not None and not of_process.text and tells_of_a_level(known):
            is_new = 0.0 <= seen.wall_seconds - self._levels.get(name, seen.wall_seconds) <= _LEAVES_SECONDS
            if not (reason.is_certain and is_new):
                return known
        return reason._replace(text=with_remedies(reason.text, alert.labels.get("uuid", ""), self._remedy_of))

    def _value_now(self, alert: Alert, seen: EvaluatedTick) -> str:
        for running in self._rules():
            rule = running.rule
            if isinstance(rule, AlertRule) and rule.name == alert.name and _has_labels_of(rule, alert.labels):
                if text := _measured(rule, alert.labels, seen):
                    return f"{UNKNOWN_END}: {text} now"
                break
        return UNKNOWN_END


def _tells_of_former(reason: EndReason) -> bool:
    """Return whether a reason says what became of a process while nobody watched: looking again tells no more."""
    return " while gpuagent was not running" in reason.text


def _unknown(_: ProcessId) -> bool | None:
    return None


def _has_labels_of(rule: AlertRule, labels: Mapping[str, str]) -> bool:
    return all(labels.get(name, "") == one.text for name, one in rule.labels.items() if one.is_constant)


def _measured(rule: AlertRule, labels: Mapping[str, str], seen: EvaluatedTick) -> str:
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
    if metric.endswith("_ratio") and value >= 0 and math.isfinite(value * 100):
        return format_ratio(value)
    if metric.endswith("_seconds") and value >= 0:
        return format_duration(value)
    return f"{value:.4g}"


_FIELD_OF = {
    "severity": "SEVERITY",
    "gpu": "GPU",
    "uuid": "GPU_UUID",
    "pid": "PID",
    "process": "PROCESS",
    "user": "USER",
    "unit": "UNIT",
    "container_id": "CONTAINER_ID",
}
"""Labels that somebody looks for, and the fields of their own that they become."""


def log_transitions(transitions: Iterable[Transition]) -> None:
    """Log one line for each beginning and end; that it goes on is no news."""
    for change, alert in transitions:
        if change is Change.STARTED:
            log.warning("alert %s fires: %s", alert.name, _words(alert), extra={"fields": _fields(alert, "firing")})
        elif change is Change.ENDED:
            log.info("alert %s is over: %s", alert.name, _words(alert), extra={"fields": _fields(alert, "resolved")})


def _words(alert: Alert) -> str:
    """Return what the rule says of it, or which one it is."""
    labels = ", ".join(f"{name}={value}" for name, value in alert.labels.items() if name in _FIELD_OF)
    return shown_annotations(alert).get("summary") or labels or "-"


def _fields(alert: Alert, status: str) -> dict[str, str]:
    labels = {field: alert.labels[name] for name, field in _FIELD_OF.items() if alert.labels.get(name)}
    return {"ALERT": alert.name, "ALERT_STATUS": status, "FINGERPRINT": alert.fingerprint, **labels}


WORDS = (
    "it may go on, and is closed here because the agent no longer notifies (alerting: prometheus); "
    "Prometheus and Alertmanager tell of it from now on"
)


def close_for_handover(alert: Alert, wall_seconds: float) -> Alert:
    """Return an alert that fires as the one that is told last. `wall_seconds` is Unix time."""
    return replace(alert, status=Status.RESOLVED, ends_at=wall_seconds, end_reason=WORDS)
