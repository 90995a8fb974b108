"""Remedies of a real agent: put together from /proc, systemd and apps with a client, and asked for by people.

What people ask comes over the control socket.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuagent.clients.commands import ClientCommands
from gpuagent.config.remedy_settings import settings_of
from gpuagent.core.identity import SHOWN_FIELDS
from gpuagent.core.memory_limits import CGROUP_ROOT, LimitRefused, MemoryLimits
from gpuagent.driver.memory_limits.client import LimitHelperClient
from gpuagent.driver.memory_limits.folders import CgroupFolders
from gpuagent.driver.memory_limits.ledger import LimitLedger
from gpuagent.driver.memory_limits.nvml import NvmlMemoryLimits
from gpuagent.driver.memory_limits.setter import MemoryLimitSetter
from gpuagent.node import COMMAND_KEY_FILE, STATE_STEMS, Node, state_file
from gpuagent.procfs.containers import docker_container
from gpuagent.procfs.machine import own_namespace
from gpuagent_alerts.remedies.audit import NotRecorded
from gpuagent_alerts.remedies.execution.executor import AppFailure, NodeActionExecutor
from gpuagent_alerts.remedies.execution.reclaim import CacheReclaimer
from gpuagent_alerts.remedies.facts.command_digests import load_digests
from gpuagent_alerts.remedies.facts.fresh_lookup import TableLookup
from gpuagent_alerts.remedies.facts.job_starters import SupervisorUnits
from gpuagent_alerts.remedies.facts.never_entries import NeverListEntries
from gpuagent_alerts.remedies.files.permissions import CheckedFiles
from gpuagent_alerts.remedies.files.programs import ProgramCheck
from gpuagent_alerts.remedies.history import RemedyHistory
from gpuagent_alerts.remedies.manual_requests import (
    SHOWN_MEMBERS,
    TOGETHER,
    AnotherProcess,
    NoSuchProcess,
    read_identified,
)
from gpuagent_alerts.remedies.observation import ActionExecutor
from gpuagent_alerts.remedies.service import RemedyDependencies, RemedyService
from gpuagent_alerts.remedies.settings import RemedySettings
from gpuagent_alerts.remedies.steps import RemedyStep, StepKind
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.problem import StoreFailure
from gpuagent_exporters.api.process_routes import CommandFailure, NotDone

if TYPE_CHECKING:
    from gpuagent.config.models import Config


_OF_A_SCENARIO = "a scenario is played: the page cache of this machine is left alone"


class RemediesRefused(ValueError):
    """Remedies may not be on like this; the text has every reason on a line of its own."""


class ClientApps:
    """Apps with a client, as remedies ask them. See `gpuagent_alerts.remedies.execution.executor.Apps`."""

    def __init__(self, commands: ClientCommands) -> None:
        self._commands = commands

    async def release(self, pid: int, *, collect: bool = False) -> Mapping[str, Any]:
        with _app_failures():
            answer = await self._commands.release(pid, collect=collect)
        return {**answer, "released_bytes": answer.get("returned_bytes")}

    async def reset(self, pid: int) -> Mapping[str, Any]:
        with _app_failures():
            return await self._commands.reset(pid)

    async def notice(self, pid: int, reason: str, seconds: float) -> Mapping[str, Any]:
        with _app_failures():
            return await self._commands.notice(pid, reason, seconds)


@contextmanager
def _app_failures() -> Iterator[None]:
    try:
        yield
    except CommandFailure as failure:
        raise AppFailure(failure.reason, str(failure)) from None


def settings_maker(speed: float, *, durable: bool, faults: Collection[str] = ()) -> Callable[[Config], RemedySettings]:
    """Return what makes the settings of a configuration; `speed` is that of the node's clock.

    `faults` are those of the state. It may grow: what could have been forged once is not trusted until the next start.
    What is returned raises ValueError for ladders whose matchers are no regular expressions.
    """

    def off(config: Config) -> str:
        if not durable:
            return "there is no state directory to record them in"
        if not faults or not acts_for_real(config):
            return ""
        return f"others may have written the state: {'; '.join(faults)}; then restart gpuagent"

    return lambda config: settings_of(config, off=off(config), speed=speed)


def remedy_service_of(
    settings: RemedySettings,
    config: Config,
    node: Node,
    store: Store,
    commands: ClientCommands,
    *,
    durable: bool,
    config_file: Path,
) -> RemedyService:
    """Put remedies together over this node."""
    socket = config.processes.container_socket
    limits = memory_limits_of(node)
    never, supervisors = NeverListEntries(files=node.files), SupervisorUnits()
    digests = load_digests(state_file(config, COMMAND_KEY_FILE) if durable else None)

    def executor(history: RemedyHistory) -> ActionExecutor:
        return NodeActionExecutor(
            node.files,
            node.processes.reader,
            apps=ClientApps(commands),
            warn=history.announce,
            may_touch=lambda pid: node.bound is None or pid in node.bound,
            ask_runtime=None if socket is None else partial(docker_container, socket),
            program_check=ProgramCheck(),
            digests=digests,
            never=never,
            supervisors=supervisors,
            reclaimer=CacheReclaimer(off=_OF_A_SCENARIO if node.place.simulated else ""),
            limits=limits,
        )

    dependencies = RemedyDependencies(
        store, node.clock, node.place.boot_id, executor, str(config_file),
        pid_namespace=own_namespace(), digests=digests,
        lookup=TableLookup(node.files, node.processes, digests, supervisors), never=never, supervisors=supervisors,
        limits=limits,
    )  # fmt: skip
    return RemedyService(settings, dependencies)


def memory_limits_of(node: Node) -> MemoryLimits:
    """Return what sets memory limits: root's helper, or the driver of a scenario."""
    if not node.place.simulated:
        return LimitHelperClient()
    ledger = LimitLedger(None, node.place.boot_id)
    return MemoryLimitSetter(NvmlMemoryLimits(node.driver.library), ledger, CgroupFolders(CGROUP_ROOT))


