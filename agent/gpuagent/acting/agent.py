"""Remedies in the service: fed with snapshots and with what the rules say, asked by people."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gpuagent.acting.budgets import uses
from gpuagent.acting.by_hand import add_facts, find, renewed
from gpuagent.acting.candidates import candidates_of, why_nobody
from gpuagent.acting.configured import ladders_of, rules_of
from gpuagent.acting.digests import CommandDigests
from gpuagent.acting.eyes import SnapshotEyes
from gpuagent.acting.lookup import FreshProcess, Lookup, NoLookup, in_time
from gpuagent.acting.manual_stop import ManualStop, describe_user
from gpuagent.acting.never_entries import NeverEntries
from gpuagent.acting.notes import Notes, waited_for
from gpuagent.acting.open_runs import OpenRuns
from gpuagent.acting.presence import Presence
from gpuagent.acting.shown import ShownProcess
from gpuagent.acting.targets import unranked, used_ratio
from gpuagent.acting.unreadable import UnreadableGpus
from gpuagent.acting.window import Window
from gpuagent.config.files import DEFAULT_PATH
from gpuagent.core.clock import Clock
from gpuagent.core.identity import ProcessId
from gpuagent.core.metrics.remedies import RemedyCount, RemedyFigures
from gpuagent.core.snapshot import Snapshot
from gpuagent.driver.backend import longest_gap
from gpuagent_alerts.alert import Alert, Status
from gpuagent_alerts.remedies.advice import advice_on
from gpuagent_alerts.remedies.audit import Audit, runs
from gpuagent_alerts.remedies.choice import Firing
from gpuagent_alerts.remedies.judged import Judged
from gpuagent_alerts.remedies.ladder import Run, Tools
from gpuagent_alerts.remedies.limits import STOPPED_BY_HAND, broken
from gpuagent_alerts.remedies.manager import Remedies
from gpuagent_alerts.remedies.outcome import Outcome, Result
from gpuagent_alerts.remedies.plan import Plan
from gpuagent_alerts.remedies.steps import Step
from gpuagent_alerts.remedies.target import Target
from gpuagent_alerts.remedies.victim import Choice
from gpuagent_alerts.remedies.world import Hands, Order
from gpuagent_alerts.store.cached_query import CachedQuery
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.problem import StoreFailure
from gpuagent_exporters.status import processes_document

if TYPE_CHECKING:
    from gpuagent.config.models import Config

log = logging.getLogger(__name__)


_LOOK_SECONDS = 15.0
_LOOK_REAL_SECONDS = 5.0
"""Under a scenario that runs faster than life, a busy machine must still get round to a reading in this time."""


@dataclass(frozen=True, slots=True)
class Around:
    """What remedies stand on."""

    store: Store
    clock: Clock
    boot_id: str
    hands: Callable[[Notes], Hands]
    off: Callable[[Config], str]
    """Returns why nothing may be done by a configuration, in words for people; "" where nothing forbids it."""
    pid_namespace: int = 0
    """Inode of the agent's own pid namespace: pids mean the same only to those who are in it. 0 is unknown."""
    config_file: str = str(DEFAULT_PATH)
    """Where a person finds the keys that a refusal names."""
    lookup: Lookup = field(default_factory=NoLookup)
    """Reads a process anew for a request by hand."""
    digests: CommandDigests = field(default_factory=CommandDigests)
    """Digests what a person is shown of a process."""
    never: NeverEntries = field(default_factory=NeverEntries)
    """The operator's entries of the never-list: those in force, known to the hands as well."""


