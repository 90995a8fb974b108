"""Take memory limits off again: when the alert that they were set for has ended, or the process that was meant.

Which limits are ours is told by their ledger alone, so that a kill of the agent and a restart forget none. Remedies
that are stopped, off or a dry run set none, and take off all the same what was set before. Limits of another agent,
whose state is another, are told and left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, TypeVar

from gpuagent.core.background import in_daemon_thread
from gpuagent.core.clock import Clock
from gpuagent.core.identity import ProcessId
from gpuagent.core.memory_limits import LimitHolder, LimitRefused, MemoryLimit, MemoryLimits
from gpuagent.core.units import format_bytes, format_time
from gpuagent_alerts.remedies.audit import Audit, NotRecorded
from gpuagent_alerts.remedies.audit_rows import LIFT
from gpuagent_alerts.remedies.observation import LimitAsk, Observation
from gpuagent_alerts.remedies.plan import Plan
from gpuagent_alerts.remedies.steps import RemedyStep

log = logging.getLogger(__name__)
T = TypeVar("T")

ABSENT_SECONDS = 60.0
"""An alert that has not fired for so long has ended: one evaluation that found nothing may be a gap."""
_LOOK_SECONDS = 10.0
_RETRY_SECONDS = 60.0
_LONGEST_RETRY_SECONDS = 900.0
_READ_SECONDS = 300.0
"""The ledger is read again after so long: the driver may have lost a limit, or a request that was given up set one."""
_CALL_SECONDS = 30.0
_MOST_TOLD = 64


class LimitLifts:
    """Keeps an eye on the limits that are set, for one event loop."""

    def __init__(
        self,
        limits: MemoryLimits,
        clock: Clock,
        audit: Audit,
        is_alive: Callable[[ProcessId], bool],
        owner: str,
    ) -> None:
        """`owner` is the id of this agent's state."""
        self._limits = limits
        self._clock = clock
        self._audit = audit
        self._is_alive = is_alive
        self.owner = owner
        self._known: tuple[MemoryLimit, ...] | None = None
        """Limits of the ledger; None where it has to be read: the helper is asked no more often than need be."""
        self._absent_since: dict[str, float] = {}
        self._next_look = 0.0
        self._next_read = 0.0
        self._retries: dict[tuple[str, str], tuple[float, float]] = {}
        """When a limit that could not be lifted is tried again, and the wait before that."""
        self._told: dict[str, None] = {}
        self._one_look = asyncio.Lock()

    @property
    def known(self) -> tuple[MemoryLimit, ...]:
        """The limits that are set, as of the last look."""
        return self._known or ()

    def forget(self) -> None:
        """Read the ledger again at the next look: one was set, or may have been."""
        self._next_look = self._next_read = 0.0

    def is_due(self) -> bool:
        """Return whether there is something to look at."""
        now = self._clock.now()
        return now >= self._next_look and (self._known != () or now >= self._next_read)

    def words(self, identity: ProcessId) -> str:
        """Return that a process is limited; "" where no limit of this agent is known to hold for it."""
        for each in self._mine():
            if each.is_set and _holder(each) == identity:
                since = format_time(each.set_seconds)
                return f"{each.cgroup} is limited to {format_bytes(each.hard_bytes)} since {since}"
        return ""

    def _mine(self) -> list[MemoryLimit]:
        return [each for each in self.known if each.holder.owner == self.owner]

    async def look(self, firing: Collection[str]) -> None:
        """Lift the limits whose reason has gone: `firing` are the alerts that fire."""
        if self._one_look.locked():
            return
        async with self._one_look:
            now = self._clock.now()
            self._next_look = now + _LOOK_SECONDS * self._clock.speed
            if now >= self._next_read and not await self._read() and self._known is None:
                return
            alerts = {each.holder.alert for each in self.known if each.holder.alert}
            self._absent_since = {
                each: self._absent_since.get(each, now) for each in alerts if each not in firing
            }  # fmt: skip
            for limit in self._mine():
                if now < self._retries.get(limit.key, (0.0, 0.0))[0]:
                    continue
                if why := await self._why_over(limit):
                    await self._lift(limit, why)

    async def lift_all(self, by: str) -> tuple[list[str], list[str]]:
        """Lift every limit of this agent; return in words what was lifted, and what was not. Raises LimitRefused."""
        lifted: list[str] = []
        failed: list[str] = []
        async with self._one_look:
            await self._read(raises=True)
            for each in self._mine():
                text, ok = await self._lift(each, f"{by} asked for it")
                (lifted if ok else failed).append(text)
        return lifted, failed

    def documents(self) -> list[dict[str, Any]]:
        """Return the limits that are set, for the API."""
        return [
            {
                "gpu_uuid": each.gpu_uuid, "cgroup": each.cgroup, "hard_bytes": each.hard_bytes,
                "set_seconds": each.set_seconds, "run": each.holder.run, "alert": each.holder.alert,
                "pid": each.holder.pid, "is_set": each.is_set, "is_own": each.holder.owner == self.owner,
            }
            for each in self.known
        ]  # fmt: skip

    async def _read(self, *, raises: bool = False) -> bool:
        """Read the ledger; return whether that worked."""
        try:
            self._known = await _call(self._limits.limits)
        except LimitRefused as error:
            if raises:
                raise
            self._next_read = self._clock.now() + _RETRY_SECONDS * self._clock.speed
            self._tell_once(f"the memory limits that gpuagent has set cannot be read: {error}")
            return False
        self._next_read = self._clock.now() + _READ_SECONDS * self._clock.speed
        return True

    async def _why_over(self, limit: MemoryLimit) -> str:
        """Return why a limit has no reason any more; "" while it has."""
        holder = limit.holder
        identity = _holder(limit)
        if holder.pid and not await in_daemon_thread(partial(self._is_alive, identity), "limited process"):
            return f"pid {holder.pid} has ended"
        since = self._absent_since.get(holder.alert)
        if since is not None and self._clock.now() - since >= ABSENT_SECONDS:
            return "the alert has ended"
        return ""

    async def _lift(self, limit: MemoryLimit, why: str) -> tuple[str, bool]:
        """Take it off, and write that down; return what came of it, and whether it is off."""
        try:
            done, ok = await _call(partial(self._limits.lift, *limit.key, self.owner)), True
        except LimitRefused as error:
            done, ok = f"the memory limit on {limit.cgroup} could not be lifted: {error}", False
        text = f"{done} ({why})"
        if ok:
            self._known = tuple(each for each in self.known if each.key != limit.key)
            self._retries.pop(limit.key, None)
            log.warning("%s", text)
        else:
            wait = min(max(2 * self._retries.get(limit.key, (0.0, 0.0))[1], _RETRY_SECONDS), _LONGEST_RETRY_SECONDS)
            self._retries[limit.key] = self._clock.now() + wait * self._clock.speed, wait
        if limit.holder.run and (ok or self._tell_once(text)):
            row = {"step": "limit", "ok": ok, "detail": text}
            try:
                await asyncio.to_thread(self._audit.write, limit.holder.run, LIFT, row)
            except NotRecorded as error:
                log.warning("that is not on record yet: %s", error)
        return text, ok

    def _tell_once(self, text: str) -> bool:
        """Log a problem, and return True, unless it was told before."""
        if text in self._told:
            return False
        self._told[text] = None
        while len(self._told) > _MOST_TOLD:
            del self._told[next(iter(self._told))]
        log.error("%s", text)
        return True


def _holder(limit: MemoryLimit) -> ProcessId:
    return ProcessId(limit.boot_id, limit.holder.pid, limit.holder.start_ticks)


async def _call(work: Callable[[], T]) -> T:
    """Call what may block, for a bounded time. Raises LimitRefused."""
    try:
        async with asyncio.timeout(_CALL_SECONDS):
            return await in_daemon_thread(work, "memory limits")
    except TimeoutError:
        raise LimitRefused(f"no answer within {_CALL_SECONDS:g} s") from None


def limit_ask(plan: Plan, step: RemedyStep, run: str, observation: Observation, owner: str) -> LimitAsk:
    """Return what a memory limit goes by: who shares it, what ends it, and which agent's it is."""
    alert = "" if step.until_process_ends else plan.request.alert
    holder = LimitHolder(run, alert, owner, pid=plan.target.pid, start_ticks=plan.target.id.start_ticks)
    return LimitAsk(observation.everybody or (plan.target,), holder, rehearse=plan.dry_run)
