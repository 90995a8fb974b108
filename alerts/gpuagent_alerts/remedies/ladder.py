"""One run of a ladder on one target: look, decide, write down, act, and see whether it helped.

Before every step everything is read again, through the pidfds that were opened first. It ends as soon as the reason to
act has gone, or at the first doubt.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any

from gpuagent_alerts.remedies.audit import END, INTENT, RESULT, Audit, NotRecorded
from gpuagent_alerts.remedies.limits import Limits, broken
from gpuagent_alerts.remedies.limits import refusals as limit_refusals
from gpuagent_alerts.remedies.outcome import Outcome, Result
from gpuagent_alerts.remedies.policy import Policy
from gpuagent_alerts.remedies.proof import prove
from gpuagent_alerts.remedies.steps import Kind, Step
from gpuagent_alerts.remedies.target import Facts, Identity, Target, differences, mismatches
from gpuagent_alerts.remedies.world import Condition, Done, Eyes, Gone, Hands, Held, NotPermitted, Order, Sight


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do, to whom, on whose word."""

    order: Order
    target: Target
    steps: tuple[Step, ...]
    dry_run: bool
    scope: str = "process"
    proof_seconds: float = 120.0


@dataclass(frozen=True, slots=True)
class Rules:
    """What stands between a plan and a process."""

    policy: Policy
    limits: Limits


@dataclass(frozen=True, slots=True)
class Tools:
    """The outside world, and the record of it."""

    eyes: Eyes
    hands: Hands
    audit: Audit
    gate: AbstractAsyncContextManager[object]
    """Held from the look at the limits until the intent is written: two runs cannot spend the same budget."""
    now: Callable[[], float]
    """CLOCK_BOOTTIME."""
    wall: Callable[[], float]
    look_seconds: float = 15.0
    """How long to wait for a fresh reading before giving up: nothing is done on an old one."""


@dataclass(slots=True)
class _Member:
    """A process held for the length of the run."""

    target: Target
    held: Held
    identity: Identity


class _Stop(Exception):
    """No error: the run has come to its end. `data` goes into the record of it."""

    def __init__(self, outcome: Outcome, **data: object) -> None:
        super().__init__(outcome.detail)
        self.outcome = outcome
        self.data = data


