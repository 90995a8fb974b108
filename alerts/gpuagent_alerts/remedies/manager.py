"""Decide which firing alert gets which ladder, on which process, and when: rules act one at a time over the node.

`OpenRuns` closes the runs that an earlier agent left open in the audit log: at the start, and with each other file.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from gpuagent.core.identity import ProcessId
from gpuagent.core.snapshot import Snapshot
from gpuagent.core.units import format_duration, format_time
from gpuagent_alerts.alert import Alert
from gpuagent_alerts.remedies.attempts import Attempts, WithheldLadders
from gpuagent_alerts.remedies.audit import Audit
from gpuagent_alerts.remedies.audit_rows import OutstandingProcess, outstanding_in_the_way
from gpuagent_alerts.remedies.candidate_precheck import CandidatePrecheck, MakePlan
from gpuagent_alerts.remedies.liveness import LivenessCheck
from gpuagent_alerts.remedies.observation import Observer, RemedyRequest
from gpuagent_alerts.remedies.outcome import RunOutcome, RunResult
from gpuagent_alerts.remedies.plan import Plan
from gpuagent_alerts.remedies.released_memory import ReleasedMemory
from gpuagent_alerts.remedies.run import LadderRun
from gpuagent_alerts.remedies.run_context import RunContext
from gpuagent_alerts.remedies.safeguards.limits import STOPPED_BY_HAND
from gpuagent_alerts.remedies.safeguards.policy import may_end
from gpuagent_alerts.remedies.safeguards.refusals import TemporaryRefusal
from gpuagent_alerts.remedies.safeguards.victim import Candidate, VictimPolicy, rank
from gpuagent_alerts.remedies.selection import AlertCandidates, FairOrder, SelectedTarget, excludes, select_target
from gpuagent_alerts.remedies.settings import LadderRule, RemedyRules
from gpuagent_alerts.remedies.steps import StepKind
from gpuagent_alerts.remedies.target import Target
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.problem import StoreFailure

log = logging.getLogger(__name__)

_HAND_OVER_SECONDS = 15.0
"""How long a person waits at most for a rule's run to take its last step, by the machine's clock."""

OnRunEnd = Callable[[Plan, LadderRun, RunOutcome, bool], None]
"""Is told of every end; the last argument says that the same was told before."""


class RemedyManager:
    """Begins and supervises runs, for one event loop."""

    def __init__(
        self,
        ladders: Sequence[LadderRule],
        rules: RemedyRules,
        context: RunContext,
        *,
        proof_seconds: float,
        on_run_end: OnRunEnd,
    ) -> None:
        self.ladders = tuple(ladders)
        self.rules = rules
        self.proof_seconds = proof_seconds
        self.counts: Counter[tuple[str, bool]] = Counter()
        """Runs that ended, by result and whether they were dry."""
        self.released_bytes = 0
        self.withheld = WithheldLadders(context.now)
        """Why nothing is done about what fires."""
        self._released = ReleasedMemory()
        self.context = replace(context, ending=self.ending, released=self._released.has)
        self._on_run_end = on_run_end
        self._running: dict[LadderRun, asyncio.Task[RunOutcome]] = {}
        self._of_before: set[LadderRun] = set()
        """Runs that go on and were begun by an earlier configuration: their refusals bind nobody by this one."""
        self._attempts = Attempts(context.now, context.wall)
        self._fair_order = FairOrder(context.now)
        self._looks = CandidatePrecheck()
        self.stopped = False
        """A person has stopped remedies: rules begin nothing."""
        self._outstanding: tuple[OutstandingProcess, ...] = ()
        self._liveness = LivenessCheck()
        self._signaled: frozenset[ProcessId] = frozenset()
        """Those of runs that have ended, also where the record cannot be read."""
        self._handed_over: list[tuple[frozenset[str], str]] = []
        """GPUs on which a person waits for the runs of rules to stop, and who it is."""

    @property
    def running(self) -> tuple[LadderRun, ...]:
        """Runs that have not ended."""
        return tuple(self._running)

    def use(self, ladders: Sequence[LadderRule], rules: RemedyRules, proof_seconds: float) -> None:
        """Put another configuration in force. A run goes on by it, or ends before its next step."""
        self.ladders, self.rules, self.proof_seconds = tuple(ladders), rules, proof_seconds
        self._looks.cancel()
        self._attempts.forget_refusals()
        self._of_before.update(self._running)
        if not self.ladders:
            self.withheld.update({})
        for run in self._running:
            run.rules = rules
            plan = run.plan
            if plan.request.alert:
                ladder = self.ladder_of(plan.request.labels)
                if ladder is None or (ladder.steps, ladder.dry_run, ladder.scope) != (
                    plan.steps, plan.dry_run, plan.scope,
                ) or (plan.request.victim and plan.request.victim != ladder.victim):  # fmt: skip
                    run.call_off("the configuration has changed: this ladder is no longer there")
                elif plan.request.passed_over:
                    run.call_off("the configuration has changed: whom it passes over is decided anew")

    def stop(self) -> None:
        """Begin nothing for rules any more; all that runs ends before its next step, what a person began as well."""
        self.stopped = True
        for run in self._running:
            run.call_off(f"remedies are stopped: {STOPPED_BY_HAND}")

    def consider(self, firing: Iterable[AlertCandidates]) -> None:
        """Begin what is due. To be called after each evaluation, with all that fires."""
        firing = self._fair_order.sort(firing)
        fingerprints = {each.alert.fingerprint for each in firing}
        self._attempts.forget_ended({each.alert.fingerprint: each.processes for each in firing})
        self._fair_order.forget_ended(fingerprints)
        reasons: dict[str, tuple[Alert, str]] = {}
        for each in firing:
            ladder = self.ladder_of(each.alert.labels)
            if ladder is not None and (reason := self._begin_or_withhold(ladder, each)):
                reasons[each.alert.fingerprint] = each.alert, reason
        running = {run.plan.request.alert for run in self._running}
        self.withheld.update({name: one for name, one in reasons.items() if name not in running}, running)

    def _begin_or_withhold(self, ladder: LadderRule, firing: AlertCandidates) -> str:
        """Begin the ladder of an alert; return why it is not begun, "" if it is."""
        if self.stopped:
            return f"remedies are stopped: {STOPPED_BY_HAND}"
        if firing.objection:
            return firing.objection
        chosen = select_target(ladder, firing, self._attempts, self.context.now(), self.rules.policy.idle_for_seconds)
        if isinstance(chosen, str):
            return chosen
        victim = "" if firing.alert.labels.get("pid") else str(ladder.victim or "")

        def make_plan(target: Target, passed_over: frozenset[ProcessId]) -> Plan:
            request = _request(firing, victim, passed_over)
            return Plan(request, target, ladder.steps, ladder.dry_run, ladder.scope, self.proof_seconds)

        target = chosen.target
        standing = self.rules.policy.standing_refusal(target, self.context.now())
        if standing := standing or self.context.never_listed(target.id):
            if victim and ladder.victim is not None:
                self._precheck(ladder, ladder.victim, firing, chosen, make_plan)
            return f"pid {target.pid} ({target.name}): {standing}"
        if not ladder.dry_run and _ends_with_limit(ladder) and (limited := self.context.limited(target.id)):
            return f"pid {target.pid} ({target.name}): {limited}"
        plan = make_plan(target, chosen.passed_over)
        taken = self._claimed(None, plan, frozenset({chosen.target.key.gpu_uuid}))
        if not taken:
            self._begin(plan)
        return taken

    def _precheck(
        self,
        ladder: LadderRule,
        victim: VictimPolicy,
        firing: AlertCandidates,
        chosen: SelectedTarget,
        make_plan: MakePlan,
    ) -> None:
        """Have those of the ranking whom the configuration does not mean passed over without a turn for each."""
        alert = firing.alert.fingerprint

        def note(target: Target, outcome: RunOutcome) -> None:
            self._attempts.note(alert, target.id, outcome, dry_run=ladder.dry_run)

        ranking = [each.target for each in self.ranking(victim, firing.processes)]
        self._looks.begin(
            alert, ranking, chosen.passed_over, make_plan, note, policy=self.rules.policy, context=self.context
        )

    async def by_hand(self, plan: Plan, observer: Observer | None = None) -> RunOutcome:
        """Run what a person asked for: the same way, with the same refusals, a dry run like a real one.

        `observer` stands in for the usual one, where the GPU of the process cannot be read.
        """
        gpus = frozenset({plan.target.key.gpu_uuid})
        words = ""
        if not plan.dry_run and not self._claimed(None, plan, gpus):
            words, refusal = await self._take_over(plan, gpus)
            if refusal:
                return RunOutcome(RunResult.REFUSED, refusal, reasons=(refusal,))
        if taken := self._claimed(None, plan, gpus):
            return RunOutcome(RunResult.REFUSED, taken, reasons=(taken,))
        task = self._begin(plan, observer)
        try:
            outcome = await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                raise
            return RunOutcome(RunResult.INTERRUPTED, "the agent is stopping", acted=True)
        return replace(outcome, detail="; ".join(filter(None, (outcome.detail, words))))

    async def _take_over(self, plan: Plan, gpus: frozenset[str]) -> tuple[str, str]:
        """Have the runs of rules on these GPUs take no further step, and wait until that is sure.

        Return what is to be told of them, and why the GPU cannot be had; "" where it can. A run that only waits for
        memory to come back does nothing more, and is not waited for.
        """
        others = [run for run in self._running if run.gpus & gpus and _is_act_of_rule(run)]
        if not others:
            return "", ""
        person = f"{plan.request.asked_by} began to act on this GPU at {format_time(self.context.wall())}"
        for run in others:
            run.call_off(TemporaryRefusal(person))
        told = ", ".join(f"{run.name_of_step} for pid {run.plan.target.pid}" for run in others)
        self._handed_over.append((gpus, person))
        try:
            async with asyncio.timeout(_HAND_OVER_SECONDS):
                await asyncio.gather(*(run.has_stopped.wait() for run in others))
        except TimeoutError:
            return "", (
                f"another remedy is under way on GPU {plan.target.gpu_index}: a rule's ({told}); it takes no further"
                f" step and has not stopped within {format_duration(_HAND_OVER_SECONDS)}: ask again"
            )
        finally:
            self._handed_over.remove((gpus, person))
        return f"a rule's remedy was under way on this GPU ({told}): it took no further step", ""

    async def idle(self) -> None:
        """Wait until no run goes on, and nobody is looked at."""
        await self._looks.idle()
        while self._running:
            await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def close(self) -> None:
        """Stop running. The next agent says of open runs that they were interrupted."""
        self._looks.cancel()
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def ranking(self, policy: VictimPolicy, targets: Iterable[Target]) -> list[Candidate]:
        """Return who would be chosen, and why, for people."""
        return rank(policy, targets, self.context.now(), self.rules.policy.idle_for_seconds)

    @property
    def outstanding(self) -> tuple[OutstandingProcess, ...]:
        """Processes that a step may have ended, that are still there, and that no run is about any more."""
        about = {identity for run in self._running for identity in run.identities}
        return tuple(one for one in self._outstanding if one.identity not in about)

    async def recall(self) -> None:
        """Read from the record whose end is waited for. Raises StoreFailure."""
        self._outstanding = tuple(await asyncio.to_thread(self.context.audit.outstanding))
        self.forget_ended()

    def update_snapshot(self, snapshot: Snapshot) -> None:
        """Take in the snapshot of a tick: who has ended, or has given its memory back, is not waited for any more."""
        self.forget_ended()
        self._released.update_snapshot(snapshot, self._outstanding)

    def forget_ended(self) -> None:
        """Wait no more for those that have ended. It is asked of /proc: the driver may hang too."""
        asked = self._signaled.union(one.identity for one in self._outstanding)
        ended = self._liveness.ended(self.context.executor.is_alive, asked)
        self._outstanding = tuple(one for one in self._outstanding if one.identity not in ended)
        self._signaled -= ended

    def ending(self) -> frozenset[ProcessId]:
        """Return those that a step may end in a run that goes on, or may have ended, and that are not known as gone.

        By the record this holds over a restart of the agent. Dry runs are none of them.
        """
        self.forget_ended()
        under_way = {identity for run in self._running if _may_end(run) for identity in run.identities}
        return frozenset(one.identity for one in self._outstanding) | self._signaled | under_way

    def ladder_of(self, labels: Mapping[str, str]) -> LadderRule | None:
        """Return the ladder for an alert with these labels, by the configuration in force."""
        return next((one for one in self.ladders if one.matches(labels)), None)

    def _claimed(self, run: LadderRun | None, plan: Plan, gpus: frozenset[str]) -> str:
        """Return why these GPUs cannot be had for this plan; "" if they can.

        What a person confirms may share a GPU with anything else: who clears eight hung ranks does not wait for eight
        proofs. Rules wait for all of it.
        """
        for other in self._running:
            if other is not run and excludes(other.plan, plan, same_gpu=bool(other.gpus & gpus)):
                target, request = other.plan.target, other.plan.request
                by = f", asked for by {request.asked_by}" if request.by_hand else ""
                more = "" if other.gpus & gpus or plan.request.by_hand else "; rules act one at a time over the node"
                return f"another remedy is under way on GPU {target.gpu_index}, for pid {target.pid}{by}{more}"
        if plan.request.by_hand:
            return ""
        for handed_over, person in self._handed_over:
            if handed_over & gpus:
                return person
        meant = run.identities if run is not None else {plan.target.id}
        self.forget_ended()
        return outstanding_in_the_way(self._outstanding, meant, gpus, lambda each: not self._released.has(each))

    def _share(self, run: LadderRun, gpus: frozenset[str]) -> None:
        """Tell runs that end processes on the same GPUs of each other: none may take the other's memory for its own."""
        for other in self._running:
            if other is not run and other.gpus & gpus and not (other.plan.dry_run or run.plan.dry_run):
                other.shares_gpu = run.shares_gpu = True

    def _begin(self, plan: Plan, observer: Observer | None = None) -> asyncio.Task[RunOutcome]:
        def claim(run: LadderRun, gpus: frozenset[str]) -> str:
            if not (taken := self._claimed(run, plan, gpus)):
                self._share(run, gpus)
            return taken

        alert = plan.request.alert
        known = self._attempts.gists(alert, plan.target.id, dry_run=plan.dry_run) if alert else ()
        context = self.context if observer is None else replace(self.context, observer=observer)
        run = LadderRun(plan, self.rules, context, claim=claim, known=known)
        task = asyncio.create_task(self._supervise(run), name=f"remedy on GPU {plan.target.gpu_index}")
        self._running[run] = task
        return task

    async def _supervise(self, run: LadderRun) -> RunOutcome:
        try:
            outcome = await run.run()
            if run.id:
                await self._recall_if_possible()  # before the GPU is let go
        finally:
            if run.has_taken_a_step and _may_end(run):
                self._signaled |= run.identities
                self.forget_ended()
            self._running.pop(run, None)
            run.has_stopped.set()
        self._note(run, outcome)
        return outcome

    async def _recall_if_possible(self) -> None:
        try:
            await self.recall()
        except StoreFailure as error:  # nor is anything done then: the record is asked again before each step
            log.warning("the record of remedies cannot be read: %s", error)

    def _note(self, run: LadderRun, outcome: RunOutcome) -> None:
        plan = run.plan
        again = self._attempts.note(plan.request.alert, plan.target.id, outcome, dry_run=plan.dry_run)
        if run in self._of_before:  # whoever comes next in a ranking is not chosen because of what is no longer so
            self._of_before.remove(run)
            self._attempts.forget_refusal(plan.request.alert, plan.target.id, dry_run=plan.dry_run)
        self.counts[outcome.result, plan.dry_run] += 1
        if outcome.result is RunResult.RELEASED:
            self.released_bytes += outcome.released_bytes or 0
        if outcome.acted and not plan.dry_run and plan.request.alert:
            self._fair_order.record(plan.request.alert)
        if outcome.result is RunResult.REFUSED and plan.request.alert:
            self._fair_order.record_refusal(plan.target)
        self._on_run_end(plan, run, outcome, again)


