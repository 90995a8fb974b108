"""Limit the GPU memory of a process: its cgroup may hold what it holds now and some headroom, and no more.

What is beyond that fails with an out-of-memory error in this cgroup alone. Nobody is ended, and nothing is taken away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from gpuagent.core.background import in_daemon_thread
from gpuagent.core.memory_limits import CGROUP_ROOT, LimitRefused, LimitUnknown, MemoryLimits, SetLimit
from gpuagent.core.units import format_bytes
from gpuagent.procfs.files import ProcFiles
from gpuagent_alerts.remedies.facts.container_processes import GroupProcesses
from gpuagent_alerts.remedies.facts.fresh_lookup import LOOK_SECONDS
from gpuagent_alerts.remedies.facts.limited_cgroup import LimitedCgroup, LimitedCgroups
from gpuagent_alerts.remedies.facts.timeout_reasons import why_slow
from gpuagent_alerts.remedies.facts.unit_processes import UnitProcesses
from gpuagent_alerts.remedies.observation import ActionResult, LimitAsk, NotPossibleHere, UnitPermission
from gpuagent_alerts.remedies.pinned_processes import ActionRefused
from gpuagent_alerts.remedies.steps import RemedyStep
from gpuagent_alerts.remedies.target import Target

_SET_SECONDS = 30.0
COUNTED_SHARE = 0.75
"""Share of what the processes hold that the driver has to count against the cgroup, and of the headroom that is left.

The two are counted apart: memory that was taken before a process came into the cgroup, or that is managed, counts for
the one and not the other.
"""


class MemoryLimiter:
    """Sets the limit of a `limit` step, after a look at who else is in the cgroup."""

    def __init__(
        self,
        files: ProcFiles,
        units: UnitProcesses,
        groups: GroupProcesses,
        limits: MemoryLimits,
        root: str = CGROUP_ROOT,
    ) -> None:
        """`limits` sets them; `root` is where cgroup version 2 has to be."""
        self._limits = limits
        self._cgroups = LimitedCgroups(files, units, groups, root=root)

    async def refusal(self, target: Target, permission: UnitPermission) -> str:
        """Return why the process must not be limited; "" if it may."""
        if why := self._limits.refusal():
            return NotPossibleHere(why)
        cgroup = await self._look(target, permission)
        if cgroup.refusal:
            return cgroup.refusal
        try:
            async with asyncio.timeout(_SET_SECONDS):
                limits = await in_daemon_thread(self._limits.limits, "memory limits")
        except (TimeoutError, LimitRefused) as error:
            why = str(error) or f"the memory limits that are set are not known after {_SET_SECONDS:g} s"
            return NotPossibleHere(why)
        key = (target.key.gpu_uuid, cgroup.path)
        ours = next((each for each in limits if each.key == key and self._limits.is_there(each)), None)
        if ours is None:
            return ""
        words = "has limited" if ours.is_set else "may have limited"
        return NotPossibleHere(f"gpuagent {words} {cgroup.name} to {format_bytes(ours.hard_bytes)} already")

    async def limit(self, step: RemedyStep, target: Target, permission: UnitPermission, ask: LimitAsk) -> ActionResult:
        """See `ActionExecutor.limit`."""
        if why := self._limits.refusal():
            return _not_done(why)
        cgroup = await self._look(target, permission)
        if isinstance(cgroup.refusal, NotPossibleHere):
            return _not_done(cgroup.refusal)
        if cgroup.refusal:
            raise ActionRefused(cgroup.refusal)
        return await _in_time(partial(self._set, step, target, cgroup, ask))

    async def _look(self, target: Target, permission: UnitPermission) -> LimitedCgroup:
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                return await in_daemon_thread(partial(self._cgroups.find, target, permission), "limited cgroup")
        except TimeoutError:
            reason = await in_daemon_thread(partial(why_slow, LOOK_SECONDS), "slow look")
            return LimitedCgroup(refusal=f"it cannot be seen whose processes its cgroup runs: {reason}")

    def _set(self, step: RemedyStep, target: Target, cgroup: LimitedCgroup, ask: LimitAsk) -> ActionResult:
        """Set it, and look whether it is what was meant. For a thread. Raises LimitRefused."""
        limits, gpu_uuid = self._limits, target.key.gpu_uuid
        held = self._cgroups.held_bytes(cgroup.path, gpu_uuid, ask.everybody)
        if not held:
            raise LimitRefused(f"it cannot be seen how much {cgroup.name} holds on GPU {target.gpu_index}")
        most_bytes = held + step.headroom_bytes
        done = limits.set(gpu_uuid, cgroup.path, cgroup.inode, most_bytes, ask.holder, rehearse=ask.rehearse)
        would, most = "would be" if ask.rehearse else "is", format_bytes(done.limit.hard_bytes)
        detail = f"{cgroup.name} {would} limited to {most} on GPU {target.gpu_index}; it holds {format_bytes(held)}"
        if ask.rehearse:
            return ActionResult(ok=True, detail=detail)
        if doubt := _doubt(done, held, step.headroom_bytes) or self._cgroups.left(cgroup.path, target.pid):
            try:
                lifted = limits.lift(gpu_uuid, cgroup.path, ask.holder.owner)
            except LimitRefused as error:
                return ActionResult(ok=False, detail=f"{doubt}; it could not be lifted yet: {error}")
            return _not_done(f"{doubt}; {lifted}")
        return ActionResult(ok=True, detail=f"{detail}, {format_bytes(done.used_bytes)} by the limit's own count")


async def _in_time(work: Callable[[], ActionResult]) -> ActionResult:
    """Call what asks the driver: a refusal is no act, and what is not known may be one."""
    try:
        async with asyncio.timeout(_SET_SECONDS):
            return await in_daemon_thread(work, "memory limit")
    except TimeoutError:
        return _unknown(f"the driver has not answered within {_SET_SECONDS:g} s")
    except LimitUnknown as error:
        return _unknown(str(error))
    except LimitRefused as error:
        return _not_done(str(error))


def _not_done(why: str) -> ActionResult:
    return ActionResult(ok=False, detail=why, taken=False)


def _unknown(why: str) -> ActionResult:
    return ActionResult(ok=False, detail=f"it is not known whether the limit was set: {why}")


def _doubt(done: SetLimit, held: int, headroom: int) -> str:
    """Return why the limit is not what was meant, by what the driver counts against it; "" if it is."""
    counted = format_bytes(done.used_bytes)
    if done.used_bytes > done.limit.hard_bytes - COUNTED_SHARE * headroom:
        return (
            f"the driver counts {counted} against the limit of {format_bytes(done.limit.hard_bytes)}, and the processes"
            f" are listed with {format_bytes(held)}: too little headroom would be left"
        )
    if done.used_bytes < COUNTED_SHARE * held:
        return (
            f"the driver counts {counted} of the {format_bytes(held)} against the limit: the rest could grow beyond it"
            " (managed memory, or memory that was taken in another cgroup)"
        )
    return ""
