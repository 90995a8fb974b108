"""Processes pinned by pidfd for the length of a run: a step applies to all of them or to none."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from gpuagent.core.identity import ProcessId
from gpuagent_alerts.remedies.observation import (
    ActionExecutor,
    ActionResult,
    NotPermitted,
    Observation,
    ProcessEnded,
    ProcessHandle,
)
from gpuagent_alerts.remedies.target import NO_TIES, Facts, Identity, Target, Ties, changes

WOKEN = "it has run since only SIGKILL could have reached it: it is asked to end first, when this is tried again"


class ActionRefused(Exception):
    """A reason to leave all of the processes alone."""

    def __init__(self, *reasons: str) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


@dataclass(frozen=True, slots=True)
class PinnedProcess:
    """A process, as it was when it was pinned."""

    target: Target
    handle: ProcessHandle
    identity: Identity

    async def facts(self) -> Facts:
        """Read what it is now. Raises ProcessEnded, ActionRefused."""
        return await _facts(self.handle, self.target.pid)

    def seen_in(self, observation: Observation) -> Target:
        """Return it as this reading has it; the chosen process itself, where it is on several GPUs."""
        return next((each for each in observation.members if each.id == self.target.id), self.target)

    def off_the_gpu(self, observation: Observation) -> str:
        """Say that it holds no GPU memory any more: there is no reason to end it then, whatever it does."""
        there = any(each.id == self.target.id for each in observation.members)
        return "" if there else "it holds no GPU memory any more"


class PinnedProcesses:
    """The processes of one run, the target first. Has to be closed."""

    def __init__(self, executor: ActionExecutor, ending: Callable[[], Collection[ProcessId]] = frozenset) -> None:
        """Hold nobody yet. `ending` returns whose end is asked for, or was: these may be among them."""
        self._executor = executor
        self._ending = ending
        self._handles: list[ProcessHandle] = []
        self.members: list[PinnedProcess] = []
        self.known: set[ProcessId] = set()
        """Those that were meant from the start, also if they have ended since."""
        self._asleep: dict[ProcessId, int | None] = {}
        """Context switches of those that were passed over in their sleep."""

    async def pin(self, target: Target) -> None:
        """Open the pidfd, then read: what is read is of the pinned process. Raises ProcessEnded, ActionRefused."""
        if any(member.target.id == target.id for member in self.members):
            return
        self.known.add(target.id)
        try:
            handle = self._executor.pin(target)
        except NotPermitted as error:
            raise ActionRefused(f"pid {target.pid} cannot be held: {error}") from None
        self._handles.append(handle)
        facts = await _facts(handle, target.pid)
        wrong = changes(target, facts)
        if wrong and not (self.members and wrong == [facts.end]):  # who would have fallen with the target is left out
            raise ActionRefused(*wrong)
        self.members.append(PinnedProcess(target, handle, facts.identity))

    async def pin_all(self, targets: Iterable[Target]) -> None:
        """Pin each, but for those that have ended meanwhile. Raises ActionRefused."""
        for target in targets:
            try:
                await self.pin(target)
            except ProcessEnded:
                continue

    async def ties(self, *, with_units: bool = False) -> Ties:
        """See who else ends, or is hung up, when all of them end, and those whose end is asked for besides.

        It looks at every process of the machine: where there are ten thousand, that takes seconds. `with_units` counts
        everybody in their services too.
        """
        others = set(self._ending()).difference(each.target.id for each in self.members)
        return await self._executor.tied_to([each.target for each in self.members], others, with_units=with_units)

    async def read(self, ties: Ties = NO_TIES) -> list[tuple[PinnedProcess, Facts, list[str]]]:
        """Return every process with what it is now and how that differs from when it was pinned; drop those that ended.

        The facts of the first one have these ties.

        Raises:
            ProcessEnded: the target itself has ended.
            ActionRefused: one of them cannot be looked at.
        """
        found = []
        for member in list(self.members):
            try:
                facts = await member.facts()
                if member is self.members[0]:
                    facts = replace(facts, ties=ties)
                if facts.end and member is not self.members[0]:  # its parent has not reaped it
                    raise ProcessEnded
            except ProcessEnded:
                if member is self.members[0]:
                    raise
                self.members.remove(member)
                continue
            found.append((member, facts, changes(member.identity, facts) + self._woken(member, facts)))
        return found

    async def remember_sleep(self) -> None:
        """Remember in which sleep a step found them: who has run since may yet do what a gentler step asks.

        Raises as `read`.
        """
        self._asleep = {member.target.id: facts.switches for member, facts, _ in await self.read()}

    def _woken(self, member: PinnedProcess, facts: Facts) -> list[str]:
        if member.target.id not in self._asleep:
            return []
        before = self._asleep[member.target.id]
        return [] if before is not None and before == facts.switches else [WOKEN]

    async def recheck(self, ties: Ties) -> list[Facts]:
        """Return what all of them are at the last look before a step. Raises ProcessEnded, ActionRefused."""
        found = await self.read(ties)
        if changed := [reason for _, _, reasons in found for reason in reasons]:
            raise ActionRefused(*changed)
        return [facts for _, facts, _ in found]

    async def container_refusal(self) -> str:
        """Ask the container runtime, where it may be asked, about every container that is acted on by its id."""
        for member in self.members:
            if member.target.proven_container_id and (refusal := await self._executor.container_refusal(member.target)):
                return refusal
        return ""

    def send(self, number: int) -> ActionResult:
        """Signal all, or none: signal 0 asks first whether each may be signaled."""
        try:
            for step in (0, number):
                for member in self.members:
                    try:
                        member.handle.send(step)
                    except ProcessEnded:  # by itself, just before: the others are still meant
                        continue
        except NotPermitted as error:
            return ActionResult(ok=False, detail=f"not permitted: {error}", errno=1, taken=step != 0)
        return ActionResult(ok=True)

    def have_ended(self) -> bool:
        """Return whether all of them have ended, with all of their threads."""
        return all(member.handle.has_ended() for member in self.members)

    def held_bytes(self, gpu_uuid: str) -> int:
        """Return what all of them held on this GPU when they were chosen."""
        return sum(each.target.used_bytes for each in self.members if each.target.key.gpu_uuid == gpu_uuid)

    async def whereabouts(self) -> list[str]:
        """Return for each that has not ended where in the kernel it waits."""
        found = []
        for member in self.members:
            try:
                facts = await member.facts()
            except (ProcessEnded, ActionRefused):
                continue
            if not facts.is_dead:
                where = facts.wait_channel or "?"
                found.append(f"pid {member.target.pid} is in state {facts.state}, waiting in {where}")
        return found

    def close(self) -> None:
        """Close every pidfd."""
        for handle in self._handles:
            handle.close()
        self._handles.clear()


async def _facts(handle: ProcessHandle, pid: int) -> Facts:
    try:
        return await handle.facts()
    except NotPermitted as error:
        raise ActionRefused(f"pid {pid} cannot be looked at: {error}") from None
