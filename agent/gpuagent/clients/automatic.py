"""An app that is found leaking is asked who holds the memory, for the reasons of its alert: `leaks.blame: automatic`.

Off by default, for the app stands still while it forks. One app at a time; one that refuses is asked again later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

from gpuagent.clients.commands import ClientCommands
from gpuagent.core.clock import Clock
from gpuagent.core.growth import Growth, MemoryKey, Verdict
from gpuagent.core.identity import ProcessId
from gpuagent.core.snapshot import Snapshot
from gpuagent_exporters.api.client_routes import CommandFailure

log = logging.getLogger(__name__)

_AGAIN_SECONDS = 600.0
_WORDS_LIMIT = 300


@dataclass(slots=True)
class _Case:
    """A leaking app: what it answered, "" if it has not yet or would not, and when to ask again."""

    words: str = ""
    again_seconds: float = 0.0


class AutomaticBlame:
    """For one event loop."""

    def __init__(self, commands: ClientCommands, clock: Clock, *, enabled: bool) -> None:
        self.enabled = enabled
        self._commands = commands
        self._clock = clock
        self._cases: dict[ProcessId, _Case] = {}
        self._asking: asyncio.Task[None] | None = None

    def observe(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot, with the words of apps among the reasons of their leaks, once they have said them."""
        if not self.enabled or not snapshot.clients:
            return snapshot
        leaking = dict(_leaking(snapshot))
        owners = {snapshot.clients[key.pid].id for key in leaking}
        self._cases = {owner: case for owner, case in self._cases.items() if owner in owners}
        for owner in owners:
            case = self._cases.setdefault(owner, _Case())
            is_due = not case.words and self._clock.now() >= case.again_seconds
            if is_due and self._asking is None:
                case.again_seconds = self._clock.now() + _AGAIN_SECONDS
                self._asking = asyncio.create_task(self._ask(owner, case), name=f"blame {owner.pid}")
        told = {
            key: replace(growth, reasons=(*growth.reasons, words), culprit=words)
            for key, growth in leaking.items()
            if (words := self._cases[snapshot.clients[key.pid].id].words)
        }
        return replace(snapshot, growth={**snapshot.growth, **told}) if told else snapshot

    async def close(self) -> None:
        """Wait for no answer any more."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def _ask(self, owner: ProcessId, case: _Case) -> None:
        try:
            findings = await self._commands.blame(owner.pid)
        except CommandFailure as failure:
            log.info("process %d leaks and could not be asked who holds the memory: %s", owner.pid, failure)
        else:
            case.words = findings.verdict[:_WORDS_LIMIT]
            log.info("process %d leaks: %s", owner.pid, case.words or "nobody was found to hold the memory")
        finally:
            self._asking = None


def _leaking(snapshot: Snapshot) -> Iterator[tuple[MemoryKey, Growth]]:
    """Yield the leaks of connected apps that can be asked."""
    for key, growth in snapshot.growth.items():
        client = snapshot.clients.get(key.pid) if growth.verdict is Verdict.LEAKING else None
        if client is not None and {"census", "lines"} & set(client.capabilities):
            yield key, growth
