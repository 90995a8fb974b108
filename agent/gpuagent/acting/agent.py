"""Remedies in the service: fed with snapshots and with what the rules say, asked by people."""

from __future__ import annotations

import asyncio
import logging
import pwd
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuagent.acting.budgets import belongs, name_of, uses
from gpuagent.acting.configured import ladders_of, rules_of
from gpuagent.acting.eyes import SnapshotEyes
from gpuagent.acting.notes import Notes
from gpuagent.acting.targets import target_of, targets_on
from gpuagent.catalogue.remedies import RemedyCount, RemedyFigures
from gpuagent.clock import Clock
from gpuagent.config.models import Config
from gpuagent.reading import Snapshot
from gpuagent_alerts.alert import Alert
from gpuagent_alerts.remedies.audit import Audit, runs
from gpuagent_alerts.remedies.judged import Judged
from gpuagent_alerts.remedies.ladder import Plan, Run, Tools
from gpuagent_alerts.remedies.limits import broken
from gpuagent_alerts.remedies.manager import Firing, Remedies
from gpuagent_alerts.remedies.outcome import Outcome
from gpuagent_alerts.remedies.steps import Step
from gpuagent_alerts.remedies.target import Target
from gpuagent_alerts.remedies.world import Hands, Order
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.problem import StoreFailure

log = logging.getLogger(__name__)


class NoSuchProcess(Exception):
    """No process with this pid is on a GPU, as far as the agent can see."""


@dataclass(frozen=True, slots=True)
class Around:
    """What remedies stand on."""

    store: Store
    clock: Clock
    boot_id: str
    hands: Callable[[Notes], Hands]
    durable: bool
    """There is a state file: without one nothing can be recorded, so nothing is done."""