def _is_act_of_rule(run: LadderRun) -> bool:
    return not (run.plan.request.by_hand or run.plan.dry_run)


def _may_end(run: LadderRun) -> bool:
    return not run.plan.dry_run and any(may_end(step) for step in run.plan.steps)


def _ends_with_limit(ladder: LadderRule) -> bool:
    """Return whether a limit is the only thing that lasts: what comes before would only be done again for nothing."""
    *before, last = ladder.steps
    return last.kind is StepKind.LIMIT and not any(step.disrupts for step in before)


def _request(firing: AlertCandidates, victim: str, passed_over: frozenset[ProcessId]) -> RemedyRequest:
    alert = firing.alert
    return RemedyRequest(
        alert=alert.fingerprint,
        alertname=alert.name,
        expression=firing.expression,
        value=alert.value,
        labels=dict(alert.labels),
        victim=victim,
        passed_over=passed_over,
        values=firing.values,
        about_growth=firing.about_growth,
        idle_for_seconds=firing.idle_for_seconds,
    )


class OpenRuns:
    """Closes runs that an earlier agent left open, for one event loop."""

    def __init__(self, audit: Audit, store: Store, remedies: RemedyManager) -> None:
        self._audit = audit
        self._store = store
        self._remedies = remedies
        self._moves: int | None = None

    @property
    def has_moved(self) -> bool:
        """Whether the store has gone to another file or to memory: the record may hold what was not seen before."""
        return self._store.changes[0] != self._moves

    async def close(self) -> None:
        """Close them, repeat nothing, and read whose end is waited for. Raises StoreFailure."""
        self._moves = self._store.changes[0]
        for run in await asyncio.to_thread(self._audit.close_open):
            log.warning("remedy %s was interrupted by the end of the agent; it is not repeated", run)
        await self._remedies.recall()

    async def close_again(self) -> None:
        """Do as `close`, of a file that could not be used before."""
        with suppress(StoreFailure):
            await self.close()
