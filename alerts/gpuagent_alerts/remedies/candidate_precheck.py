"""Those of a ranking whom the configuration does not mean: looked at one after the other, without a turn.

Rules act one at a time over the node. A process that is refused all the same must not use up a turn: whoever starts
many of them would delay what has to be done about others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from gpuagent.core.identity import ProcessId
from gpuagent_alerts.remedies.observation import Condition
from gpuagent_alerts.remedies.outcome import RunOutcome, RunResult
from gpuagent_alerts.remedies.plan import Plan
from gpuagent_alerts.remedies.rehearsal import objections
from gpuagent_alerts.remedies.run_context import RunContext
from gpuagent_alerts.remedies.safeguards.policy import Policy
from gpuagent_alerts.remedies.safeguards.refusals import NotAllowListed
from gpuagent_alerts.remedies.target import Target

MakePlan = Callable[[Target, frozenset[ProcessId]], Plan]
"""Make the plan for one of a ranking, given those before it that are passed over."""
NoteRefusal = Callable[[Target, RunOutcome], object]


class CandidatePrecheck:
    """The looks that go on, one for each alert; for one event loop. Nothing of them is recorded."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def begin(
        self,
        alert: str,
        ranking: Sequence[Target],
        passed_over: Iterable[ProcessId],
        make_plan: MakePlan,
        note: NoteRefusal,
        *,
        policy: Policy,
        context: RunContext,
    ) -> None:
        """Look at those of `ranking` who are refused by what was measured of them, up to the first other one.

        Each refusal is given to `note`. One look for an alert at a time.
        """
        if alert in self._tasks:
            return
        look = _look(ranking, set(passed_over), make_plan, note, policy, context)
        task = self._tasks[alert] = asyncio.create_task(look, name=f"look ahead for {alert}")
        task.add_done_callback(lambda done: self._tasks.pop(alert, None) if self._tasks.get(alert) is done else None)

    def cancel(self) -> None:
        """End all of them: another configuration may mean others."""
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()

    async def idle(self) -> None:
        """Wait until none goes on."""
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


async def _look(
    ranking: Sequence[Target],
    passed_over: set[ProcessId],
    make_plan: MakePlan,
    note: NoteRefusal,
    policy: Policy,
    context: RunContext,
) -> None:
    for target in ranking:
        if target.id in passed_over:
            continue
        if not policy.standing_refusal(target, context.now()):
            return
        plan = make_plan(target, frozenset(passed_over))
        seen = context.observer.observe(target, plan.request.alert, plan.scope)
        if seen.condition is not Condition.HOLDS or seen.target is None or seen.act_refusal:
            return
        reasons = await objections(plan, policy, context.observer, context.executor, context.now(), context.ending)
        if not reasons:
            return
        by_allow_list = all(isinstance(each, NotAllowListed) for each in reasons)
        note(target, RunOutcome(
            RunResult.REFUSED, "; ".join(reasons), general=not by_allow_list, reasons=tuple(reasons)
        ))  # fmt: skip
        if not by_allow_list:
            return
        passed_over.add(target.id)
