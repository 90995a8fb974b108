"""Which firing alert gets which ladder, on whom, and when: one run at a time on each GPU."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from gpuagent.identity import ProcessId
from gpuagent_alerts.alert import Alert
from gpuagent_alerts.remedies.attempts import Attempts
from gpuagent_alerts.remedies.choice import Firing, LadderRule, choose
from gpuagent_alerts.remedies.ladder import Run, Tools
from gpuagent_alerts.remedies.limits import STOPPED_BY_HAND
from gpuagent_alerts.remedies.outcome import Outcome, Result
from gpuagent_alerts.remedies.plan import Plan, Rules
from gpuagent_alerts.remedies.steps import Kind
from gpuagent_alerts.remedies.target import Target
from gpuagent_alerts.remedies.victim import Candidate, VictimPolicy, rank
from gpuagent_alerts.remedies.withheld import WithheldLadders
from gpuagent_alerts.remedies.world import Order

log = logging.getLogger(__name__)


Told = Callable[[Plan, Run, Outcome, bool], None]
"""Is told of every end; the last argument says that the same was told before."""


class Remedies:
    """For one event loop."""

    def __init__(
        self, ladders: Sequence[LadderRule], rules: Rules, tools: Tools, *, proof_seconds: float, told: Told
    ) -> None:
        self.ladders = tuple(ladders)
        self.rules = rules
        self.proof_seconds = proof_seconds
        self.counts: Counter[tuple[str, bool]] = Counter()
        """Runs that ended, by result and whether they were dry."""
        self.released_bytes = 0
        self.withheld = WithheldLadders(tools.now)
        """Why nothing is done about what fires."""
        self.tools = tools
        self._told = told
        self._running: dict[Run, asyncio.Task[Outcome]] = {}
        self._attempts = Attempts(tools.now)
        self.stopped = False
        """A person has stopped remedies: rules begin nothing."""
        self._blocked: dict[str, ProcessId] = {}
        """GPUs on which a process could not be killed, and which one."""

    @property
    def running(self) -> tuple[Run, ...]:
        """Those that climb now."""
        return tuple(self._running)

    def use(self, ladders: Sequence[LadderRule], rules: Rules, proof_seconds: float) -> None:
        """Another configuration. What climbs goes on by it, or ends before its next step where it no longer would."""
        self.ladders, self.rules, self.proof_seconds = tuple(ladders), rules, proof_seconds
        self._attempts.forget_refusals()
        if not self.ladders:
            self.withheld.update({})
        for run in self._running:
            run.rules = rules
            plan = run.plan
            if plan.order.alert:
                ladder = self.ladder_of(plan.order.labels)
                if ladder is None or (ladder.steps, ladder.dry_run, ladder.scope) != (
                    plan.steps, plan.dry_run, plan.scope,
                ) or (plan.order.victim and plan.order.victim != ladder.victim):  # fmt: skip
                    run.call_off("the configuration has changed: this ladder is no longer there")
                elif plan.order.passed_over:
                    run.call_off("the configuration has changed: whom it passes over is decided anew")

    def stop(self) -> None:
        """Begin nothing for rules any more; all that runs ends before its next step, what a person began as well."""
        self.stopped = True
        for run in self._running:
            run.call_off(f"remedies are stopped: {STOPPED_BY_HAND}")

    def consider(self, firing: Iterable[Firing]) -> None:
        """Begin what is due. To be called after each evaluation, with all that fires."""
        firing = list(firing)
        self._attempts.keep({each.alert.fingerprint for each in firing})
        reasons: dict[str, tuple[Alert, str]] = {}
        for each in firing:
            ladder = self.ladder_of(each.alert.labels)
            if ladder is not None and (reason := self._begin_or_withhold(ladder, each)):
                reasons[each.alert.fingerprint] = each.alert, reason
        climbing = {run.plan.order.alert for run in self._running}
        self.withheld.update({name: one for name, one in reasons.items() if name not in climbing}, climbing)

    def _begin_or_withhold(self, ladder: LadderRule, firing: Firing) -> str:
        """Begin the ladder of an alert; return why it is not begun, "" if it is."""
        if self.stopped:
            return f"remedies are stopped: {STOPPED_BY_HAND}"
        if firing.objection:
            return firing.objection
        chosen = choose(ladder, firing, self._attempts, self.tools.now(), self.rules.policy.idle_for_seconds)
        if isinstance(chosen, str):
            return chosen
        victim = "" if firing.alert.labels.get("pid") else str(ladder.victim or "")
        order = _order(firing, victim, chosen.passed_over)
        plan = Plan(order, chosen.target, ladder.steps, ladder.dry_run, ladder.scope, self.proof_seconds)
        taken = self._claimed(None, plan, frozenset({chosen.target.key.gpu_uuid}))
        if not taken:
            self._begin(plan)
        return taken

    async def by_hand(self, plan: Plan) -> Outcome:
        """Run what a person asked for: the same way, with the same refusals, a dry run like a real one."""
        if taken := self._claimed(None, plan, frozenset({plan.target.key.gpu_uuid})):
            return Outcome(Result.REFUSED, taken, reasons=(taken,))
        if not plan.dry_run:
            for run in self._running:
                if plan.target.key.gpu_uuid in run.gpus and not run.plan.order.by_hand:
                    run.call_off(f"{plan.order.asked_by} acts on this GPU")
        task = self._begin(plan)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                raise
            return Outcome(Result.INTERRUPTED, "the agent is stopping", acted=True)

    async def idle(self) -> None:
        """Wait until nothing is being climbed."""
        while self._running:
            await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def close(self) -> None:
        """Stop climbing. The next agent says of open runs that they were interrupted."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def ranking(self, policy: VictimPolicy, targets: Iterable[Target]) -> list[Candidate]:
        """For people: who would be chosen, and why."""
        return rank(policy, targets, self.tools.now(), self.rules.policy.idle_for_seconds)

    def block(self, gpu_uuid: str, identity: ProcessId) -> None:
        """A process there could not be killed: nothing else is done on that GPU while it lives."""
        self._blocked[gpu_uuid] = identity

    def unblock(self) -> None:
        """Let GPUs go whose unkillable process has ended after all. It is asked of /proc: the driver may hang too."""
        for gpu in [gpu for gpu, identity in self._blocked.items() if not self.tools.hands.is_alive(identity)]:
            del self._blocked[gpu]

    def ladder_of(self, labels: Mapping[str, str]) -> LadderRule | None:
        """Return the ladder for an alert with these labels, by the configuration in force."""
        return next((one for one in self.ladders if one.matches(labels)), None)

    def _claimed(self, run: Run | None, plan: Plan, gpus: frozenset[str]) -> str:
        """Return why these GPUs cannot be had for this plan; "" if they can.

        What a person confirms may share a GPU with anything else: who clears eight hung ranks does not wait for eight
        proofs. Rules wait for all of it.
        """
        for other in self._running:
            if other is not run and other.gpus & gpus and _excludes(other.plan, plan):
                target = other.plan.target
                return f"another remedy is under way on GPU {target.gpu_index}, for pid {target.pid}"
        for gpu in gpus & self._blocked.keys() if not plan.order.by_hand else ():
            return f"pid {self._blocked[gpu].pid} could not be killed, and holds GPU {gpu}"
        return ""

    def _share(self, run: Run, gpus: frozenset[str]) -> None:
        """Tell runs that end processes on the same GPUs of each other: none may take the other's memory for its own."""
        for other in self._running:
            if other is not run and other.gpus & gpus and not (other.plan.dry_run or run.plan.dry_run):
                other.shares_gpu = run.shares_gpu = True

    def _begin(self, plan: Plan) -> asyncio.Task[Outcome]:
        def claim(run: Run, gpus: frozenset[str]) -> str:
            if not (taken := self._claimed(run, plan, gpus)):
                self._share(run, gpus)
            return taken

        known = self._attempts.gist(plan.order.alert, plan.target.id, dry_run=plan.dry_run) if plan.order.alert else ""
        run = Run(plan, self.rules, self.tools, claim=claim, known=known)
        task = asyncio.create_task(self._climb(run), name=f"remedy on GPU {plan.target.gpu_index}")
        self._running[run] = task
        return task

    async def _climb(self, run: Run) -> Outcome:
        try:
            outcome = await run.climb()
        finally:
            self._running.pop(run, None)
        self._note(run, outcome)
        return outcome

    def _note(self, run: Run, outcome: Outcome) -> None:
        plan = run.plan
        again = self._attempts.note(plan.order.alert, plan.target.id, outcome, dry_run=plan.dry_run)
        self.counts[outcome.result, plan.dry_run] += 1
        if outcome.result is Result.RELEASED:
            self.released_bytes += outcome.released_bytes or 0
        if outcome.result is Result.UNKILLABLE:
            for gpu in run.gpus:
                self.block(gpu, plan.target.id)
        self._told(plan, run, outcome, again)


def _excludes(other: Plan, plan: Plan) -> bool:
    """Return whether a plan has to wait for the end of another one on the same GPU.

    A dry run does nothing, and stands only in the way of its like: the dry runs of rules tell what rules would do. A
    person waits for no rule: the rule's run takes no further step.
    """
    if plan.order.by_hand:
        return not other.dry_run and other.order.by_hand and _same_deed(other, plan)
    if other.dry_run:
        return plan.dry_run and not other.order.by_hand
    return not plan.dry_run


def _same_deed(other: Plan, plan: Plan) -> bool:
    """Return whether two people, or one twice, ask for the same: an end to one process, or a restart of one unit."""
    restart = all(any(step.kind is Kind.RESTART_UNIT for step in each.steps) for each in (other, plan))
    return other.target.id == plan.target.id or (restart and other.target.unit == plan.target.unit)


def _order(firing: Firing, victim: str, passed_over: frozenset[ProcessId]) -> Order:
    alert = firing.alert
    return Order(
        alert=alert.fingerprint,
        alertname=alert.name,
        expression=firing.expression,
        value=alert.value,
        labels=dict(alert.labels),
        victim=victim,
        passed_over=passed_over,
        values=firing.values,
        about_growth=firing.about_growth,
    )
