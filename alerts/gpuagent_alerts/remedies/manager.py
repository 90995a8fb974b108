"""Which firing alert gets which ladder, on whom, and when: one run at a time on each GPU."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuagent.identity import ProcessId
from gpuagent_alerts.alert import Alert
from gpuagent_alerts.remedies.ladder import Plan, Rules, Run, Tools
from gpuagent_alerts.remedies.outcome import Outcome, Result
from gpuagent_alerts.remedies.steps import Step
from gpuagent_alerts.remedies.target import Target
from gpuagent_alerts.remedies.victim import Candidate, VictimPolicy, rank
from gpuagent_alerts.remedies.world import Order

log = logging.getLogger(__name__)

_RETRY_SECONDS = 60.0
_LONGEST_RETRY_SECONDS = 900.0
_KEPT = 256


@dataclass(frozen=True, slots=True)
class LadderRule:
    """One ladder of the configuration."""

    matches: Callable[[Mapping[str, str]], bool]
    steps: tuple[Step, ...]
    dry_run: bool
    victim: VictimPolicy | None = None
    """Whom to choose where the alert names none; None: nobody."""
    scope: str = "process"


@dataclass(frozen=True, slots=True)
class Firing:
    """An alert, and whom it could be about: the processes of its GPU on the newest snapshot."""

    alert: Alert
    processes: Sequence[Target]
    expression: str = ""
    values: tuple[float, ...] = ()


@dataclass(slots=True)
class _Attempt:
    """What became of the last run for one alert and one process."""

    result: Result
    detail: str
    at: float
    wait: float


Told = Callable[[Plan, Run, Outcome], None]


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
        self._tools = tools
        self._told = told
        self._running: dict[str, tuple[Run, asyncio.Task[Outcome]]] = {}
        self._attempts: dict[tuple[str, ProcessId], _Attempt] = {}
        self._blocked: dict[str, ProcessId] = {}
        """GPUs on which a process could not be killed, and which one."""

    @property
    def running(self) -> tuple[Run, ...]:
        """Those that climb now."""
        return tuple(run for run, _ in self._running.values())

    def consider(self, firing: Iterable[Firing]) -> None:
        """Begin what is due. To be called after each evaluation, with all that fires."""
        firing = list(firing)
        self._forget({each.alert.fingerprint for each in firing})
        for each in firing:
            ladder = next((one for one in self.ladders if one.matches(each.alert.labels)), None)
            if ladder is None:
                continue
            target = self._choose(ladder, each)
            if target is not None and self._may_begin(target):
                order = _order(each)
                self._begin(Plan(order, target, ladder.steps, ladder.dry_run, ladder.scope, self.proof_seconds))

    async def by_hand(self, plan: Plan) -> Outcome:
        """What a person asked for goes the same way, with the same refusals."""
        if not self._may_begin(plan.target):
            return Outcome(Result.REFUSED, f"another remedy is under way on GPU {plan.target.gpu_index}")
        return await asyncio.shield(self._begin(plan))

    async def idle(self) -> None:
        """Wait until nothing is being climbed."""
        while self._running:
            await asyncio.gather(*(task for _, task in self._running.values()), return_exceptions=True)

    async def close(self) -> None:
        """Stop climbing. The next agent says of open runs that they were interrupted."""
        tasks = [task for _, task in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def ranking(self, policy: VictimPolicy, targets: Iterable[Target]) -> list[Candidate]:
        """For people: who would be chosen, and why."""
        return rank(policy, targets, self._tools.wall())

    def _choose(self, ladder: LadderRule, firing: Firing) -> Target | None:
        """Whom the alert names, or the best of the ranking that has not been refused lately."""
        alert = firing.alert
        pid = alert.labels.get("pid", "")
        if pid:
            for target in firing.processes:
                if str(target.pid) == pid and target.started_seconds <= alert.starts_at:
                    return target if self._is_due(alert, target) else None
            return None  # it has gone, or the number belongs to one that came after the alert
        if ladder.victim is None:
            return None
        for candidate in rank(ladder.victim, firing.processes, self._tools.wall()):
            if self._is_due(alert, candidate.target):
                return candidate.target
            last = self._attempts[alert.fingerprint, candidate.target.id]
            if last.result is not Result.REFUSED:
                return None  # something was done to it: the next one only if that did not help, by the next alert
        return None

    def _is_due(self, alert: Alert, target: Target) -> bool:
        last = self._attempts.get((alert.fingerprint, target.id))
        return last is None or self._tools.now() - last.at >= last.wait

    def _may_begin(self, target: Target) -> bool:
        gpu = target.key.gpu_uuid
        return gpu not in self._running and gpu not in self._blocked

    def _begin(self, plan: Plan) -> asyncio.Task[Outcome]:
        run = Run(plan, self.rules, self._tools)
        task = asyncio.create_task(self._climb(plan, run), name=f"remedy on GPU {plan.target.gpu_index}")
        self._running[plan.target.key.gpu_uuid] = (run, task)
        return task

    async def _climb(self, plan: Plan, run: Run) -> Outcome:
        try:
            outcome = await run.climb()
        except Exception as error:
            log.exception("a remedy failed")
            outcome = Outcome(Result.FAILED, f"a defect of the agent: {error}")
        finally:
            self._running.pop(plan.target.key.gpu_uuid, None)
        self._note(plan, run, outcome)
        return outcome

    def _note(self, plan: Plan, run: Run, outcome: Outcome) -> None:
        key = (plan.order.alert, plan.target.id)
        last = self._attempts.get(key)
        again = last is not None and (last.result, last.detail) == (outcome.result, outcome.detail)
        wait = _wait_after(outcome, last.wait if again and last else 0.0)
        self._attempts[key] = _Attempt(outcome.result, outcome.detail, self._tools.now(), wait)
        self.counts[outcome.result, plan.dry_run] += 1
        if outcome.result is Result.RELEASED:
            self.released_bytes += outcome.released_bytes or 0
        if outcome.result is Result.UNKILLABLE:
            self._blocked[plan.target.key.gpu_uuid] = plan.target.id
        if not again:  # the same refusal is told once
            self._told(plan, run, outcome)

    def _forget(self, firing: set[str]) -> None:
        """Drop what belongs to alerts that have ended, and the block of those that can be killed at last."""
        for key in [key for key in self._attempts if key[0] not in firing]:
            del self._attempts[key]
        while len(self._attempts) > _KEPT:
            del self._attempts[next(iter(self._attempts))]

    def unblock(self, alive: Callable[[ProcessId], bool]) -> None:
        """Let GPUs go whose unkillable process has ended after all."""
        for gpu in [gpu for gpu, identity in self._blocked.items() if not alive(identity)]:
            del self._blocked[gpu]


def _wait_after(outcome: Outcome, last: float) -> float:
    """Until the same alert may act on the same process again."""
    if outcome.result is Result.REFUSED:
        return min(max(2 * last, _RETRY_SECONDS), _LONGEST_RETRY_SECONDS)
    return _LONGEST_RETRY_SECONDS if outcome.acted else _RETRY_SECONDS


def _order(firing: Firing) -> Order:
    alert = firing.alert
    return Order(
        alert=alert.fingerprint,
        alertname=alert.name,
        expression=firing.expression,
        value=alert.value,
        labels=dict(alert.labels),
        values=firing.values,
    )
