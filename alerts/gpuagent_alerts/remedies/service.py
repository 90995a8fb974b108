"""Remedies in the service: updated with snapshots and evaluated rules, and commanded by people.

`gpuagent remedies stop` (`ManualStop`) reads no file, and holds before it is written down.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from gpuagent.core.accounts import describe_user
from gpuagent.core.background import in_daemon_thread
from gpuagent.core.clock import Clock
from gpuagent.core.identity import ProcessId
from gpuagent.core.memory_limits import MemoryLimits, NoMemoryLimits
from gpuagent.core.metrics.remedies import RemedyCount, RemedyFigures, freed_by
from gpuagent.core.snapshot import Snapshot
from gpuagent.procfs.hanging import read_with_timeout
from gpuagent_alerts.alert import Alert
from gpuagent_alerts.remedies.alert_evaluation import AlertEvaluation, ValueHistory
from gpuagent_alerts.remedies.audit import Audit, NotRecorded, RecordedStop
from gpuagent_alerts.remedies.audit_rows import runs
from gpuagent_alerts.remedies.candidates import budget_uses, candidates_of, why_nobody
from gpuagent_alerts.remedies.facts.command_digests import CommandDigests
from gpuagent_alerts.remedies.facts.fresh_lookup import LOOK_SECONDS, FreshProcess, ProcessLookup
from gpuagent_alerts.remedies.facts.job_starters import SupervisorUnits
from gpuagent_alerts.remedies.facts.never_entries import NeverListEntries
from gpuagent_alerts.remedies.history import RemedyHistory, outstanding_step_of
from gpuagent_alerts.remedies.limit_lifts import LimitLifts
from gpuagent_alerts.remedies.manager import OpenRuns, RemedyManager
from gpuagent_alerts.remedies.manual_requests import (
    IdentifiedProcess,
    add_identity_facts,
    find_shown_target,
    with_fresh_info,
    with_last_lists,
)
from gpuagent_alerts.remedies.observation import ActionExecutor, RemedyRequest
from gpuagent_alerts.remedies.observer import MemoryHoldTimes, SnapshotObserver
from gpuagent_alerts.remedies.outcome import NOTHING_DONE, RunOutcome, RunResult
from gpuagent_alerts.remedies.plan import Plan
from gpuagent_alerts.remedies.rehearsal import accepted_advice
from gpuagent_alerts.remedies.run import LadderRun
from gpuagent_alerts.remedies.run_context import RunContext
from gpuagent_alerts.remedies.safeguards.limits import STOPPED_BY_HAND, breaker_reason, owners_left_alone
from gpuagent_alerts.remedies.safeguards.refusals import advice_on
from gpuagent_alerts.remedies.safeguards.victim import VictimChoice
from gpuagent_alerts.remedies.selection import AlertCandidates
from gpuagent_alerts.remedies.settings import RemedySettings
from gpuagent_alerts.remedies.snapshot_targets import unranked_memory, used_ratio
from gpuagent_alerts.remedies.steps import RemedyStep, StepKind
from gpuagent_alerts.remedies.target import Target
from gpuagent_alerts.remedies.unreadable_gpus import LastListObserver, UnreadableGpus
from gpuagent_alerts.store.cached_query import CachedQuery
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.problem import StoreFailure

log = logging.getLogger(__name__)

_LOOK_SECONDS = 15.0
_LOOK_REAL_SECONDS = 5.0
"""Under a scenario that runs faster than life, a busy machine must still get round to a reading in this time."""
_RECORD_SECONDS = 5.0
"""A disk that hangs is not waited for: remedies are stopped already."""


@dataclass(frozen=True, slots=True)
class RemedyDependencies:
    """What remedies need of the node, the store and the outside world."""

    store: Store
    clock: Clock
    boot_id: str
    executor: Callable[[RemedyHistory], ActionExecutor]
    config_file: str
    """Where a person finds the keys that a refusal names."""
    pid_namespace: int = 0
    """Inode of the agent's own pid namespace: pids mean the same only to those who are in it. 0 is unknown."""
    lookup: ProcessLookup = field(default_factory=ProcessLookup)
    """Reads a process anew for a request by hand."""
    digests: CommandDigests = field(default_factory=CommandDigests)
    """Digests what a person is shown of a process."""
    never: NeverListEntries = field(default_factory=NeverListEntries)
    """The operator's entries of the never-list: those in force, known to the executor as well."""
    supervisors: SupervisorUnits = field(default_factory=SupervisorUnits)
    """The operator's units that start the work of others, likewise."""
    limits: MemoryLimits = field(default_factory=NoMemoryLimits)
    """Sets memory limits, as the executor does."""


