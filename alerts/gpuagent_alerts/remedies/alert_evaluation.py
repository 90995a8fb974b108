"""The evaluation of a rule behind a firing alert, and the values of its expression while the alert fires."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from gpuagent.core.units import format_duration
from gpuagent_alerts.alert import Alert
from gpuagent_alerts.remedies.safeguards.rule_analysis import UNKNOWN, RuleAnalysis

DATA_MISSING = "the data behind the alert is missing"
ONLY_KEPT = "the alert is only kept firing: its expression is not true any more"
_TOLERANCE_SECONDS = 1e-6
"""Durations are whole milliseconds: what is nearer than this is a rounding of the clock."""
_NO_LABELS: Mapping[str, str] = MappingProxyType({})
INTERVAL_SECONDS = 10.0
LENGTH = 60


class AlertEvaluation(NamedTuple):
    """The last evaluation of the rule behind a firing alert: whether it is true, and on data of which time.

    One that is only kept firing (`keep_firing_for`) is told, and is no reason to act.
    """

    alert: Alert
    expression: str
    holds: bool
    measured_seconds: float
    """CLOCK_BOOTTIME of the snapshot that the rule was last evaluated on: groups have intervals of their own."""
    since_seconds: float
    """CLOCK_BOOTTIME since which this agent has found it true without a break, on measured data: a process that started
    later is not the one that it is about."""
    interval_seconds: float = 0.0
    """Seconds between two evaluations of the rule."""
    read_seconds: Mapping[str, float] = MappingProxyType({})
    """CLOCK_BOOTTIME of each GPU's reading in that snapshot, by UUID; it may be older than the snapshot."""
    measured: bool = True
    """False while the data behind it is missing: then it goes on as it was, and nobody knows whether it is true."""
    analysis: RuleAnalysis = UNKNOWN
    """Whom the rule's alerts are about, or why they are no reason to disrupt a process."""
    result_labels: Mapping[str, str] = _NO_LABELS
    """Labels that the expression's result has, without those that the rule itself writes."""
    for_seconds: float = 0.0
    """How long it has to be true by its rule (`for`)."""
    held_seconds: float = 0.0
    """How long it had been true without a break at the last evaluation. A restart of the agent, missing data, a gap and
    an evaluation that found it false each begin this anew, whatever the alert itself makes of them."""

    @property
    def too_short(self) -> str:
        """Return why it has not been true for long enough to be a reason to act; "" if it has."""
        missing = self.for_seconds - self.held_seconds
        if missing <= _TOLERANCE_SECONDS:
            return ""
        return (
            f"its expression has been seen true without a break for {format_duration(self.held_seconds)}, and the rule "
            f"asks for {format_duration(self.for_seconds)} (`for`): it is a reason to act in {format_duration(missing)}"
        )

    @property
    def objection(self) -> str:
        """Return why the alert, although it fires, is no reason to act now; "" if it is one."""
        if not self.measured:
            return DATA_MISSING
        return self.too_short if self.holds else ONLY_KEPT

    def seen_seconds(self, gpu_uuid: str) -> float:
        """Return the time of the reading of this GPU that the rule was last evaluated on."""
        return self.read_seconds.get(gpu_uuid, self.measured_seconds)


class ValueHistory:
    """The last ten minutes of each alert that fires, a value every ten seconds."""

    def __init__(self) -> None:
        self._points: dict[str, deque[tuple[float, float]]] = {}

    def add(self, evaluations: Sequence[AlertEvaluation]) -> None:
        """Add the values of all that fires, and forget all else."""
        kept: dict[str, deque[tuple[float, float]]] = {}
        for each in evaluations:
            ring = self._points.get(each.alert.fingerprint) or deque(maxlen=LENGTH)
            if not ring or each.measured_seconds - ring[-1][0] >= INTERVAL_SECONDS:
                ring.append((each.measured_seconds, each.alert.value))
            kept[each.alert.fingerprint] = ring
        self._points = kept

    def values(self, fingerprint: str) -> tuple[float, ...]:
        """Return the values of an alert's expression, oldest first."""
        return tuple(value for _, value in self._points.get(fingerprint, ()))
