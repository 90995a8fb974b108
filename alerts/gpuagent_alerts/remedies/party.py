"""The processes that fall together, each held by a pidfd for the length of a run: all of them are acted on, or none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpuagent.core.identity import ProcessId
from gpuagent_alerts.remedies.target import Facts, Identity, Target, Ties, changes
from gpuagent_alerts.remedies.world import Done, Gone, Hands, Held, NotPermitted, Sight

WOKEN = "it has run since only SIGKILL could have reached it: it is asked to end first, when this is tried again"


class Doubt(Exception):
    """A reason to leave all of them alone."""

    def __init__(self, *reasons: str) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


@dataclass(frozen=True, slots=True)
class Member:
    """One of them, as it was when it was held."""

    target: Target
    held: Held
    identity: Identity

    async def facts(self) -> Facts:
        """Read the process's facts as they are now. Raise Gone, Doubt."""
        return await _facts(self.held, self.target.pid)

    def seen_in(self, sight: Sight) -> Target:
        """Return it as this reading has it; the chosen process itself, where it is on several GPUs."""
        return next((each for each in sight.members if each.id == self.target.id), self.target)

    def off_the_gpu(self, sight: Sight) -> str:
        """Say that it holds no GPU memory any more: there is no reason to end it then, whatever it does."""
        there = any(each.id == self.target.id for each in sight.members)
        return "" if there else "it holds no GPU memory any more"


class Party:
    """The target first. To be closed."""

    def __init__(self, hands: Hands) -> None:
        self._hands = hands
        self._held: list[Held] = []
        self.members: list[Member] = []
        self._asleep: dict[ProcessId, int | None] = {}
        """Context switches of those that were passed over in their sleep."""

    async def take(self, target: Target) -> None:
        """Open the pidfd first, then read: what is read is of the one that is held. Raises Gone, Doubt."""
        if any(member.target.id == target.id for member in self.members):
            return
        try:
            held = self._hands.hold(target)
        except NotPermitted as error:
            raise Doubt(f"pid {target.pid} cannot be held: {error}") from None
        self._held.append(held)
        facts = await _facts(held, target.pid)
        wrong = changes(target, facts)
        if wrong and not (self.members and wrong == [facts.end]):  # who would have fallen with the target is left out
            raise Doubt(*wrong)
        self.members.append(Member(target, held, facts.identity))

    async def take_all(self, targets: Iterable[Target]) -> None:
        """Whoever of them has ended meanwhile is left out. Raises Doubt."""
        for target in targets:
            try:
                await self.take(target)
            except Gone:
                continue

    async def look(self, *, ties: bool = False) -> list[tuple[Member, Facts, list[str]]]:
        """Every member with what it is now, and how that differs from what was held; who has ended is dropped.

        With `ties` the facts of the first one say who else ends, or is hung up, when all of them end.

        Raises:
            Gone: the target itself has ended.
            Doubt: one of them cannot be looked at.
        """
        found = []
        tied = await self._hands.tied_to([each.target for each in self.members]) if ties else Ties()
        for member in list(self.members):
            try:
                facts = await member.facts()
                if member is self.members[0]:
                    facts = replace(facts, ties=tied)
                if facts.end and member is not self.members[0]:  # its parent has not reaped it
                    raise Gone
            except Gone:
                if member is self.members[0]:
                    raise
                self.members.remove(member)
                continue
            found.append((member, facts, changes(member.identity, facts) + self._woken(member, facts)))
        return found

    async def pass_over(self) -> None:
        """Remember in which sleep a step found them: who has run since may yet do what a gentler step asks.

        Raises as `look`.
        """
        self._asleep = {member.target.id: facts.switches for member, facts, _ in await self.look()}

    def _woken(self, member: Member, facts: Facts) -> list[str]:
        if member.target.id not in self._asleep:
            return []
        before = self._asleep[member.target.id]
        return [] if before is not None and before == facts.switches else [WOKEN]

    async def same_still(self, *, ties: bool) -> list[Facts]:
        """Return what all of them are at the very last look before a step, as `look`. Raises Gone, Doubt."""
        looked = await self.look(ties=ties)
        if changed := [reason for _, _, reasons in looked for reason in reasons]:
            raise Doubt(*changed)
        return [facts for _, facts, _ in looked]

    async def container_refusal(self) -> str:
        """Ask the container runtime, where it may be asked, about every container that is acted on by its id."""
        for member in self.members:
            if member.target.proven_container_id and (refusal := await self._hands.container_refusal(member.target)):
                return refusal
        return ""

    def send(self, number: int) -> Done:
        """Signal all, or none: each is asked first whether it could be. At once: the very last look was just before."""
        try:
            for step in (0, number):
                for member in self.members:
                    try:
                        member.held.send(step)
                    except Gone:  # by itself, just before: the others are still meant
                        continue
        except NotPermitted as error:
            return Done(ok=False, detail=f"not permitted: {error}", errno=1, taken=step != 0)
        return Done(ok=True)

    def have_ended(self) -> bool:
        """All of them, with all of their threads."""
        return all(member.held.has_ended() for member in self.members)

    def held_bytes(self, gpu_uuid: str) -> int:
        """Return what all of them held on this GPU when they were chosen."""
        return sum(each.target.used_bytes for each in self.members if each.target.key.gpu_uuid == gpu_uuid)

    async def whereabouts(self) -> list[str]:
        """For each that still is, where in the kernel it waits."""
        found = []
        for member in self.members:
            try:
                facts = await member.facts()
            except (Gone, Doubt):
                continue
            if not facts.is_dead:
                where = facts.wait_channel or "?"
                found.append(f"pid {member.target.pid} is in state {facts.state}, waiting in {where}")
        return found

    def close(self) -> None:
        """Let go of all."""
        for held in self._held:
            held.close()
        self._held.clear()


async def _facts(held: Held, pid: int) -> Facts:
    try:
        return await held.facts()
    except NotPermitted as error:
        raise Doubt(f"pid {pid} cannot be looked at: {error}") from None
