"""Budgets that are enforced: a standing memory limit on the cgroup of a unit or container, as large as the budget.

It is set once a process of the budget is on a GPU, stays over restarts of the agent, and is lifted when the budget is
changed or enforced no more. Everybody in the cgroup is looked at as before a `limit` step, and the act is on record.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from gpuagent.core.clock import Clock
from gpuagent.core.identity import NO_INSTANCE
from gpuagent.core.memory_limits import GRANULE_BYTES, LimitHolder
from gpuagent.core.snapshot import Snapshot
from gpuagent_alerts.remedies.audit import Audit, NotRecorded
from gpuagent_alerts.remedies.audit_rows import END, INTENT, RESULT
from gpuagent_alerts.remedies.candidates import counts_towards
from gpuagent_alerts.remedies.limit_lifts import LimitLifts
from gpuagent_alerts.remedies.observation import ActionExecutor, ActionResult, ProcessEnded, RemedyRequest
from gpuagent_alerts.remedies.outcome import RunOutcome, RunResult
from gpuagent_alerts.remedies.pinned_processes import ActionRefused
from gpuagent_alerts.remedies.plan import Plan, begin_row, end_row
from gpuagent_alerts.remedies.safeguards.limits import cooldown_key
from gpuagent_alerts.remedies.settings import MemoryBudget, RemedySettings
from gpuagent_alerts.remedies.snapshot_targets import target_of
from gpuagent_alerts.remedies.steps import RemedyStep, StepKind
from gpuagent_alerts.remedies.target import Target

log = logging.getLogger(__name__)

_LOOK_SECONDS = 30.0
_STEP = RemedyStep(StepKind.LIMIT, 0.0)


class StandingLimits:
    """Sets the limits of budgets, for one event loop."""

    def __init__(self, lifts: LimitLifts, executor: ActionExecutor, audit: Audit, clock: Clock) -> None:
        self._lifts = lifts
        self._executor = executor
        self._audit = audit
        self._clock = clock
        self._next_look = 0.0
        self._told: set[str] = set()
        self._one_look = asyncio.Lock()

    def is_due(self, settings: RemedySettings) -> bool:
        """Return whether there is a budget to enforce, and time to look."""
        return self._clock.now() >= self._next_look and any(each.enforced for each in settings.budgets)

    async def look(self, settings: RemedySettings, snapshot: Snapshot) -> None:
        """Limit every cgroup that a budget means and that has no limit of it yet."""
        if self._one_look.locked():
            return
        async with self._one_look:
            self._next_look = self._clock.now() + _LOOK_SECONDS * self._clock.speed
            done: set[tuple[str, str, str]] = set()
            for budget, target in _targets(settings, snapshot):
                place = (budget.label, target.key.gpu_uuid, target.unit if budget.unit else target.container_id)
                if place not in done:
                    done.add(place)
                    await self._enforce(settings, budget, target)

    async def _enforce(self, settings: RemedySettings, budget: MemoryBudget, target: Target) -> None:
        if self._is_known(budget, target):
            return
        permission = settings.rules.policy.unit_permission(target)
        holder = LimitHolder(budget=budget.label)
        try:
            if refusal := await self._executor.group_refusal(_STEP, target, permission):
                raise ActionRefused(refusal)
            run = "" if settings.dry_run else await asyncio.to_thread(self._begin, budget, target)
            done = await self._executor.enforce(
                target, permission, budget.memory_bytes, holder, rehearse=settings.dry_run
            )
        except ProcessEnded:
            return
        except (ActionRefused, NotRecorded) as error:
            self._tell(f"budget {budget.label} is not enforced on GPU {target.gpu_index}: {error}", logging.WARNING)
            return
        dry = " (dry run: nothing is done)" if settings.dry_run else ""
        self._tell(f"budget {budget.label}: {done.detail}{dry}", logging.INFO)
        if run:
            await asyncio.to_thread(self._end, run, done)
            self._lifts.forget()

    def _is_known(self, budget: MemoryBudget, target: Target) -> bool:
        """Return whether a limit of this budget is on its unit or container."""
        name = target.unit if budget.unit else target.container_id.rpartition("/")[2]
        return any(
            each.holder.budget == budget.label and each.gpu_uuid == target.key.gpu_uuid and name in each.cgroup
            for each in self._lifts.known
        )

    def _begin(self, budget: MemoryBudget, target: Target) -> str:
        """Write down what is about to be done. For a thread. Raises NotRecorded."""
        request = RemedyRequest(asked_by=f"budget {budget.label}")
        plan = Plan(request, target, (_STEP,), dry_run=False)
        run = self._audit.begin(begin_row(plan, cooldown_key(target, ""), [target.pid]))
        self._audit.write(run, INTENT, {"step": str(_STEP), "disrupts": False, "may_end": False, "pids": [target.pid]})
        return run

    def _end(self, run: str, done: ActionResult) -> None:
        """Write down what came of it. For a thread."""
        result = RunResult.LIMITED if done.ok else RunResult.FAILED
        row = {"step": str(_STEP), "ok": done.ok, "errno": 0, "detail": done.detail, "taken": done.taken}
        try:
            self._audit.write(run, RESULT, row)
            self._audit.write(run, END, end_row(RunOutcome(result, done.detail)))
        except NotRecorded as error:
            log.warning("run %s of a budget is not on record to its end: %s", run, error)

    def _tell(self, text: str, level: int) -> None:
        if text not in self._told:
            self._told.add(text)
            log.log(level, "%s", text)


def enforced(settings: RemedySettings) -> dict[str, int]:
    """Return the budgets that are enforced for real, by label, with their limits in whole pages."""
    if settings.dry_run or settings.off:
        return {}
    return {
        each.label: -(-each.memory_bytes // GRANULE_BYTES) * GRANULE_BYTES for each in settings.budgets if each.enforced
    }


def _targets(settings: RemedySettings, snapshot: Snapshot) -> Iterator[tuple[MemoryBudget, Target]]:
    """Yield the processes of enforced budgets that may have a limit: no client of MPS, on no MIG instance."""
    shared = {gpu.identity.uuid for gpu in snapshot.gpus if gpu.identity.unified_memory}
    for budget in (each for each in settings.budgets if each.enforced):
        for process in snapshot.processes:
            if process.gpu_uuid in shared or not counts_towards(budget, process, snapshot):
                continue
            target = target_of(process, None)
            if target is not None and target.key.gpu_instance_id == NO_INSTANCE and "M" not in target.kinds:
                yield budget, target