def check_permissions(config: Config, files: CheckedFiles, programs: ProgramCheck | None = None) -> None:
    """Refuse a configuration that acts for real while others can write what says who is to be ended, or is run for it.

    `files` has read the configuration and reads the rule files, now if they have not been read; whoever uses them has
    to read them by it. In a dry run nothing is refused.

    Raises:
        RemediesRefused: with every fault.
    """
    real = _real_ladders(config)
    if not acts_for_real(config):
        return
    for path in config.rule_files:
        with suppress(OSError):  # told by who loads it
            files.read(path)
    if config.processes.container_socket is not None:  # who answers there says which containers are permitted
        files.check(config.processes.container_socket)
    faults = list(files.faults)
    check = programs or ProgramCheck(files.own_uid)
    for where, command in _commands(config, real):
        faults += [f"{where}: {fault}" for fault in check.faults(command)]
    if faults:
        raise RemediesRefused("\n".join(f"{fault} (required while remedies act for real)" for fault in faults))


def state_faults(config: Config, own_uid: int) -> tuple[str, ...]:
    """Return how others than root and the agent's user could have written the state, in words that say what to do.

    Alerts, leaks, limits and who holds memory outlive a restart there: whoever can write it chooses the victims.
    SQLite replays a write-ahead log that lies beside its database, whoever wrote it. `own_uid` is the agent's user.
    """
    files = CheckedFiles(own_uid)
    files.check_contents(config.state_dir, STATE_STEMS)
    return files.faults


def acts_for_real(config: Config) -> bool:
    """Return whether anything is done that is no dry run: by a ladder, or by hand."""
    return not config.remedies.dry_run or bool(_real_ladders(config))


def _real_ladders(config: Config) -> set[int]:
    remedies = config.remedies
    return {
        index
        for index, ladder in enumerate(remedies.ladders)
        if not (remedies.dry_run if ladder.dry_run is None else ladder.dry_run)
    }