class Run:
    """Climbs one ladder, once."""

    def __init__(self, plan: Plan, rules: Rules, tools: Tools) -> None:
        self.plan = plan
        self.id = ""
        self.step: Step | None = None
        """The one that is being taken."""
        self._rules = rules
        self._tools = tools
        self._held: list[Held] = []
        self._members: list[_Member] = []
        self._acted = False
        self._last_look = 0.0
        self._before: Sight | None = None

    async def climb(self) -> Outcome:
        """Take the steps in order. Never raises but for cancellation; the end is in the audit log."""
        data: dict[str, object] = {}
        try:
            outcome = await self._climb()
        except _Stop as stop:
            outcome, data = stop.outcome, stop.data
        except NotRecorded as error:
            outcome = Outcome(Result.REFUSED, f"not recorded, so not done: {error}", acted=self._acted)
        finally:
            for held in self._held:
                held.close()
        await self._end(outcome, data)
        return outcome

    async def _climb(self) -> Outcome:
        sight = await self._look()
        await self._hold(sight)
        self.id = await asyncio.to_thread(self._tools.audit.begin, self._description())
        for step in self.plan.steps:
            self.step = step
            outcome = await self._take(step, sight)
            if outcome is not None:
                return outcome
            sight = await self._look()
        if self.plan.dry_run:
            return Outcome(Result.DRY_RUN, "nothing was done: dry run", acted=self._acted)
        return Outcome(Result.NO_EFFECT, "every step was taken", acted=self._acted)

    async def _look(self) -> Sight:
        """See the target on a reading that is newer than all that was done."""
        plan = self.plan
        look_seconds = self._tools.look_seconds
        sight = await self._tools.eyes.next_sight(plan.target, plan.order.alert, self._last_look, look_seconds)
        if sight is None:
            raise self._refused("there has been no fresh reading of the GPU")
        self._last_look = sight.clock_seconds
        self._judge(sight)
        return sight

    def _judge(self, sight: Sight) -> None:
        """End the run where the reason to act does not hold."""
        if sight.condition is Condition.OVER:
            raise _Stop(Outcome(Result.RESOLVED, sight.reason or "the alert has ended", acted=self._acted))
        if sight.condition is Condition.UNKNOWN:
            raise self._refused(sight.reason or "the data behind the alert is in doubt")
        if sight.target is None:
            if self._members and all(member.held.has_ended() for member in self._members):
                raise _Stop(Outcome(Result.EXITED, "it ended by itself", acted=self._acted))
            raise self._refused("it is no longer on the GPU")

    async def _hold(self, sight: Sight) -> None:
        """Open the pidfds first, then read: what is read is of the ones that are held."""
        targets = [self.plan.target]
        if self.plan.scope != "process":
            targets += [each for each in sight.relatives if each.id != self.plan.target.id]
        for target in targets:
            try:
                held = self._tools.hands.hold(target)
            except Gone:
                raise _Stop(Outcome(Result.EXITED, f"pid {target.pid} has ended by itself")) from None
            except NotPermitted as error:
                raise self._refused(f"pid {target.pid} cannot be held: {error}") from None
            self._held.append(held)
            facts = await self._facts(held, target.pid)
            if wrong := list(mismatches(target, facts.identity)):
                raise self._refused(*wrong)
            self._members.append(_Member(target, held, facts.identity))

    async def _facts(self, held: Held, pid: int) -> Facts:
        try:
            return await held.facts()
        except Gone:
            raise _Stop(Outcome(Result.EXITED, f"pid {pid} has ended by itself", acted=self._acted)) from None
        except NotPermitted as error:
            raise self._refused(f"pid {pid} cannot be looked at: {error}") from None

    async def _take(self, step: Step, sight: Sight) -> Outcome | None:
        """One step; its outcome, or None where the next one is due."""
        facts = [await self._check(step, sight, member) for member in self._members]
        if step.kind is Kind.RESTART_UNIT and (refusal := await self._tools.hands.unit_refusal(self.plan.target.unit)):
            raise self._refused(refusal)
        async with self._tools.gate:
            await asyncio.to_thread(self._check_limits, step)
            useless = step.sends is not None and all(each.ignores(step.sends) for each in facts)
            await asyncio.to_thread(
                self._tools.audit.write, self.id, INTENT,
                {"step": str(step), "disrupts": step.disrupts, "dry_run": self.plan.dry_run,
                 "pids": [member.target.pid for member in self._members], "used_bytes": self.plan.target.used_bytes,
                 "note": "the process ignores this signal: there is no use in waiting" if useless else ""},
            )  # fmt: skip
        self._acted = self._acted or step.disrupts
        self._before = sight
        done = Done(ok=True, detail="dry run") if self.plan.dry_run else await self._act(step)
        await asyncio.to_thread(
            self._tools.audit.write, self.id, RESULT,
            {"step": str(step), "ok": done.ok, "errno": done.errno, "detail": done.detail},
        )  # fmt: skip
        if not done.ok and not step.disrupts:
            return None
        if not done.ok:
            raise _Stop(Outcome(Result.FAILED, f"{step}: {done.detail}", acted=True), not_permitted=done.errno == 1)
        wait = 0.0 if useless and step.kind is not Kind.KILL else step.wait_seconds
        return await self._watch(step, wait)

    async def _check(self, step: Step, sight: Sight, member: _Member) -> Facts:
        """Refuse at any doubt about this member."""
        facts = await self._facts(member.held, member.target.pid)
        if changed := list(differences(member.identity, facts.identity)):
            raise self._refused(*changed)
        # A relative is judged by what it is, on the reading of the one that was chosen.
        seen = sight if member.target.id == self.plan.target.id else replace(sight, target=member.target)
        against = list(
            self._rules.policy.refusals(
                step, self.plan.order, seen, facts, self._tools.wall(), self._tools.hands.protected()
            )
        )
        if against:
            raise self._refused(*against)
        return facts

    def _check_limits(self, step: Step) -> None:
        """In a thread, and inside the gate. A run is one action, however many steps it takes."""
        if not step.disrupts or self._acted:
            return
        if why := broken(self._rules.limits, self._tools.audit.past(dry_run=False, since_reset=True)):
            raise self._refused(f"remedies are stopped: {why}; after a look, `gpuagent remedies reset` lets them go on")
        past = self._tools.audit.past(dry_run=self.plan.dry_run)
        against = list(limit_refusals(self._rules.limits, past, unit=self.plan.target.unit, program=self._program()))
        if against:
            raise self._refused(*against)

    async def _act(self, step: Step) -> Done:
        """Do it. The intent is on the disk."""
        target, hands = self.plan.target, self._tools.hands
        if step.sends is not None:
            return await self._send(step.sends)
        for member in self._members:  # writing took time: the very last look
            await self._same_still(member)
        if step.kind is Kind.NOTIFY:
            return await hands.notify(target, self._reason(), step.wait_seconds)
        if step.kind is Kind.RELEASE_CACHE:
            return await hands.release_cache(target, step.wait_seconds)
        if step.kind is Kind.RESET:
            return await hands.reset(target, step.wait_seconds)
        if step.kind is Kind.RESTART_UNIT:
            return await hands.restart_unit(target.unit, step.wait_seconds)
        return await hands.execute(step.command, target, step.wait_seconds)

    async def _send(self, number: int) -> Done:
        """To all members, or to none: each is asked first whether it could be signalled."""
        try:
            for member in self._members:
                await self._same_still(member)
            for member in self._members:
                member.held.send(0)
            for member in self._members:
                member.held.send(number)
        except Gone:
            return Done(ok=True, detail="it ended by itself just before")
        except NotPermitted as error:
            return Done(ok=False, detail=f"not permitted: {error}", errno=1)
        return Done(ok=True)

    async def _same_still(self, member: _Member) -> None:
        facts = await self._facts(member.held, member.target.pid)
        if changed := list(differences(member.identity, facts.identity)):
            raise self._refused(*changed)

    async def _watch(self, step: Step, wait_seconds: float) -> Outcome | None:
        """Wait for the effect. None: there was none in time."""
        tools, plan = self._tools, self.plan
        started = tools.now()
        while True:
            left = started + wait_seconds - tools.now()
            sight = await tools.eyes.next_sight(
                plan.target, plan.order.alert, self._last_look, max(left, 0.0), judged=False
            )
            if not plan.dry_run and all(member.held.has_ended() for member in self._members):
                return await prove(plan, tools.eyes, self._before, started=started, now=tools.now)
            if sight is not None:
                self._last_look = sight.clock_seconds
                if sight.condition is Condition.OVER:
                    return self._over(sight, tools.now() - started)
            if tools.now() - started >= wait_seconds:
                break
        if step.kind is Kind.KILL and not plan.dry_run:
            return await self._unkillable()
        return None

    def _over(self, sight: Sight, seconds: float) -> Outcome:
        before, now = self.plan.target.used_bytes, sight.target.used_bytes if sight.target else None
        freed = before - now if now is not None else None
        result = Result.RELEASED if freed is not None and freed > 0 and not self.plan.dry_run else Result.RESOLVED
        return Outcome(result, sight.reason or "the alert has ended", freed, seconds, acted=self._acted)

    async def _unkillable(self) -> Outcome:
        detail = "SIGKILL was sent, and the process is still there"
        for member in self._members:
            try:
                facts = await member.held.facts()
            except (Gone, NotPermitted):
                continue
            detail += f"; pid {member.target.pid} is in state {facts.state}, waiting in {facts.wait_channel or '?'}"
        return Outcome(Result.UNKILLABLE, detail, acted=True)

    def _refused(self, *reasons: str) -> _Stop:
        return _Stop(Outcome(Result.REFUSED, "; ".join(reasons), acted=self._acted), reasons=list(reasons))

    async def _end(self, outcome: Outcome, data: dict[str, object]) -> None:
        record = {
            "result": outcome.result, "detail": outcome.detail, "acted": outcome.acted,
            "released_bytes": outcome.released_bytes, "seconds": outcome.seconds, **data,
        }  # fmt: skip
        try:
            if not self.id:  # refused before it began: the refusal is worth a record too
                self.id = await asyncio.to_thread(self._tools.audit.begin, self._description())
            await asyncio.to_thread(self._tools.audit.write, self.id, END, record)
        except NotRecorded:
            return  # it is in the log, and the next start closes the run

    def _reason(self) -> str:
        """Rule, value and condition: what the owner of the process has a right to know."""
        order = self.plan.order
        if not order.alertname:
            return f"asked for by {order.asked_by}"
        return f"alert {order.alertname} fires: {order.expression} (value {order.value:g})"

    def _program(self) -> str:
        identity = self._members[0].identity if self._members else None
        return (identity.executable if identity else None) or self.plan.target.name

    def _description(self) -> dict[str, Any]:
        plan, target = self.plan, self.plan.target
        return {
            "alertname": plan.order.alertname, "fingerprint": plan.order.alert, "expression": plan.order.expression,
            "value": plan.order.value if math.isfinite(plan.order.value) else None,
            "values": list(plan.order.values), "asked_by": plan.order.asked_by,
            "forced": plan.order.forced, "dry_run": plan.dry_run, "scope": plan.scope,
            "ladder": [str(step) for step in plan.steps], "pid": target.pid, "start_ticks": target.id.start_ticks,
            "boot_id": target.id.boot_id, "uid": target.uid, "user": target.user, "name": target.name,
            "command": target.command, "cgroup": target.cgroup, "unit": target.unit,
            "container_id": target.container_id, "gpu": target.gpu_index, "gpu_uuid": target.key.gpu_uuid,
            "used_bytes": target.used_bytes, "program": self._program(),
            "members": [member.target.pid for member in self._members],
        }  # fmt: skip
