"""Remedies of a real agent: its hands are put together from /proc, systemd, and apps with an embedded client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuagent.acting.agent import Acting, Around
from gpuagent.acting.hands import AgentHands
from gpuagent.acting.notes import Notes
from gpuagent.acting.permissions import writable_by_others
from gpuagent.clients.commands import ClientCommands
from gpuagent.node import Node
from gpuagent.procfs.namespace import own_namespace
from gpuagent_alerts.remedies.world import Hands
from gpuagent_alerts.store.database import Store

if TYPE_CHECKING:
    from gpuagent.config.models import Config


class RemediesRefused(ValueError):
    """Remedies may not be on like this; the text has every reason on a line of its own."""


class ClientApps:
    """Apps with a client, as remedies ask them. See `gpuagent.acting.hands.Apps`."""

    def __init__(self, commands: ClientCommands) -> None:
        self._commands = commands

    async def release(self, pid: int, *, collect: bool = False) -> Mapping[str, Any]:
        answer = await self._commands.release(pid, collect=collect)
        return {**answer, "released_bytes": answer.get("returned_bytes")}

    async def reset(self, pid: int) -> Mapping[str, Any]:
        return await self._commands.reset(pid)

    async def notice(self, pid: int, reason: str, seconds: float) -> Mapping[str, Any]:
        return await self._commands.notice(pid, reason, seconds)


def acting_of(
    config: Config, node: Node, store: Store, commands: ClientCommands, *, durable: bool, config_file: Path
) -> Acting:
    """Put remedies together over this node. Raises ValueError for ladders whose matchers are no regular expressions."""

    def hands(notes: Notes) -> Hands:
        return AgentHands(
            node.files,
            node.processes.reader,
            apps=ClientApps(commands),
            warn=notes.announce,
            may_touch=lambda pid: node.bound is None or pid in node.bound,
        )

    around = Around(
        store, node.clock, node.place.boot_id, hands, durable,
        pid_namespace=own_namespace(), config_file=str(config_file),
    )  # fmt: skip
    return Acting(config, around)


def check_permissions(config: Config, files: Sequence[Path]) -> None:
    """While remedies are on for real, nobody else may write what says who is to be ended, or is run for it.

    Raises RemediesRefused.
    """
    remedies = config.remedies
    real = [each for each in remedies.ladders if not (remedies.dry_run if each.dry_run is None else each.dry_run)]
    programs = [Path(step.exec.command[0]) for each in real for step in each.steps if step.exec is not None]
    programs = [program for program in programs if program.is_absolute()]
    if real and (faults := list(writable_by_others([*files, *config.rule_files, *programs]))):
        raise RemediesRefused("\n".join(faults))