def _commands(config: Config, real: set[int]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the commands that run as the agent's user, who is trusted like root: of steps, and of receivers."""
    for index, ladder in enumerate(config.remedies.ladders):
        for number, step in enumerate(ladder.steps):
            if index in real and step.exec is not None:
                yield f"remedies.ladders[{index}].steps[{number}].exec", step.exec.command
    for index, receiver in enumerate(config.receivers):
        command: tuple[str, ...] = getattr(getattr(receiver, receiver.kind), "command", ())
        if command:
            yield f"receivers[{index}].{receiver.kind}", command


Document = dict[str, Any]

_ASK = frozenset({"force", "dry_run", "gpu", SHOWN_MEMBERS, TOGETHER, *SHOWN_FIELDS})
_KILL = _ASK | {"steps"}
_RELEASE = _ASK | {"collect"}
_STEPS = {
    "release_cache": RemedyStep(StepKind.RELEASE_CACHE, 30.0),
    "reset": RemedyStep(StepKind.RESET, 60.0),
    "terminate": RemedyStep(StepKind.TERMINATE, 30.0),
    "kill": RemedyStep(StepKind.KILL, 60.0),
    "restart_unit": RemedyStep(StepKind.RESTART_UNIT, 60.0),
}


class RemedyCommands:
    """See `gpuagent_exporters.api.process_routes.RemedySource`."""

    def __init__(self, service: RemedyService) -> None:
        self._service = service

    async def remedies(self) -> Document:
        try:
            return await self._service.document()
        except StoreFailure as error:
            raise NotDone(503, f"the record cannot be read: {error}") from None

    async def identified(self) -> Document:
        return await self._service.identified()

    async def kill(self, pid: int, request: Mapping[str, Any], uid: int) -> Document:
        _only(request, _KILL)
        names = request.get("steps", ["terminate", "kill"])
        if not isinstance(names, list) or not names or not all(name in tuple(_STEPS) for name in names):
            raise ValueError(f"steps must be a list out of {', '.join(_STEPS)}")
        return await self._act(pid, [_STEPS[name] for name in names], request, uid)

    async def release(self, pid: int, request: Mapping[str, Any], uid: int) -> Document:
        _only(request, _RELEASE)
        step = replace(_STEPS["release_cache"], collect=_flag(request, "collect"))
        return await self._act(pid, [step], request, uid)

    async def unload(self, pid: int, request: Mapping[str, Any], uid: int) -> Document:
        _only(request, _ASK)
        return await self._act(pid, [_STEPS["reset"]], request, uid)

    async def stop(self, uid: int) -> str:
        return await self._service.stop(uid)

    async def lift(self, uid: int) -> tuple[list[str], list[str]]:
        try:
            return await self._service.lift(uid)
        except LimitRefused as error:
            raise NotDone(503, str(error)) from None

    async def reset(self, uid: int) -> None:
        try:
            await self._service.reset(uid)
        except NotRecorded as error:
            raise NotDone(503, f"it could not be recorded: {error}") from None

    async def _act(self, pid: int, steps: Sequence[RemedyStep], request: Mapping[str, Any], uid: int) -> Document:
        gpu = request.get("gpu", "")
        if not isinstance(gpu, str):
            raise ValueError("gpu must be a text: an index or a UUID")
        force, dry_run = _flag(request, "force"), _flag(request, "dry_run")
        shown = read_identified(request)
        try:
            return await self._service.kill(pid, steps, shown, uid=uid, force=force, dry_run=dry_run, gpu=gpu)
        except NoSuchProcess as error:
            raise NotDone(404, str(error)) from None
        except AnotherProcess as error:
            again = "look again with `gpuagent ps`, and ask again if it is still meant"
            raise NotDone(409, f"{error}; nothing was done: {again}") from None


def _only(request: Mapping[str, Any], known: frozenset[str]) -> None:
    if unknown := sorted(set(request) - known):
        raise ValueError(f"unknown: {', '.join(unknown)}; allowed: {', '.join(sorted(known))}")


def _flag(request: Mapping[str, Any], name: str) -> bool:
    value = request.get(name, False)
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false")
    return value