class RemedyService:
    """Remedies of one node, for one event loop."""

    def __init__(self, settings: RemedySettings, dependencies: RemedyDependencies) -> None:
        self.settings = settings
        self.history = RemedyHistory(dependencies.clock)
        self.observer = SnapshotObserver(dependencies.clock, self._choice, lambda: self.settings.rules.policy.never)
        self.audit = Audit(dependencies.store, dependencies.clock, dependencies.boot_id)
        self._record = CachedQuery(dependencies.store, lambda: runs(self.audit.events()))
        self._clock = dependencies.clock
        self._off = self._off_problem = ""
        self._store = dependencies.store
        self._boot_id = dependencies.boot_id
        self._pid_namespace = dependencies.pid_namespace
        self._config_file = dependencies.config_file
        self._snapshot: Snapshot | None = None
        self._lookup = dependencies.lookup
        self._digests = dependencies.digests
        self._never_entries = dependencies.never
        self._supervisors = dependencies.supervisors
        self._unreadable = UnreadableGpus(dependencies.clock)
        self._stopped = ""
        self.left_alone: list[str] = []
        """Users, units and containers whose processes rules leave alone until a person has looked."""
        self._manual_stop = ManualStop(self.audit, dependencies.clock)
        self._one_look = asyncio.Lock()
        self._later: set[asyncio.Task[None]] = set()
        self._value_history = ValueHistory()
        self._presence = MemoryHoldTimes()
        executor, owner = dependencies.executor(self.history), dependencies.digests(b"memory limits")
        self.limit_lifts = LimitLifts(dependencies.limits, dependencies.clock, self.audit, executor.is_alive, owner)
        context = RunContext(
            self.observer, executor, self.audit, asyncio.Lock(), dependencies.clock.now,
            self._look_seconds(settings), dependencies.clock.wall, self._never_entries.first_seen,
            limit_owner=owner, limited=self.limit_lifts.words,
        )  # fmt: skip
        self.remedies = RemedyManager(
            settings.ladders, settings.rules, context,
            proof_seconds=settings.proof_seconds, on_run_end=self._run_ended,
        )  # fmt: skip
        self._open_runs = OpenRuns(self.audit, dependencies.store, self.remedies)
        self.use(settings)

    async def open(self) -> None:
        """Close the records that a dead agent left open; nothing of them is repeated."""
        try:
            await self._open_runs.close()
            recent = await asyncio.to_thread(lambda: runs(self.audit.events()))
        except StoreFailure as error:  # nothing will be done while nothing can be recorded
            log.error("the record of remedies cannot be read: %s", error)  # noqa: TRY400  no defect of ours
            return
        self.history.restore(recent)
        await self._look_at_the_breaker()

    async def close(self) -> None:
        """Let go of everything."""
        await self.remedies.close()
        for task in self._later:
            task.cancel()
        await asyncio.gather(*self._later, return_exceptions=True)

    def use(self, settings: RemedySettings) -> None:
        """Put a configuration in force. A run ends before its next step where it would no longer be begun."""
        self.settings = settings
        self._never_entries.use(settings.rules.policy.never)
        self._supervisors.use(settings.rules.policy.supervisors)
        self._off = settings.off
        self._tell_off(settings.off)
        self.remedies.context = replace(self.remedies.context, look_seconds=self._look_seconds(settings))
        self.remedies.use(() if settings.off else settings.ladders, settings.rules, settings.proof_seconds)

    def turn_off(self, why: str) -> None:
        """Do nothing any more, by rules or by hand, until another configuration is put in force."""
        self._off = why
        self._tell_off(why)
        self.remedies.use((), self.remedies.rules, self.remedies.proof_seconds)

    def _look_seconds(self, settings: RemedySettings) -> float:
        """Return the time of three readings, however seldom the GPU is read."""
        return max(_LOOK_SECONDS, 3 * settings.poll_interval_seconds, _LOOK_REAL_SECONDS * self._clock.speed)

    async def update_snapshot(self, snapshot: Snapshot) -> None:
        """Take in the snapshot of a tick."""
        self._snapshot = snapshot
        self._unreadable.update_snapshot(snapshot)
        self._never_entries.follow(each.info.id for each in snapshot.processes if each.info is not None)
        if self.remedies.ladders:
            self._presence.update_snapshot(snapshot, self.settings.longest_gap_seconds)
        self.remedies.update_snapshot(snapshot)
        if self._open_runs.has_moved:
            self._do_later(self._open_runs.close_again(), "open runs")
        await self.observer.update_snapshot(snapshot)

    async def update_alerts(self, evaluations: Sequence[AlertEvaluation]) -> None:
        """Take in an evaluation of the rules: all that fires."""
        await self.observer.update_alerts(evaluations)
        if self.limit_lifts.is_due():
            firing = {each.alert.fingerprint for each in evaluations}
            self._do_later(self.limit_lifts.look(firing), "memory limits")
        snapshot = self._snapshot
        if snapshot is not None and self.remedies.ladders:
            self._value_history.add(evaluations)
            self.remedies.consider([self._candidates_for(each, snapshot) for each in evaluations])

    def _candidates_for(self, evaluation: AlertEvaluation, snapshot: Snapshot) -> AlertCandidates:
        if evaluation.objection or self.remedies.ladder_of(evaluation.alert.labels) is None:
            return AlertCandidates(evaluation.alert, evaluation.since_seconds, (), objection=evaluation.objection)
        candidates = self._candidates(evaluation, snapshot)
        return AlertCandidates(
            evaluation.alert, evaluation.since_seconds, candidates, evaluation.expression,
            self._value_history.values(evaluation.alert.fingerprint), evaluation.analysis.about_growth,
            nobody="" if candidates else why_nobody(evaluation, snapshot, disrupts=self._disrupts(evaluation.alert)),
            newcomers=self._newcomers(evaluation, candidates),
            gpu_used_ratio=used_ratio(snapshot, evaluation.result_labels.get("uuid", "")),
            idle_for_seconds=self._rest_wanted(evaluation),
        )  # fmt: skip

    def _rest_wanted(self, evaluation: AlertEvaluation) -> float | None:
        """Return for how long its process must have been at rest; None where the rule is not about idleness.

        With `for: 0s` one reading would decide, and who loads data is at 0 % between two batches.
        """
        if not evaluation.analysis.about_idleness:
            return None
        return max(evaluation.for_seconds, self.settings.rules.policy.idle_for_seconds)

    def _newcomers(self, evaluation: AlertEvaluation, candidates: Sequence[Target]) -> Mapping[ProcessId, str]:
        """Return whom a ladder must not choose yet: the time for which the rule holds has to be the process's own."""
        return self._presence.newcomers(candidates, evaluation.for_seconds, self._clock.now())

    async def kill(
        self,
        pid: int,
        steps: Sequence[RemedyStep],
        shown: IdentifiedProcess,
        *,
        uid: int,
        force: bool,
        dry_run: bool,
        gpu: str = "",
    ) -> dict[str, Any]:
        """Run a ladder by hand, by the same refusals; return what came of it, and what the app said if it was asked.

        Raises:
            NoSuchProcess: nothing is on record.
            AnotherProcess: `pid` is not the process that was shown; nothing is on record.
        """
        asked_by = await describe_user(uid)
        self._lookup.follow_soon([pid])
        fresh = await self._look_up([pid])
        target = find_shown_target(self._snapshot, pid, gpu, shown, fresh, self._digests, self._unreadable.now())
        request = RemedyRequest(asked_by=asked_by, forced=force, shown=shown.ends_with_it, together=shown.together)
        plan = Plan(request, target, tuple(steps), dry_run, proof_seconds=self.remedies.proof_seconds)
        blind = self._unreadable.find(target)
        why = f"remedies are off: {self._off}" if self._off else ""
        if not why and blind is not None and not force:
            why = f"{blind.text}: the process was on it at its last reading, and whether it still is cannot be told"
        if why:
            outcome = RunOutcome(RunResult.REFUSED, why, reasons=(why,))
        else:
            observer = LastListObserver(self.observer, self._unreadable) if blind is not None else None
            outcome = await self.remedies.by_hand(plan, observer)
        advice = await self._advice(plan, outcome)
        return {
            **outcome.answer,
            "pid": pid, "gpu": target.gpu_index, "name": target.name, "result": outcome.result,
            "detail": outcome.detail, "released_bytes": outcome.released_bytes, "seconds": outcome.seconds,
            "dry_run": dry_run, "advice": advice,
        }  # fmt: skip

    async def _advice(self, plan: Plan, outcome: RunOutcome) -> list[str]:
        """Return what lifts a refusal: options of the command only where the same safeguards would accept them."""
        if outcome.result not in {RunResult.REFUSED, RunResult.FAILED}:
            return []
        reasons = outcome.reasons or (outcome.detail,)
        if self._off:
            return advice_on(reasons, plan.target, self._config_file, forced=plan.request.forced)
        return await accepted_advice(
            plan, reasons, self._config_file, policy=self.remedies.rules.policy,
            observer=LastListObserver(self.observer, self._unreadable), executor=self.remedies.context.executor,
            now_seconds=self._clock.now(), ending=self.remedies.ending,
        )  # fmt: skip

    async def stop(self, uid: int) -> str:
        """End all that rules do, at once, until the next reset; return why that is not on record, "" if it is."""
        self.remedies.stop()
        self._stopped = STOPPED_BY_HAND
        log.error("remedies are stopped: uid %d has stopped them; `gpuagent remedies reset` lets them go on", uid)
        why = await self._manual_stop.begin(uid)
        if not why:
            await self._look_at_the_breaker()
        return why

    async def reset(self, uid: int) -> None:
        """Record that a person has looked, and let remedies go on. Raises NotRecorded."""
        by = await describe_user(uid)
        await asyncio.to_thread(self.audit.reset, by)
        self._manual_stop.end()
        await self._look_at_the_breaker()

    async def lift(self, uid: int) -> tuple[list[str], list[str]]:
        """Lift all memory limits of this agent; return what was lifted, and what was not. Raises LimitRefused."""
        return await self.limit_lifts.lift_all(await describe_user(uid))

    async def document(self) -> dict[str, Any]:
        """Return what was done, for `gpuagent remedies`."""
        stop = self._manual_stop.now
        return {
            "schema": 1,
            "simulated": bool(self._snapshot.simulated) if self._snapshot else False,
            "stopped": self._stopped,
            "stopped_by": stop.by if stop is not None else "",
            "stopped_seconds": stop.wall_seconds if stop is not None else None,
            "left_alone": self.left_alone,
            "off": self._off,
            "dry_run": self.settings.dry_run,
            "look_seconds": self.remedies.context.look_seconds,
            "proof_seconds": self.remedies.proof_seconds,
            "withheld": self.remedies.withheld.documents(self._clock.wall()),
            "limits": self.limit_lifts.documents(),
            "remedies": await asyncio.to_thread(self._record.get),
        }

    async def identified(self) -> dict[str, Any]:
        """Return the GPU processes with what tells each from every other one: for who commands, and nobody else.

        Each is read anew: what a person is shown is what is so now, and what their request is compared with.
        """
        snapshot, unreadable = self._snapshot, self._unreadable.now()
        pids = {each.pid for each in snapshot.processes} if snapshot is not None else set()
        pids |= {each.pid for gpu in unreadable for each in gpu.processes}
        self._lookup.follow_soon(pids)
        fresh = await self._look_up(pids)
        if snapshot is not None:
            snapshot = with_fresh_info(with_last_lists(snapshot, unreadable, fresh), fresh)
        document = self.settings.list_processes(snapshot, self._clock.now())
        document["agent"] = {
            **document["agent"], "pid_namespace": self._pid_namespace or None, "dry_run": self.settings.dry_run,
        }  # fmt: skip
        add_identity_facts(document, snapshot, fresh, unreadable, self._digests)
        return document

    def figures(self) -> RemedyFigures:
        """Return the figures of the series."""
        snapshot = self._snapshot
        return RemedyFigures(
            ladders=len(self.remedies.ladders),
            stopped=bool(self._stopped or self._off_problem),
            left_alone=len(self.left_alone),
            running=len(self.remedies.running),
            counts=tuple(RemedyCount(*key, number) for key, number in sorted(self.remedies.counts.items())),
            released_bytes=self.remedies.released_bytes,
            ended=self.history.recent(),
            outstanding=tuple(outstanding_step_of(one) for one in self.remedies.outstanding),
            announced=self.history.announced(),
            budgets=tuple(budget_uses(self.settings.budgets, snapshot)) if snapshot is not None else (),
            under_way=self.under_way(),
        )

    def under_way(self) -> frozenset[tuple[str, str]]:
        """Return UUID and pid of each process on which a remedy acts for real, or has acted a moment ago."""
        targets = (run.plan.target for run in self.remedies.running if not run.plan.dry_run)
        return frozenset({(one.key.gpu_uuid, str(one.pid)) for one in targets} | self.history.just_acted_on())

    def freed(self) -> dict[str, float]:
        """Return the Unix time of each remedy that lately gave the memory of a process back, by pid."""
        return freed_by(self.history.recent())

    def remedy_of(self, alert: Alert) -> str:
        """Return what was done about this alert, or why nothing is while it fires; "" if neither is known."""
        for run in self.remedies.running:
            if run.plan.request.alert == alert.fingerprint and run.step is not None:
                state = "under way" if alert.holds else "begun, and its result is not known yet"
                dry = " (dry run: nothing is done)" if run.plan.dry_run else ""
                return f"{run.step} of pid {run.plan.target.pid}: {state}{dry}"
        done = self.history.last_action_text(
            alert.fingerprint, alert.labels.get("pid", ""), alert.labels.get("uuid", "")
        )
        why_not = self.remedies.withheld.reason(alert.fingerprint) if alert.holds else ""
        return done or (f"{NOTHING_DONE}: {why_not}" if why_not else "")

    def _tell_off(self, why: str) -> None:
        """Tell why remedies are off, as a problem of the state, where there are any."""
        problem = f"remedies are off: {why}" if why and self.settings.ladders else ""
        if problem == self._off_problem:
            return
        if self._off_problem:
            self._store.remarks.remove(self._off_problem)
        if problem:
            self._store.remarks.append(problem)
            log.error("%s", problem)
        self._off_problem = problem

    def _choice(self, evaluation: AlertEvaluation, snapshot: Snapshot) -> VictimChoice | None:
        """Return whom an alert would choose on this snapshot, by the configuration in force."""
        labels = evaluation.result_labels
        if evaluation.alert.labels.get("pid"):
            return None
        ladder = self.remedies.ladder_of(evaluation.alert.labels)
        if ladder is None or ladder.victim is None:
            return VictimChoice()
        candidates = self._candidates(evaluation, snapshot)
        uuid, instance = labels.get("uuid", ""), labels.get("gpu_instance_id", "")
        whole = not labels.get("budget")  # a budget is exceeded by what is proven to be its own, whatever is beside it
        ranking = self.remedies.ranking(ladder.victim, candidates)
        unknown_bytes, unknown = unranked_memory(snapshot, uuid, instance, whole=whole)
        newcomers = self._newcomers(evaluation, candidates)
        return VictimChoice(tuple(each.target.id for each in ranking), unknown_bytes, unknown, newcomers)

    def _candidates(self, evaluation: AlertEvaluation, snapshot: Snapshot) -> list[Target]:
        return candidates_of(evaluation, snapshot, self.settings.budgets, disrupts=self._disrupts(evaluation.alert))

    def _disrupts(self, alert: Alert) -> bool:
        """Return whether the ladder that this alert gets has a step that a process may notice."""
        ladder = self.remedies.ladder_of(alert.labels)
        return ladder is not None and any(step.disrupts for step in ladder.steps)

    async def _look_up(self, pids: Iterable[int]) -> Mapping[int, FreshProcess | None]:
        """Read what these processes are now; nothing where /proc hangs: what is acted on is compared once more."""
        wanted = tuple(pids)
        with suppress(TimeoutError):
            return await read_with_timeout(lambda: self._lookup.look_up(wanted), LOOK_SECONDS)
        return {}

    def _run_ended(self, plan: Plan, run: LadderRun, outcome: RunOutcome, again: bool) -> None:
        self.history.add_run(run, outcome, again=again)
        if any(step.kind is StepKind.LIMIT for step in plan.steps):
            self.limit_lifts.forget()
        if again:
            return
        level = logging.INFO if plan.dry_run else logging.WARNING
        log.log(
            level, "remedy %s on pid %d (%s) on GPU %d: %s%s", run.id, plan.target.pid, plan.target.name,
            plan.target.gpu_index, outcome.result, f": {outcome.detail}" if outcome.detail else "",
        )  # fmt: skip
        self._do_later(self._look_at_the_breaker(), "breaker")

    def _do_later(self, work: Coroutine[Any, Any, None], name: str) -> None:
        later = asyncio.create_task(work, name=name)
        self._later.add(later)
        later.add_done_callback(self._later.discard)

    async def _look_at_the_breaker(self) -> None:
        async with self._one_look:  # what was read later is used later
            try:
                past, recorded = await asyncio.to_thread(
                    lambda: (self.audit.past(dry_run=False, since_reset=True), self.audit.last_stop())
                )
            except StoreFailure:
                return
            self.remedies.stopped = self._manual_stop.reconcile(recorded) is not None
        stopped = STOPPED_BY_HAND if self.remedies.stopped else breaker_reason(self.remedies.rules.limits, past)
        if stopped and not self._stopped:
            log.error("remedies are stopped: %s; after a look, `gpuagent remedies reset` lets them go on", stopped)
        self._stopped = stopped
        left_alone = [] if stopped else owners_left_alone(self.remedies.rules.limits, past)
        if new := [each for each in left_alone if each not in self.left_alone]:
            log.warning(
                "rules leave the processes of %s alone: the last actions on them gave no memory back; after a look,"
                " `gpuagent remedies reset` lets them go on", ", ".join(new),
            )  # fmt: skip
        self.left_alone = left_alone


class ManualStop:
    """Who has stopped remedies, and when: as it is on record, or while that fails as it was asked for."""

    def __init__(self, audit: Audit, clock: Clock) -> None:
        self._audit = audit
        self._clock = clock
        self._unrecorded: RecordedStop | None = None
        self.now: RecordedStop | None = None
        """The one that holds, as far as is known."""

    async def begin(self, uid: int) -> str:
        """Have it hold; return why it is not on record, "" if it is."""
        self.now = self._unrecorded = RecordedStop(f"uid {uid}", self._clock.wall())
        try:
            async with asyncio.timeout(_RECORD_SECONDS):
                by = await describe_user(uid)
                await in_daemon_thread(partial(self._audit.stop, by), "remedies stop")
        except TimeoutError:
            return f"the disk has not answered for {_RECORD_SECONDS:g} s"
        except NotRecorded as error:
            return str(error)
        return ""

    def end(self) -> None:
        """Forget one that is not on record: a person has reset remedies."""
        self._unrecorded = None

    def reconcile(self, recorded: RecordedStop | None) -> RecordedStop | None:
        """Return the one that holds, by what is on record."""
        if recorded is not None:
            self._unrecorded = None
        self.now = recorded or self._unrecorded
        return self.now
