"""One run of a ladder on one target: look, decide, write down, act, and see whether it helped.

The pidfds are opened first; then everything is read again before every step. It ends as soon as the reason to act has
gone, or at the first doubt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial

from gpuagent.core.identity import ProcessId
from gpuagent_alerts.remedies.audit import NotRecorded, objections
from gpuagent_alerts.remedies.audit_rows import END, INTENT, RESULT
from gpuagent_alerts.remedies.limit_lifts import limit_ask
from gpuagent_alerts.remedies.observation import (
    ActionResult,
    Condition,
    NotPossibleHere,
    Observation,
    ProcessEnded,
    UnitPermission,
)
from gpuagent_alerts.remedies.outcome import RunOutcome, RunResult
from gpuagent_alerts.remedies.pinned_processes import ActionRefused, PinnedProcess, PinnedProcesses
from gpuagent_alerts.remedies.plan import Plan, all_ending, begin_row, end_row, intent_note, may_end_row, skipped_row
from gpuagent_alerts.remedies.proof import outcome_of_answer, outcome_without_alert, watch_release
from gpuagent_alerts.remedies.run_context import RunContext
from gpuagent_alerts.remedies.safeguards.limits import cooldown_key
from gpuagent_alerts.remedies.safeguards.policy import ended_with, may_end
from gpuagent_alerts.remedies.safeguards.refusals import NotAllowListed, OnlyKillHelps, TemporaryRefusal
from gpuagent_alerts.remedies.settings import RemedyRules
from gpuagent_alerts.remedies.steps import RemedyStep, StepKind, groups_of
from gpuagent_alerts.remedies.target import NO_TIES, Facts, Ties
from gpuagent_alerts.store.problem import StoreFailure

log = logging.getLogger(__name__)

_MOMENT_SECONDS, _MOST_LOOKS = 1.0, 4
"""Deciding and writing it down takes less where nothing hangs; else it is looked at again, so often."""

ClaimGpus = Callable[["LadderRun", frozenset[str]], str]
"""Have these GPUs for a run alone; why not, or ""."""


class _RunEnded(Exception):
    """No error: the run has come to its end. `data` goes into the record of it."""

    def __init__(self, outcome: RunOutcome, **data: object) -> None:
        super().__init__(outcome.detail)
        self.outcome = outcome
        self.data = data


class _NotPossible(ActionRefused):
    """Nothing is wrong with the process, but the step cannot be taken here."""


class _OnlyKillReaches(ActionRefused):
    """Nothing is wrong with the step, but that the process sleeps where SIGKILL alone may reach it."""


class LadderRun:
    """One run of one ladder."""

    def __init__(
        self,
        plan: Plan,
        rules: RemedyRules,
        context: RunContext,
        *,
        claim: ClaimGpus = lambda _, __: "",
        known: Collection[str] = (),
    ) -> None:
        """`known` are the refusals that earlier runs for the same reason came to: the same again is not recorded."""
        self.plan = plan
        self.id = ""
        self.step: RemedyStep | None = None
        """The one that is being taken, or was when it ended."""
        self.rules = rules  # those in force: they may change while it runs
        self.gpus = frozenset({plan.target.key.gpu_uuid})
        """On which its processes are."""
        self.has_stopped = asyncio.Event()
        """It takes no further step; memory may still be waited for."""
        self.has_taken_a_step = False
        """Something was done, or would have been in a dry run, be it only to ask the app."""
        self.shares_gpu = False
        """Another run that a person asked for ends processes on the same GPU meanwhile."""
        self._judged_by = rules
        """Those by which the step that is being taken was permitted."""
        self._context = context
        self._claim = claim
        self._known = known
        self._pinned = PinnedProcesses(context.executor, partial(all_ending, plan, context.ending))
        self._called_off = self._passed_over = self._limited = ""
        self._acted = False
        self._unrecorded = False
        """The record takes nothing: a refusal for that reason begins no run."""
        self._owed = ""
        """Why the result of a step that was taken is not on the disk yet."""
        self._last_look = self._looked_at = 0.0
        self._before: Observation | None = None

    @property
    def identities(self) -> frozenset[ProcessId]:
        """The identities of the target and of all that fall with it."""
        return frozenset({self.plan.target.id, *(member.target.id for member in self._pinned.members)})

    @property
    def name_of_step(self) -> str:
        """Return the name of the step that is being taken, or of the first where nothing has come of that yet."""
        return str(self.step or self.plan.steps[0])

    def call_off(self, reason: str) -> None:
        """Take no further step."""
        self._called_off = reason

    async def run(self) -> RunOutcome:
        """Take the steps in order. Never raises but for cancellation; the end is in the audit log."""
        data: dict[str, object] = {}
        try:
            outcome = await self._take_steps()
        except _RunEnded as ended:
            outcome, data = ended.outcome, ended.data
        except ActionRefused as doubt:
            outcome = self._refused(*doubt.reasons).outcome
        except ProcessEnded:
            outcome = RunOutcome(RunResult.EXITED, "it has ended by itself", acted=self._acted)
        except (NotRecorded, StoreFailure) as error:
            self._unrecorded = isinstance(error, NotRecorded)
            detail = f"not recorded, so not done: {error}"
            outcome = RunOutcome(RunResult.REFUSED, detail, general=True, acted=self._acted)
        except Exception as error:
            log.exception("a remedy failed")
            outcome = RunOutcome(RunResult.FAILED, f"a defect of the agent: {error!r}", acted=self._acted)
        finally:
            self._pinned.close()
        if self._owed:
            detail = f"{outcome.detail}; the record of what came of it before is owed: {self._owed}"
            outcome = replace(outcome, detail=detail.removeprefix("; "))
        await self._write_end(outcome, data)
        return outcome

    async def _take_steps(self) -> RunOutcome:
        observation = await self._pin_everybody()
        for step in self.plan.steps:
            self.step = step
            outcome = await self._take_step(step, observation)
            if outcome is not None:
                return outcome
            observation = await self._observe()
        if self.plan.dry_run:
            return RunOutcome(RunResult.DRY_RUN, f"nothing was done: dry run{self._passed_over}", acted=self._acted)
        result = RunResult.LIMITED if self._limited else RunResult.NO_EFFECT
        return RunOutcome(result, self._limited or "every step was taken", acted=self._acted)

    async def _pin_everybody(self) -> Observation:
        """Hold all who are meant; then read the GPU: what is seen is of those who are held."""
        await self._pinned.pin(self.plan.target)
        self._last_look = self._context.now()
        observation = await self._observe()
        if others := [each for each in observation.members if each.id != self.plan.target.id]:
            await self._pinned.pin_all(others)
            self._last_look = self._context.now()
            observation = await self._observe()
        wanted = self.gpus | {each.key.gpu_uuid for each in observation.members}
        if taken := self._claim(self, wanted):
            self.gpus = frozenset()  # let go at once: two that want each other's GPUs must not refuse each other
            raise self._refused(TemporaryRefusal(taken))
        self.gpus = wanted
        if missing := [str(each.pid) for each in observation.members if each.id not in self.identities]:
            raise self._refused(f"others have joined it meanwhile: pid {', '.join(missing)}")
        return observation

    async def _observe(self) -> Observation:
        """See the target on a reading that is newer than all that was done, and end where there is no reason to act."""
        plan, context = self.plan, self._context
        observation = await context.observer.next_observation(
            plan.target, plan.request.alert, self._last_look, context.look_seconds, scope=plan.scope
        )
        if observation is None:
            raise self._refused(TemporaryRefusal("there has been no fresh reading of the GPU"))
        self._last_look, self._looked_at = observation.clock_seconds, context.now()
        if observation.condition is Condition.OVER:
            raise _RunEnded(
                RunOutcome(RunResult.RESOLVED, observation.reason or "the alert has ended", acted=self._acted)
            )
        if observation.condition is Condition.UNKNOWN:
            raise self._refused(TemporaryRefusal(observation.reason or "the data behind the alert is in doubt"))
        if observation.act_refusal:  # of the GPU, not of this process: another one in its place is no answer
            raise self._refused(TemporaryRefusal(observation.act_refusal))
        if observation.target is None:
            if self._pinned.have_ended():
                raise _RunEnded(RunOutcome(RunResult.EXITED, "it ended by itself", acted=self._acted))
            raise self._refused("it is no longer on the GPU")
        return observation

    async def _take_step(self, step: RemedyStep, observation: Observation) -> RunOutcome | None:
        """Take one step; return its outcome, or None where the next one is due."""
        judged_as, self._before = self.plan.judged_as(step), observation
        try:
            facts = await self._check(judged_as, observation)
        except _NotPossible as reason:
            await self._leave_out(step, *reason.reasons)
            return None
        except _OnlyKillReaches as reason:
            if (kill := self.plan.kill_after(judged_as)) is None:
                raise self._refused(*reason.reasons) from None
            if step.disrupts:
                return await self._pass_over(step, str(reason))
            judged_as, facts = kill, await self._check(kill, observation)
        permission = self._permission(observation)
        if refusal := await self._context.executor.group_refusal(judged_as, self.plan.target, permission):
            await self._leave_out(step, refusal)
            return None
        if step.disrupts and (refusal := await self._pinned.container_refusal()):
            raise self._refused(refusal)
        useless = step.sends is not None and all(each.ignores(step.sends) for each in facts)
        async with self._context.gate:
            await asyncio.to_thread(self._check_record, judged_as)
            await asyncio.to_thread(self._write_intent, step, observation, useless, facts)
        started = self._context.now()
        done = await self._execute(step, observation, facts[0].ties)
        self._acted = self._acted or (step.disrupts and (done.taken or step.kind is not StepKind.LIMIT))
        if self.plan.is_question(step):
            return outcome_of_answer(step, done, self._context.now() - started)
        if not done.ok:
            self._failed(step, done)
            return None
        self._limited = done.detail if step.kind is StepKind.LIMIT else ""
        # A person who asks what would be done waits for no effect: there is none, and no alert that could end.
        pointless = (useless and step.kind is not StepKind.KILL) or (self.plan.dry_run and self.plan.request.by_hand)
        return await self._wait_for_effect(step, 0.0 if pointless else step.wait_seconds)

    def _failed(self, step: RemedyStep, done: ActionResult) -> None:
        """Go on with the next step where one that could not be taken keeps no later one away; else end."""
        is_last, is_limit = step == self.plan.steps[-1], step.kind is StepKind.LIMIT
        if not step.disrupts or ((step.asks_app or (is_limit and not done.taken)) and not is_last):
            return  # an app that has no client, refuses or is silent; a limit that cannot be had here
        if is_limit and not done.taken:
            raise self._refused(done.detail)
        # Nobody knows whether the limit was set: no fault of who is limited, and the breaker counts it for nothing.
        result = RunResult.INTERRUPTED if is_limit else RunResult.FAILED
        raise _RunEnded(RunOutcome(result, f"{step}: {done.detail}", acted=True), not_permitted=done.errno == 1)

    async def _pass_over(self, step: RemedyStep, reason: str) -> RunOutcome | None:
        """Leave the step out; its time is waited all the same, and only one that did not run in it is killed."""
        await self._pinned.remember_sleep()
        self._passed_over = f"; {step} would be passed over: {reason}"
        await self._skip(step, reason)
        return await self._wait_for_effect(
            step, 0.0 if self.plan.dry_run and self.plan.request.by_hand else step.wait_seconds
        )

    async def _leave_out(self, step: RemedyStep, *reasons: str) -> None:
        """Go on with the next step where this one cannot be taken here; end where that is no mere want of means."""
        if step == self.plan.steps[-1] or not all(isinstance(each, NotPossibleHere) for each in reasons):
            raise self._refused(*reasons)
        await self._skip(step, "; ".join(reasons))

    async def _skip(self, step: RemedyStep, reason: str) -> None:
        """Write down that the step is left out."""
        await asyncio.to_thread(self._begin)
        await asyncio.to_thread(self._context.audit.write, self.id, INTENT, skipped_row(self.plan, step, reason))
        await self._write_result(step, ActionResult(ok=True, taken=False))

    async def _ties(self, step: RemedyStep) -> Ties:
        if not may_end(step):
            return NO_TIES
        return await self._pinned.ties(with_units=self.plan.answers_for_units(step))

    async def _check(self, step: RemedyStep, observation: Observation, ties: Ties | None = None) -> list[Facts]:
        """Refuse at any doubt about any member. Without `ties` it looks who is tied to them."""
        if self._called_off:
            raise self._refused(self._called_off)
        self._judged_by = self.rules
        looked = await self._pinned.read(await self._ties(step) if ties is None else ties)
        for member, facts, changed in looked:
            chosen = member.target.id == self.plan.target.id
            if not chosen and (gone := member.off_the_gpu(observation)):
                raise self._refused(*self._attribute(member, [gone]))
            # Another member is judged by what it is, on the reading of the one that was chosen.
            seen = observation if chosen else replace(observation, target=member.seen_in(observation), choice=None)
            policy = self.rules.policy if chosen else self.rules.policy.for_members()
            against = policy.refusals(
                step,
                self.plan.request,
                seen,
                facts,
                self._context.now(),
                self._context.executor.protected(),
                self.plan.scope,
            )
            if reasons := list(dict.fromkeys([*against, *changed])):
                if all(isinstance(reason, OnlyKillHelps) for reason in reasons):
                    raise _OnlyKillReaches(*self._attribute(member, reasons))
                if chosen and all(isinstance(reason, NotPossibleHere) for reason in reasons):
                    raise _NotPossible(*reasons)
                next_may = chosen and all(isinstance(reason, NotAllowListed) for reason in reasons)
                raise self._refused(*self._attribute(member, reasons), general=not next_may)
        falls_together = groups_of(step) or (step.disrupts and self.plan.scope != "process")
        if falls_together and any(each.id not in self._pinned.known for each in observation.members):
            raise self._refused("others have joined it meanwhile")
        return [facts for _, facts, _ in looked]

    def _attribute(self, member: PinnedProcess, reasons: list[str]) -> list[str]:
        if member.target.id == self.plan.target.id:
            return reasons
        found = []
        for reason in reasons:
            text = f"pid {member.target.pid}, which falls with it: {reason}"
            found.append(TemporaryRefusal(text, reason.seconds) if isinstance(reason, TemporaryRefusal) else text)
        return found

    def _check_record(self, step: RemedyStep) -> None:
        """Raise _RunEnded where what is on record forbids it. In a thread, and inside the gate."""
        if against := objections(
            self.plan, step, self.rules.limits, self._context.audit, self._cooldown_key(), self.identities, self.gpus,
            self._context.is_waited_for, acted=self._acted,
        ):  # fmt: skip
            raise self._refused(*against)

    def _begin(self) -> list[int]:
        """Begin the record of this run, once; return whom it is about. In a thread. Raises NotRecorded."""
        pids = [member.target.pid for member in self._pinned.members]
        if not self.id:
            self.id = self._context.audit.begin(begin_row(self.plan, self._cooldown_key(), pids))
        return pids

    def _write_intent(self, step: RemedyStep, observation: Observation, useless: bool, facts: list[Facts]) -> None:
        """Write the intent to the disk before anything is done. For a thread. Raises NotRecorded."""
        pids = self._begin()
        targets = [member.target for member in self._pinned.members]
        self._context.audit.write(self.id, INTENT, {
            "step": str(step), "disrupts": step.disrupts, "dry_run": self.plan.dry_run, "pids": pids,
            "used_bytes": self.plan.target.used_bytes, "note": intent_note(observation.apart, useless),
            "ends_with_it": [str(each) for one in facts for each in ended_with(step, one)],
            **may_end_row(self.plan, step, targets, self.gpus),
        })  # fmt: skip

    async def _execute(self, step: RemedyStep, observation: Observation, ties: Ties) -> ActionResult:
        """Act, and write down what came of it: also where the very last look forbade it."""
        try:
            if step.disrupts:
                await self._recheck(step, observation, ties)
            done = await self._dispatch(step, self._before or observation)
        except (ActionRefused, ProcessEnded, _RunEnded) as reason:
            detail = f"not done: {str(reason) or 'it has ended by itself'}"
            await self._write_result(step, ActionResult(ok=False, detail=detail, taken=False), considered=step.disrupts)
            raise
        self.has_taken_a_step = self.has_taken_a_step or done.taken
        not_had = step.kind is StepKind.LIMIT and not done.taken
        await self._write_result(step, done, considered=not_had)
        return done

    async def _write_result(self, step: RemedyStep, done: ActionResult, *, considered: bool = False) -> None:
        data = {
            "step": str(step), "ok": done.ok, "errno": done.errno, "detail": done.detail, "taken": done.taken,
            "considered": considered,
        }  # fmt: skip
        try:
            await asyncio.to_thread(self._context.audit.write, self.id, RESULT, data)
        except NotRecorded as error:  # the record writes it as soon as it can; the step was taken all the same
            self._owed = f"{step}: {error}"

    async def _recheck(self, step: RemedyStep, observation: Observation, ties: Ties) -> None:
        """Judge anew by a reading that came while it was decided and written down.

        A disk that hangs, another run that is waited for, a runtime that is asked: meanwhile the process may have given
        its memory back, or gone to work. Where that took long, or there is less than before, the rule sees it first.

        `ties` are those that were judged. Who is tied to it is seen anew right before the step, and not here: where ten
        thousand processes run, that look alone takes so long that no reading would be fresh after it.
        """
        context = self._context
        for _ in range(_MOST_LOOKS):
            newest = context.observer.observe(self.plan.target, self.plan.request.alert, self.plan.scope)
            quick = context.now() - self._looked_at <= (
                _MOMENT_SECONDS if self.plan.request.alert else context.look_seconds
            )
            if quick and newest.clock_seconds <= observation.clock_seconds:
                return
            steady = quick and newest.condition is Condition.HOLDS and not newest.shows_less_than(observation)
            observation = newest if steady else await self._observe()
            await self._check(self.plan.judged_as(step), observation, ties)
            self._before = observation
            if steady:
                return
        raise self._refused(TemporaryRefusal("there is no fresh reading by the time it has been judged"))

    def _permission(self, observation: Observation) -> UnitPermission:
        policy = self._judged_by.policy
        permission = policy.unit_permission(self.plan.target, policy.spared(self.plan.request, observation))
        return replace(permission, ending=all_ending(self.plan, self._context.ending))

    async def _dispatch(self, step: RemedyStep, observation: Observation) -> ActionResult:  # noqa: PLR0911  one for each kind
        """Do it. The intent is on the disk; writing took time, so who it is and what is permitted are asked again."""
        target, executor = self.plan.target, self._context.executor
        facts = await self._pinned.recheck(await self._ties(step))
        permission = self._permission(observation)
        asked = (step, self.plan.request, facts[0], executor.protected(), permission)
        if against := list(self._judged_by.policy.ends_others(*asked)):
            raise ActionRefused(*against)
        if self._called_off or self.rules != self._judged_by:
            raise ActionRefused(self._called_off or "the configuration has changed since it was decided")
        if step.kind in {StepKind.DROP_CACHES, StepKind.LIMIT}:
            return await self._do_or_tell(step, observation, permission)
        if self.plan.dry_run:
            return self._rehearse(step)
        if step.sends is not None:
            return self._pinned.send(step.sends)
        if step.kind is StepKind.NOTIFY:
            return await executor.notify(target, self.plan.reason, step.wait_seconds)
        if step.kind is StepKind.RELEASE_CACHE:
            return await executor.release_cache(target, step.wait_seconds, collect=step.collect)
        if step.kind is StepKind.RESET:
            return await executor.reset(target, step.wait_seconds)
        if step.kind is StepKind.RESTART_UNIT:
            return await executor.restart_unit(target, permission, step.wait_seconds)
        return await executor.execute(step, target, permission)

    async def _do_or_tell(self, step: RemedyStep, observation: Observation, permission: UnitPermission) -> ActionResult:
        """Set a limit, or drop page cache, or tell how much that would be; pass where it is no memory of the GPU."""
        if step.kind is StepKind.LIMIT:
            ask = limit_ask(self.plan, step, self.id, observation, self._context.limit_owner)
            return await self._context.executor.limit(step, self.plan.target, permission, ask)
        if not observation.unified_memory:
            return ActionResult(ok=False, detail="the GPU has memory of its own: page cache is none of it", taken=False)
        return await self._context.executor.drop_caches(step, rehearse=self.plan.dry_run)

    def _rehearse(self, step: RemedyStep) -> ActionResult:
        """Do what a dry run may: ask the kernel (signal 0) whether the signal would be permitted."""
        asked = self._pinned.send(0) if step.sends is not None else ActionResult(ok=True)
        return replace(asked, detail=asked.detail or "dry run")

    async def _wait_for_effect(self, step: RemedyStep, wait_seconds: float) -> RunOutcome | None:
        """Wait for the effect. None: there was none in time."""
        context, plan = self._context, self.plan
        started = context.now()
        end = started + wait_seconds
        while True:
            left = max(end - context.now(), 0.0)
            observation = await context.observer.next_observation(
                plan.target, plan.request.alert, self._last_look, left, evaluated=False
            )
            if not plan.dry_run and self._pinned.have_ended():
                self.has_stopped.set()
                return await watch_release(
                    plan, context.observer, self._before,
                    started=started, now=context.now, held=self._pinned.held_bytes(plan.target.key.gpu_uuid),
                    shared=lambda: self.shares_gpu,
                )  # fmt: skip
            if observation is not None:
                self._last_look = observation.clock_seconds
                if observation.condition is Condition.OVER:
                    return outcome_without_alert(plan, observation, context.now() - started, acted=self._acted)
            if self._called_off or context.now() >= end:  # as `left` is worked out: no other rounding
                break
        if step.kind is StepKind.KILL and not plan.dry_run and not self._called_off:
            where = "; ".join(await self._pinned.whereabouts())
            return RunOutcome(
                RunResult.UNKILLABLE, f"SIGKILL was sent, and the process is still there: {where}", acted=True
            )
        return None

    def _refused(self, *reasons: str, general: bool = True) -> _RunEnded:
        outcome = RunOutcome(RunResult.REFUSED, "; ".join(reasons), general=general, acted=self._acted, reasons=reasons)
        return _RunEnded(outcome, reasons=list(reasons))

    async def _write_end(self, outcome: RunOutcome, data: dict[str, object]) -> None:
        if not self.id and outcome.result is RunResult.REFUSED and (self._unrecorded or outcome.gist in self._known):
            return
        try:
            if not self.id:  # refused before it began: the refusal is worth a record too
                await asyncio.to_thread(self._begin)
            row = end_row(outcome) | data | {"step": self.name_of_step}
            await asyncio.to_thread(self._context.audit.write, self.id, END, row)
        except NotRecorded:
            return  # it is in the log, and the record writes it as soon as it can

    def _cooldown_key(self) -> str:
        members = self._pinned.members
        return cooldown_key(self.plan.target, members[0].identity.command_digest if members else "")
