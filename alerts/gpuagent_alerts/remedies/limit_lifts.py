"""Take memory limits off again: when the alert that they were set for has ended, or the process that was meant.

Which limits are ours is told by their ledger alone, so that a kill of the agent, a restart and a lost state forget
none. Remedies that are stopped, off or a dry run set none, and take off all the same what was set before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

from gpuagent.core.background import in_daemon_thread
from gpuagent.core.clock import Clock
from gpuagent.core.identity import ProcessId
from gpuagent.core.memory_limits import ROUNDING_BYTES, LimitHolder, LimitRefused, MemoryLimit, MemoryLimits
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
_CALL_SECONDS = 30.0


class LimitLifts:
    """Keeps an eye on the limits that are set, for one event loop."""

    def __init__(
        self,
        limits: MemoryLimits,
        clock: Clock,
        audit: Audit,
        is_alive: Callable[[ProcessId], bool],
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._audit = audit
        self._is_alive = is_alive
        self._known: tuple[MemoryLimit, ...] | None = None
        """Limits of the ledger; None where it has to be read: the helper is asked no more often than need be."""
        self._absent_since: dict[str, float] = {}
        self._next_look = 0.0
        self._told: set[str] = set()
        self._one_look = asyncio.Lock()

    @property
    def known(self) -> tuple[MemoryLimit, ...]:
        """The limits that are set, as of the last look."""
        return self._known or ()

    def forget(self) -> None:
        """Read the ledger again at the next look: one was set, or may have been."""
        self._known, self._next_look = None, 0.0

    def is_due(self) -> bool:
        """Return whether there is something to look at."""
        return self._known != () and self._clock.now() >= self._next_look

    async def look(self, firing: Collection[str], budgets: Mapping[str, int] = MappingProxyType({})) -> None:
        """Lift the limits whose reason has gone.

        `firing` are the alerts that fire, `budgets` those that are enforced, with their bytes.
        """
        if self._one_look.locked():
            return
        async with self._one_look:
            now = self._clock.now()
            self._next_look = now + _LOOK_SECONDS * self._clock.speed
            if self._known is None and not await self._read():
                return
            alerts = {each.holder.alert for each in self.known if each.holder.alert}
            self._absent_since = {
                each: self._absent_since.get(each, now) for each in alerts if each not in firing
            }  # fmt: skip
            for limit in self.known:
                if why := await self._why_over(limit, budgets):
                    await self._lift(limit, why)

    async def lift_all(self, by: str) -> list[str]:
        """Lift every limit that a remedy has set; return what came of each. Raises LimitRefused."""
        async with self._one_look:
            self.forget()
            if not await self._read(raises=True):
                return []
            return [await self._lift(each, f"{by} asked for it") for each in self.known if not each.holder.budget]

    def documents(self) -> list[dict[str, Any]]:
        """Return the limits that are set, for the API."""
        return [
            {
                "gpu_uuid": each.gpu_uuid, "cgroup": each.cgroup, "hard_bytes": each.hard_bytes,
                "set_seconds": each.set_seconds, "run": each.holder.run, "alert": each.holder.alert,
                "budget": each.holder.budget, "pid": each.holder.pid,
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
            self._next_look = self._clock.now() + _RETRY_SECONDS * self._clock.speed
            self._tell_once(f"the memory limits that gpuagent has set cannot be read: {error}")
            return False
        return True

    async def _why_over(self, limit: MemoryLimit, budgets: Mapping[str, int]) -> str:
        """Return why a limit has no reason any more; "" while it has."""
        holder = limit.holder
        if holder.budget:
            return self._budget_over(limit, budgets)
        identity = ProcessId(limit.boot_id, holder.pid, holder.start_ticks)
        if holder.pid and not await in_daemon_thread(partial(self._is_alive, identity), "limited process"):
            return f"pid {holder.pid} has ended"
        since = self._absent_since.get(holder.alert)
        if since is not None and self._clock.now() - since >= ABSENT_SECONDS:
            return "the alert has ended"
        return ""

    def _budget_over(self, limit: MemoryLimit, budgets: Mapping[str, int]) -> str:
        wanted = budgets.get(limit.holder.budget)
        if wanted is None:
            return f"budget {limit.holder.budget} is not enforced any more"
        if abs(wanted - limit.hard_bytes) > ROUNDING_BYTES:
            return f"budget {limit.holder.budget} has changed"
        return "" if self._limits.is_there(limit) else "its cgroup is gone"

    async def _lift(self, limit: MemoryLimit, why: str) -> str:
        """Take it off, and write that down."""
        try:
            done, ok = await _call(partial(self._limits.lift, *limit.key)), True
        except LimitRefused as error:
            done, ok = f"the memory limit on {limit.cgroup} could not be lifted: {error}", False
        text = f"{done} ({why})"
        if ok:
            self._known = tuple(each for each in self.known if each.key != limit.key)
            log.warning("%s", text)
        if limit.holder.run and (ok or self._tell_once(text)):
            row = {"step": "limit", "ok": ok, "detail": text}
            try:
                await asyncio.to_thread(self._audit.write, limit.holder.run, LIFT, row)
            except NotRecorded as error:
                log.warning("that is not on record yet: %s", error)
        return text

    def _tell_once(self, text: str) -> bool:
        """Log a problem, and return True, unless it was told before."""
        if text in self._told:
            return False
        self._told.add(text)
        log.error("%s", text)
        return True


async def _call(work: Callable[[], T]) -> T:
    """Call what may block, for a bounded time. Raises LimitRefused."""
    try:
        async with asyncio.timeout(_CALL_SECONDS):
            return await in_daemon_thread(work, "memory limits")
    except TimeoutError:
        raise LimitRefused(f"no answer within {_CALL_SECONDS:g} s") from None


def limit_ask(plan: Plan, step: RemedyStep, run: str, observation: Observation) -> LimitAsk:
    """Return what a memory limit goes by: who shares it, and what ends it."""
    alert = "" if step.until_process_ends else plan.request.alert
    holder = LimitHolder(run, alert, pid=plan.target.pid, start_ticks=plan.target.id.start_ticks)
    return LimitAsk(observation.everybody or (plan.target,), holder, rehearse=plan.dry_run)
