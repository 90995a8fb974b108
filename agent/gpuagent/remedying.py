"""Remedies of a real agent: its hands are put together from /proc, systemd, and apps with an embedded client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuagent.acting.agent import Acting, Around
from gpuagent.acting.hands import AgentHands
from gpuagent.acting.notes import Notes
from gpuagent.acting.permissions import CheckedFiles
from gpuagent.acting.programs import ProgramCheck
from gpuagent.clients.commands import ClientCommands
from gpuagent.node import STATE_STEMS, Node
from gpuagent.procfs.docker import docker_container
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
    socket = config.processes.container_socket

    def hands(notes: Notes) -> Hands:
        return AgentHands(
            node.files,
            node.processes.reader,
            apps=ClientApps(commands),
            warn=notes.announce,
            may_touch=lambda pid: node.bound is None or pid in node.bound,
            ask_runtime=None if socket is None else partial(docker_container, socket),
            program_check=ProgramCheck(),
        )

    around = Around(
        store, node.clock, node.place.boot_id, hands, durable,
        pid_namespace=own_namespace(), config_file=str(config_file),
    )  # fmt: skip
    return Acting(config, around)


def check_permissions(config: Config, files: CheckedFiles, programs: ProgramCheck | None = None) -> None:
    """Refuse a configuration that acts for real while others can write what says who is to be ended, or is run for it.

    `files` has read the configuration and reads the rule files, now if they have not been read; whoever uses them has
    to read them by it. In a dry run nothing is refused.

    Raises:
        RemediesRefused: with every fault.
    """
    remedies = config.remedies
    dry = {
        index: remedies.dry_run if ladder.dry_run is None else ladder.dry_run
        for index, ladder in enumerate(remedies.ladders)
    }
    if remedies.dry_run and all(dry.values()):
        return
    for path in config.rule_files:
        with suppress(OSError):  # told by who loads it
            files.read(path)
    # Alerts, leaks, limits and who holds memory outlive a restart there: whoever can write it chooses the victims.
    # SQLite replays a write-ahead log that lies beside its database, whoever wrote it.
    files.check_contents(config.state_dir, STATE_STEMS)
    if config.processes.container_socket is not None:  # who answers there says which containers are permitted
        files.check(config.processes.container_socket)
    faults = list(files.faults)
    check = programs or ProgramCheck(files.own_uid)
    for where, command in _commands(config, {index for index, is_dry in dry.items() if not is_dry}):
        faults += [f"{where}: {fault}" for fault in check.faults(command)]
    if faults:
        raise RemediesRefused("\n".join(f"{fault} (required while remedies act for real)" for fault in faults))


def _commands(config: Config, real: set[int]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What is run as the agent's user, who is trusted as root is: for a step, and for a message."""
    for index, ladder in enumerate(config.remedies.ladders):
        for number, step in enumerate(ladder.steps):
            if index in real and step.exec is not None:
                yield f"remedies.ladders[{index}].steps[{number}].exec", step.exec.command
    for index, receiver in enumerate(config.receivers):
        if receiver.exec is not None:
            yield f"receivers[{index}].exec", receiver.exec.command