class Acting:
    """For one event loop."""

    def __init__(self, config: Config, around: Around) -> None:
        """Raises ValueError for a ladder whose matchers are no regular expressions."""
        self.config = config
        self.notes = Notes(around.clock)
        self.eyes = SnapshotEyes(around.clock)
        self.audit = Audit(around.store, around.clock, around.boot_id)
        self._clock = around.clock
        self._durable = around.durable
        self._snapshot: Snapshot | None = None
        self._stopped = ""
        self._later: asyncio.Task[None] | None = None
        tools = Tools(
            self.eyes, around.hands(self.notes), self.audit, asyncio.Lock(), around.clock.now, around.clock.wall
        )
        self.remedies = Remedies(
            self._ladders(config), rules_of(config.remedies), tools,
            proof_seconds=config.remedies.proof, told=self._told,
        )  # fmt: skip

    async def open(self) -> None:
        """Close the records that a dead agent left open; nothing of them is repeated."""
        for run in await asyncio.to_thread(self.audit.close_open):
            log.warning("remedy %s was interrupted by the end of the agent; it is not repeated", run)
        recent = await asyncio.to_thread(lambda: runs(self.audit.events()))
        self.notes.take_over(recent)
        await self._look_at_the_breaker()

    async def close(self) -> None:
        """Let go of everything."""
        await self.remedies.close()

    def reload(self, config: Config) -> None:
        """Other ladders and limits; what is being climbed goes on as it was begun. Raises ValueError."""
        ladders = self._ladders(config)
        self.config = config
        self.remedies.ladders = ladders
        self.remedies.rules = rules_of(config.remedies)
        self.remedies.proof_seconds = config.remedies.proof

    async def see(self, snapshot: Snapshot) -> None:
        """A tick has come."""
        self._snapshot = snapshot
        self.remedies.unblock(
            lambda identity: any(each.info and each.info.id == identity for each in snapshot.processes)
        )
        await self.eyes.see(snapshot)

    async def judge(self, judged: Sequence[Judged]) -> None:
        """The rules were evaluated, and this is all that fires."""
        await self.eyes.judge(judged)
        snapshot = self._snapshot
        if snapshot is not None and self.remedies.ladders:
            self.remedies.consider(
                Firing(each.alert, self._candidates(each.alert, snapshot), each.expression)
                for each in judged
                if each.holds
            )

    async def kill(
        self, pid: int, steps: Sequence[Step], *, uid: int, force: bool, dry_run: bool, gpu: str = ""
    ) -> dict[str, Any]:
        """By hand: the same ladder, the same refusals. Raises NoSuchProcess."""
        target = self._find(pid, gpu)
        order = Order(asked_by=f"{_user(uid)} (uid {uid})", forced=force)
        plan = Plan(order, target, tuple(steps), dry_run, proof_seconds=self.remedies.proof_seconds)
        outcome = await self.remedies.by_hand(plan)
        return {
            "pid": pid, "gpu": target.gpu_index, "name": target.name, "result": outcome.result,
            "detail": outcome.detail, "released_bytes": outcome.released_bytes, "seconds": outcome.seconds,
            "dry_run": dry_run,
        }  # fmt: skip

    async def reset(self, uid: int) -> None:
        """A person has looked. Raises NotRecorded."""
        await asyncio.to_thread(self.audit.reset, f"{_user(uid)} (uid {uid})")
        await self._look_at_the_breaker()

    async def document(self) -> dict[str, Any]:
        """What was done, for `gpuagent remedies`."""
        events = await asyncio.to_thread(self.audit.events)
        return {
            "schema": 1,
            "stopped": self._stopped,
            "dry_run": self.config.remedies.dry_run,
            "remedies": runs(events),
        }

    def figures(self) -> RemedyFigures:
        """For the series."""
        snapshot = self._snapshot
        return RemedyFigures(
            ladders=len(self.remedies.ladders),
            stopped=bool(self._stopped),
            running=len(self.remedies.running),
            counts=tuple(RemedyCount(*key, number) for key, number in sorted(self.remedies.counts.items())),
            released_bytes=self.remedies.released_bytes,
            ended=self.notes.recent(),
            announced=self.notes.announced(),
            budgets=tuple(uses(self.config.budgets, snapshot)) if snapshot is not None else (),
        )

    def remedy_of(self, labels: Mapping[str, str]) -> str:
        """What was done about this alert, for its text; "" if nothing was."""
        pid, uuid = labels.get("pid", ""), labels.get("uuid", "")
        found = [note for note in self.notes.recent() if pid and (note.about.pid, note.about.uuid) == (pid, uuid)]
        if not found:
            return ""
        last = found[-1]
        return f"{last.step or 'remedy'}: {last.result.replace('_', ' ')}{' (dry run)' if last.dry_run else ''}"

    def _ladders(self, config: Config) -> tuple[Any, ...]:
        ladders = ladders_of(config.remedies)
        if ladders and not self._durable:
            log.error("remedies are off: there is no state directory to record them in")
            return ()
        return ladders

    def _candidates(self, alert: Alert, snapshot: Snapshot) -> list[Target]:
        """Processes of the alert's GPU; of a budget only those that count towards it."""
        found = list(targets_on(snapshot, alert.labels.get("uuid", "")))
        name = alert.labels.get("budget", "")
        if not name:
            return found
        budgets = [budget for budget in self.config.budgets if name_of(budget) == name]
        members = {
            process.key
            for process in snapshot.processes
            if any(belongs(budget, process, snapshot) for budget in budgets)
        }
        return [target for target in found if target.key in members]

    def _find(self, pid: int, gpu: str) -> Target:
        snapshot = self._snapshot
        processes = [each for each in snapshot.processes if each.pid == pid] if snapshot is not None else []
        if gpu:
            processes = [each for each in processes if gpu in {str(each.gpu_index), each.gpu_uuid}]
        processes.sort(key=lambda each: -(each.used_bytes or 0))
        for process in processes:
            target = target_of(process, None)
            if target is not None:
                return target
        if processes:
            raise NoSuchProcess(f"pid {pid} is on a GPU, but too little is known of it to act on it")
        raise NoSuchProcess(f"no process with pid {pid} is on a GPU")

    def _told(self, plan: Plan, run: Run, outcome: Outcome) -> None:
        level = logging.INFO if plan.dry_run else logging.WARNING
        log.log(
            level, "remedy %s on pid %d (%s) on GPU %d: %s%s", run.id, plan.target.pid, plan.target.name,
            plan.target.gpu_index, outcome.result, f": {outcome.detail}" if outcome.detail else "",
        )  # fmt: skip
        self.notes.ended(plan, run, outcome)
        self._later = asyncio.create_task(self._look_at_the_breaker(), name="breaker")

    async def _look_at_the_breaker(self) -> None:
        try:
            past = await asyncio.to_thread(self.audit.past, dry_run=False, since_reset=True)
        except StoreFailure:
            return
        stopped = broken(self.remedies.rules.limits, past)
        if stopped and not self._stopped:
            log.error("remedies are stopped: %s; after a look, `gpuagent remedies reset` lets them go on", stopped)
        self._stopped = stopped


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return "?"
