"""What to do, to whom, on whose word; and how the audit log tells of it."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gpuagent.core.identity import ProcessId
from gpuagent_alerts.remedies.observation import RemedyRequest
from gpuagent_alerts.remedies.outcome import RunOutcome
from gpuagent_alerts.remedies.safeguards.limits import owner_key
from gpuagent_alerts.remedies.steps import RemedyStep, StepKind
from gpuagent_alerts.remedies.target import Target

_NAMED = 5
"""Processes that a note names one by one."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A ladder to run on one target."""

    request: RemedyRequest
    target: Target
    steps: tuple[RemedyStep, ...]
    dry_run: bool
    scope: str = "process"
    proof_seconds: float = 120.0

    def is_question(self, step: RemedyStep) -> bool:
        """Return whether a person asks what the app answers to this step: there is no alert whose end could be seen.

        In a dry run the app is not asked.
        """
        return self.request.by_hand and not self.dry_run and step.asks_app and step == self.steps[-1]

    def answers_for_units(self, step: RemedyStep) -> bool:
        """Return whether a person answers, with --force, for what a bare signal may do to a unit and all in it."""
        return self.request.by_hand and self.request.forced and step.signal_may_end

    def judged_as(self, step: RemedyStep) -> RemedyStep:
        """Return the step that a notice announces, and any other as it is: nobody is warned of what will be refused."""
        if step.kind is not StepKind.NOTIFY:
            return step
        return next((each for each in self.steps[self.steps.index(step) :] if each.disrupts), step)

    def kill_after(self, step: RemedyStep) -> RemedyStep | None:
        """Return the step after this one that sends SIGKILL."""
        return next((each for each in self.steps[self.steps.index(step) + 1 :] if each.sends == signal.SIGKILL), None)

    @property
    def reason(self) -> str:
        """Rule, value and condition: what the owner of the process has a right to know."""
        request = self.request
        if not request.alertname:
            return f"asked for by {request.asked_by}"
        return f"alert {request.alertname} fires: {request.expression} (value {request.value:g})"


def all_ending(plan: Plan, ending: Callable[[], Collection[ProcessId]]) -> frozenset[ProcessId]:
    """Return `ending`, and those whose end the person has asked for together with this one."""
    boot_id = plan.target.id.boot_id
    return frozenset(ending()).union(ProcessId(boot_id, *each) for each in plan.request.together)


def begin_row(plan: Plan, cooldown_key: str, members: Sequence[int]) -> dict[str, Any]:
    """Return the row that begins a run."""
    target, request = plan.target, plan.request
    return {
        "alertname": request.alertname, "fingerprint": request.alert, "expression": request.expression,
        "labels": dict(request.labels), "value": request.value if math.isfinite(request.value) else None,
        "values": [value for value in request.values if math.isfinite(value)], "victim": request.victim,
        "asked_by": request.asked_by, "forced": request.forced, "dry_run": plan.dry_run, "scope": plan.scope,
        "ladder": [str(step) for step in plan.steps], "waits_seconds": [step.wait_seconds for step in plan.steps],
        "pid": target.pid, "start_ticks": target.id.start_ticks,
        "boot_id": target.id.boot_id, "uid": target.uid, "user": target.user, "name": target.name,
        "command": target.command, "cgroup": target.cgroup, "unit": target.unit,
        "container_id": target.container_id, "container_name": target.container_name,
        "gpu": target.gpu_index, "gpu_uuid": target.key.gpu_uuid,
        "used_bytes": target.used_bytes, "cooldown_key": cooldown_key,
        "owner": owner_key(target), "members": list(members),
    }  # fmt: skip


def may_end_row(plan: Plan, step: RemedyStep, targets: Iterable[Target], gpu_uuids: Iterable[str]) -> dict[str, object]:
    """Return whom the record is to wait for where the step is taken and somebody is still there afterwards."""
    if not step.may_end or plan.dry_run:
        return {"may_end": False}
    processes = [{"pid": one.pid, "start_ticks": one.id.start_ticks, "name": one.name} for one in targets]
    return {"may_end": True, "processes": processes, "gpu_uuids": sorted(gpu_uuids)}


def intent_note(apart: Sequence[Target], useless: bool) -> str:
    """Return what a person should know of a step: whom it leaves alone, and that a signal will do nothing."""
    notes = ["the process ignores this signal: there is no use in waiting"] if useless else []
    if apart:
        named = ", ".join(f"pid {each.pid} ({each.name})" for each in apart[:_NAMED])
        more = f" and {len(apart) - _NAMED} others" if len(apart) > _NAMED else ""
        notes.append(f"{named}{more} does not fall with it: nothing shows that they are one job")
    return "; ".join(notes)


def skipped_row(plan: Plan, step: RemedyStep, reason: str) -> dict[str, object]:
    """Return the row of a step that was left out, and why. It is no action."""
    return {"step": str(step), "disrupts": False, "dry_run": plan.dry_run, "note": f"passed over: {reason}"}


def end_row(outcome: RunOutcome) -> dict[str, object]:
    """Return the row that ends a run."""
    return {
        "result": outcome.result, "detail": outcome.detail, "acted": outcome.acted,
        "released_bytes": outcome.released_bytes, "seconds": outcome.seconds,
    }  # fmt: skip
