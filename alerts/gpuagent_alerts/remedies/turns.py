"""Whose turn it is where several alerts want a remedy: one at a time over the node, the worst first, nobody starved."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from gpuagent_alerts.remedies.choice import Firing
from gpuagent_alerts.remedies.plan import Plan
from gpuagent_alerts.remedies.steps import Kind

_SEVERITIES = ("critical", "page", "error", "high", "warning", "low", "info", "none")
_NEVER = float("-inf")


class Turns:
    """When something was last done for each alert that fires. For one event loop."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now` is CLOCK_BOOTTIME."""
        self._now = now
        self._last: dict[str, float] = {}

    def keep(self, firing: Collection[str]) -> None:
        """Drop what belongs to alerts that have ended."""
        self._last = {alert: at for alert, at in self._last.items() if alert in firing}

    def use_up(self, alert: str) -> None:
        """Something was done for this alert: those that still wait come before it. Nothing done is no turn."""
        self._last[alert] = self._now()

    def in_order(self, firing: Iterable[Firing]) -> list[Firing]:
        """Sort by who has waited longest since their last turn, then by severity, the fuller GPU, the older alert."""
        return sorted(firing, key=self._key)

    def _key(self, one: Firing) -> tuple[float, int, float, float, str]:
        fingerprint = one.alert.fingerprint
        severity = one.alert.labels.get("severity", "none")
        rank = _SEVERITIES.index(severity) if severity in _SEVERITIES else len(_SEVERITIES)
        return self._last.get(fingerprint, _NEVER), rank, -one.gpu_used_ratio, one.since_seconds, fingerprint


def excludes(other: Plan, plan: Plan, *, same_gpu: bool) -> bool:
    """Return whether a plan has to wait for the end of another one.

    A dry run does nothing, and stands only in the way of its like on the same GPU: the dry runs of rules tell what
    rules would do. What rules do to processes is done one at a time over the node: how much memory came back, and
    whether a limit is used up, is known when the first has ended. A person waits for no rule, whose run takes no
    further step.
    """
    if not same_gpu:
        return _is_rules_act(other) and _is_rules_act(plan)
    if plan.order.by_hand:
        return not other.dry_run and other.order.by_hand and _same_deed(other, plan)
    if other.dry_run:
        return plan.dry_run and not other.order.by_hand
    return not plan.dry_run


def _is_rules_act(plan: Plan) -> bool:
    return not plan.dry_run and not plan.order.by_hand and any(step.disrupts for step in plan.steps)


def _same_deed(other: Plan, plan: Plan) -> bool:
    """Return whether two people, or one twice, ask for the same: an end to one process, or a restart of one unit."""
    restart = all(any(step.kind is Kind.RESTART_UNIT for step in each.steps) for each in (other, plan))
    return other.target.id == plan.target.id or (restart and other.target.unit == plan.target.unit)
