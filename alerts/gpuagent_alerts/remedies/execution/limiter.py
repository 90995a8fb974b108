"""Limit the GPU memory of a process: its cgroup may hold what it holds now and some headroom, and no more.

What is beyond that fails with an out-of-memory error in this cgroup alone. Nobody is ended, and nothing is taken away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from gpuagent.core.background import in_daemon_thread
from gpuagent.core.memory_limits import CGROUP_ROOT, LimitHolder, LimitRefused, MemoryLimits, SetLimit
from gpuagent.core.units import format_bytes
from gpuagent.procfs.files import ProcFiles
from gpuagent_alerts.remedies.facts.container_processes import GroupProcesses
from gpuagent_alerts.remedies.facts.fresh_lookup import LOOK_SECONDS
from gpuagent_alerts.remedies.facts.limited_cgroup import LimitedCgroup, LimitedCgroups
from gpuagent_alerts.remedies.facts.timeout_reasons import why_slow
from gpuagent_alerts.remedies.facts.unit_processes import UnitProcesses
from gpuagent_alerts.remedies.observation import ActionResult, AlreadyLimited, LimitAsk, UnitPermission
from gpuagent_alerts.remedies.pinned_processes import ActionRefused
from gpuagent_alerts.remedies.steps import RemedyStep
from gpuagent_alerts.remedies.target import Target

_SET_SECONDS = 30.0
_COUNTED_SHARE = 0.75
"""Share of what the processes hold that the driver has to count against the cgroup. The two are counted apart: memory
that was taken before a process came into the cgroup, or that is managed, counts for the one and not the other."""


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
            return why
        cgroup = await self._look(target, permission)
        if cgroup.refusal:
            return cgroup.refusal
        try:
            async with asyncio.timeout(_SET_SECONDS):
                limits = await in_daemon_thread(self._limits.limits, "memory limits")
        except (TimeoutError, LimitRefused) as error:
            return str(error) or f"the memory limits that are set are not known after {_SET_SECONDS:g} s"
        key = (target.key.gpu_uuid, cgroup.path)
        ours = next((each for each in limits if each.key == key and self._limits.is_there(each)), None)
        if ours is None:
            return ""
        return AlreadyLimited(f"gpuagent has limited {cgroup.name} to {format_bytes(ours.hard_bytes)} already")

    async def limit(self, step: RemedyStep, target: Target, permission: UnitPermission, ask: LimitAsk) -> ActionResult:
        """See `ActionExecutor.limit`."""
        cgroup = await self._permitted(target, permission)
        return await _in_time(partial(self._set, step, target, cgroup, ask))

    async def enforce(
        self, target: Target, permission: UnitPermission, hard_bytes: int, holder: LimitHolder, *, rehearse: bool
    ) -> ActionResult:
        """See `ActionExecutor.enforce`."""
        cgroup = await self._permitted(target, permission)

        def set_limit() -> ActionResult:
            gpu_uuid = target.key.gpu_uuid
            done = self._limits.set(gpu_uuid, cgroup.path, hard_bytes, holder, rehearse=rehearse)
            would, most = "would be" if rehearse else "is", format_bytes(done.limit.hard_bytes)
            return ActionResult(ok=True, detail=f"{cgroup.name} {would} limited to {most} on GPU {target.gpu_index}")

        return await _in_time(set_limit)

    async def _permitted(self, target: Target, permission: UnitPermission) -> LimitedCgroup:
        """Return the cgroup, after a last look. Raises ActionRefused."""
        if why := self._limits.refusal():
            raise ActionRefused(why)
        cgroup = await self._look(target, permission)
        if cgroup.refusal:
            raise ActionRefused(cgroup.refusal)
        return cgroup

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
        done = limits.set(gpu_uuid, cgroup.path, held + step.headroom_bytes, ask.holder, rehearse=ask.rehearse)
        would, most = "would be" if ask.rehearse else "is", format_bytes(done.limit.hard_bytes)
        detail = f"{cgroup.name} {would} limited to {most} on GPU {target.gpu_index}; it holds {format_bytes(held)}"
        if ask.rehearse:
            return ActionResult(ok=True, detail=detail)
        if doubt := _doubt(done, held):
            lifted = _lifted(limits, gpu_uuid, cgroup.path)
            return ActionResult(ok=False, detail=f"{doubt}; {lifted}")
        return ActionResult(ok=True, detail=f"{detail}, {format_bytes(done.used_bytes)} by the limit's own count")


async def _in_time(work: Callable[[], ActionResult]) -> ActionResult:
    """Call what asks the driver. Raises ActionRefused where that refuses."""
    try:
        async with asyncio.timeout(_SET_SECONDS):
            return await in_daemon_thread(work, "memory limit")
    except TimeoutError:
        return ActionResult(ok=False, detail=f"the driver has not answered within {_SET_SECONDS:g} s")
    except LimitRefused as error:
        raise ActionRefused(str(error)) from None


def _doubt(done: SetLimit, held: int) -> str:
    """Return why the limit is not what was meant, by what the driver counts against it; "" if it is."""
    counted = format_bytes(done.used_bytes)
    if done.used_bytes > done.limit.hard_bytes:
        return f"the driver counts {counted} against the limit, and the processes are listed with {format_bytes(held)}"
    if done.used_bytes < _COUNTED_SHARE * held:
        return (
            f"the driver counts {counted} of the {format_bytes(held)} against the limit: the rest could grow beyond it"
            " (managed memory, or memory that was taken in another cgroup)"
        )
    return ""


def _lifted(limits: MemoryLimits, gpu_uuid: str, cgroup: str) -> str:
    try:
        return limits.lift(gpu_uuid, cgroup)
    except LimitRefused as error:
        return f"it could not be lifted: {error}"