class Acting:
    """For one event loop."""

    def __init__(self, config: Config, around: Around) -> None:
        """Raise ValueError for a ladder whose matchers are no regular expressions."""
        self.config = config
        self.notes = Notes(around.clock)
        self.eyes = SnapshotEyes(around.clock, self._choice, lambda: self.config.remedies.never)
        self.audit = Audit(around.store, around.clock, around.boot_id)
        self._record = CachedQuery(around.store, lambda: runs(self.audit.events()))
        self._clock = around.clock
        self._off_by = around.off
        self._off = self._off_problem = ""
        self._store = around.store
        self._boot_id = around.boot_id
        self._pid_namespace = around.pid_namespace
        self._config_file = around.config_file
        self._snapshot: Snapshot | None = None
        self._lookup = around.lookup
        self._digests = around.digests
        self._never_entries = around.never
        self._unreadable = UnreadableGpus(around.clock)
        self._stopped = ""
        self._manual_stop = ManualStop(self.audit, around.clock)
        self._one_look = asyncio.Lock()
        self._later: set[asyncio.Task[None]] = set()
        self._window = Window()
        self._presence = Presence()
        tools = Tools(
            self.eyes, around.hands(self.notes), self.audit, asyncio.Lock(), around.clock.now,
            self._look_seconds(config), around.clock.wall,
        )  # fmt: skip
        self.remedies = Remedies(
            ladders_of(config.remedies), rules_of(config.remedies), tools,
            proof_seconds=config.remedies.proof, told=self._told,
        )  # fmt: skip
        self._open_runs = OpenRuns(self.audit, around.store, self.remedies)
        self.prepare(config)()

    async def open(self) -> None:
        """Close the records that a dead agent left open; nothing of them is repeated."""
        try:
            await self._open_runs.close()
            recent = await asyncio.to_thread(lambda: runs(self.audit.events()))
        except StoreFailure as error:  # nothing will be done while nothing can be recorded
            log.error("the record of remedies cannot be read: %s", error)  # noqa: TRY400  no defect of ours
            return
        self.notes.take_over(recent)
        await self._look_at_the_breaker()

    async def close(self) -> None:
        """Let go of everything."""
        await self.remedies.close()
        for task in self._later:
            task.cancel()
        await asyncio.gather(*self._later, return_exceptions=True)

    def prepare(self, config: Config) -> Callable[[], None]:
        """Look whether a configuration can be had; what is returned puts it in force. Raises ValueError.

        What is being climbed ends before its next step where it would no longer be begun.
        """
        off, ladders = self._off_by(config), ladders_of(config.remedies)

        def use() -> None:
            self.config = config
            self._never_entries.use(config.remedies.never)
            self._off = off
            self._tell_off(off, config)
            self.remedies.tools = replace(self.remedies.tools, look_seconds=self._look_seconds(config))
            self.remedies.use(() if off else ladders, rules_of(config.remedies), config.remedies.proof)

        return use

    def turn_off(self, why: str) -> None:
        """Do nothing any more, by rules or by hand, until another configuration is put in force."""
        self._off = why
        self._tell_off(why, self.config)
        self.remedies.use((), self.remedies.rules, self.remedies.proof_seconds)

    def _look_seconds(self, config: Config) -> float:
        """Three readings, however seldom the GPU is read."""
        return max(_LOOK_SECONDS, 3 * config.poll_interval, _LOOK_REAL_SECONDS * self._clock.speed)

    async def see(self, snapshot: Snapshot) -> None:
        """Take in the snapshot of a new tick."""
        self._snapshot = snapshot
        self._unreadable.see(snapshot)
        self._never_entries.follow(each.info.id for each in snapshot.processes if each.info is not None)
        if self.remedies.ladders:
            self._presence.see(snapshot, longest_gap(self.config.poll_interval, self._clock.speed))
        self.remedies.forget_ended()
        if self._open_runs.has_moved:
            self._do_later(self._open_runs.close_again(), "open runs")
        await self.eyes.see(snapshot)

    async def judge(self, judged: Sequence[Judged]) -> None:
        """Take in all alerts that fire after an evaluation of the rules."""
        await self.eyes.judge(judged)
        snapshot = self._snapshot
        if snapshot is not None and self.remedies.ladders:
            self._window.add(judged)
            self.remedies.consider([self._firing(each, snapshot) for each in judged])

    def _firing(self, judged: Judged, snapshot: Snapshot) -> Firing:
        if judged.objection or self.remedies.ladder_of(judged.alert.labels) is None:
            return Firing(judged.alert, judged.since_seconds, (), objection=judged.objection)
        candidates = self._candidates(judged, snapshot)
        return Firing(
            judged.alert, judged.since_seconds, candidates, judged.expression,
            self._window.values(judged.alert.fingerprint), judged.grounds.about_growth,
            nobody="" if candidates else why_nobody(judged, snapshot, disrupts=self._disrupts(judged.alert)),
            newcomers=self._newcomers(judged, candidates),
            gpu_used_ratio=used_ratio(snapshot, judged.result_labels.get("uuid", "")),
            idle_for_seconds=judged.for_seconds if judged.grounds.about_idleness else None,
        )  # fmt: skip

    def _newcomers(self, judged: Judged, candidates: Sequence[Target]) -> Mapping[ProcessId, str]:
        """Return whom a ladder must not choose yet: the time for which the rule holds has to be the process's own."""
        return self._presence.newcomers(candidates, judged.for_seconds, self._clock.now())

    async def kill(
        self,
        pid: int,
        steps: Sequence[Step],
        shown: ShownProcess,
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
        self._lookup.follow_soon([pid])
        fresh = await self._look_up([pid])
        target = find(self._snapshot, pid, gpu, shown, fresh, self._digests, self._unreadable.now())
        order = Order(asked_by=describe_user(uid), forced=force, shown=shown.ends_with_it)
        plan = Plan(order, target, tuple(steps), dry_run, proof_seconds=self.remedies.proof_seconds)
        if self._off:
            why = f"remedies are off: {self._off}"
            outcome = Outcome(Result.REFUSED, why, reasons=(why,))
        else:
            outcome = await self.remedies.by_hand(plan)
        advice: list[str] = []
        if outcome.result in {Result.REFUSED, Result.FAILED}:
            advice = advice_on(outcome.reasons or (outcome.detail,), target, self._config_file, forced=force)
        return {
            **outcome.answer,
            "pid": pid, "gpu": target.gpu_index, "name": target.name, "result": outcome.result,
            "detail": outcome.detail, "released_bytes": outcome.released_bytes, "seconds": outcome.seconds,
            "dry_run": dry_run, "advice": advice,
        }  # fmt: skip

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
        """Close the breaker, for a person has looked. Raise NotRecorded."""
        await asyncio.to_thread(lambda: self.audit.reset(describe_user(uid)))
        self._manual_stop.end()
        await self._look_at_the_breaker()

    async def document(self) -> dict[str, Any]:
        """Return what was done, for `gpuagent remedies`."""
        stop = self._manual_stop.now
        return {
            "schema": 1,
            "simulated": bool(self._snapshot.simulated) if self._snapshot else False,
            "stopped": self._stopped,
            "stopped_by": stop.by if stop is not None else "",
            "stopped_seconds": stop.wall_seconds if stop is not None else None,
            "off": self._off,
            "dry_run": self.config.remedies.dry_run,
            "look_seconds": self.remedies.tools.look_seconds,
            "proof_seconds": self.remedies.proof_seconds,
            "withheld": self.remedies.withheld.documents(self._clock.wall()),
            "remedies": await asyncio.to_thread(self._record.get),
        }

    async def identified(self) -> dict[str, Any]:
        """Return the GPU processes with what tells each from every other one: for who commands, and nobody else.

        Each is read anew: what a person is shown is what is so now, and what their request is compared with.
        """
        snapshot = self._snapshot
        pids = {each.pid for each in snapshot.processes} if snapshot is not None else set()
        self._lookup.follow_soon(pids)
        fresh = await self._look_up(pids)
        if snapshot is not None:
            snapshot = renewed(snapshot, fresh)
        document: dict[str, Any] = processes_document(
            snapshot,
            now_seconds=self._clock.now(),
            poll_interval_seconds=self.config.poll_interval,
            preallocates=self.config.preallocates,
            identified=True,
        )
        document["agent"] = {
            **document["agent"], "pid_namespace": self._pid_namespace or None, "dry_run": self.config.remedies.dry_run,
        }  # fmt: skip
        add_facts(document, snapshot, fresh, self._unreadable.now(), self._digests)
        return document

    def figures(self) -> RemedyFigures:
        """For the series."""
        snapshot = self._snapshot
        return RemedyFigures(
            ladders=len(self.remedies.ladders),
            stopped=bool(self._stopped or self._off_problem),
            running=len(self.remedies.running),
            counts=tuple(RemedyCount(*key, number) for key, number in sorted(self.remedies.counts.items())),
            released_bytes=self.remedies.released_bytes,
            ended=self.notes.recent(),
            outstanding=tuple(waited_for(one) for one in self.remedies.outstanding),
            announced=self.notes.announced(),
            budgets=tuple(uses(self.config.budgets, snapshot)) if snapshot is not None else (),
        )

    def remedy_of(self, alert: Alert) -> str:
        """Return what was done about this alert, or why nothing is while it fires; "" if neither is known."""
        for run in self.remedies.running:
            if run.plan.order.alert == alert.fingerprint and run.step is not None:
                return f"{run.step}: under way{' (dry run: nothing is done)' if run.plan.dry_run else ''}"
        done = self.notes.words_on(alert.fingerprint, alert.labels.get("pid", ""), alert.labels.get("uuid", ""))
        why_not = self.remedies.withheld.reason(alert.fingerprint) if alert.status is Status.FIRING else ""
        return done or (f"nothing is done: {why_not}" if why_not else "")

    def _tell_off(self, why: str, config: Config) -> None:
        """Tell why remedies are off, as a problem of the state, where there are any."""
        problem = f"remedies are off: {why}" if why and config.remedies.ladders else ""
        if problem == self._off_problem:
            return
        if self._off_problem:
            self._store.remarks.remove(self._off_problem)
        if problem:
            self._store.remarks.append(problem)
            log.error("%s", problem)
        self._off_problem = problem

    def _choice(self, judged: Judged, snapshot: Snapshot) -> Choice | None:
        """Return whom an alert would choose on this snapshot, by the configuration in force."""
        labels = judged.result_labels
        if judged.alert.labels.get("pid"):
            return None
        ladder = self.remedies.ladder_of(judged.alert.labels)
        if ladder is None or ladder.victim is None:
            return Choice()
        candidates = self._candidates(judged, snapshot)
        uuid, instance = labels.get("uuid", ""), labels.get("gpu_instance_id", "")
        whole = not labels.get("budget")  # a budget is exceeded by what is proven to be its own, whatever is beside it
        ranking = self.remedies.ranking(ladder.victim, candidates)
        unknown_bytes, unknown = unranked(snapshot, uuid, instance, whole=whole)
        newcomers = self._newcomers(judged, candidates)
        return Choice(tuple(each.target.id for each in ranking), unknown_bytes, unknown, newcomers)

    def _candidates(self, judged: Judged, snapshot: Snapshot) -> list[Target]:
        return candidates_of(judged, snapshot, self.config.budgets, disrupts=self._disrupts(judged.alert))

    def _disrupts(self, alert: Alert) -> bool:
        """Return whether the ladder that this alert gets has a step that a process may notice."""
        ladder = self.remedies.ladder_of(alert.labels)
        return ladder is not None and any(step.disrupts for step in ladder.steps)

    async def _look_up(self, pids: Iterable[int]) -> Mapping[int, FreshProcess | None]:
        """Read what these processes are now; nothing where /proc hangs: what is acted on is compared once more."""
        wanted = tuple(pids)
        with suppress(TimeoutError):
            return await in_time(lambda: self._lookup.look_up(wanted))
        return {}

    def _told(self, plan: Plan, run: Run, outcome: Outcome, again: bool) -> None:
        self.notes.ended(run, outcome, again=again)
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
            self.remedies.stopped = self._manual_stop.use(recorded) is not None
        stopped = STOPPED_BY_HAND if self.remedies.stopped else broken(self.remedies.rules.limits, past)
        if stopped and not self._stopped:
            log.error("remedies are stopped: %s; after a look, `gpuagent remedies reset` lets them go on", stopped)
        self._stopped = stopped
