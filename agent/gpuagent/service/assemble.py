"""Putting the agent together: the one place that knows every part."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from gpuagent.clients.commands import AutomaticBlame, ClientCommands
from gpuagent.clients.model_servers import Sources
from gpuagent.clients.server import client_server
from gpuagent.collector.tick import Monitor, TickTimeouts
from gpuagent.config.load import DEFAULT_PATH, ConfigError, load_config
from gpuagent.config.models import Config
from gpuagent.config.rules import load_rules
from gpuagent.core.background import Progress
from gpuagent.core.clock import Clock
from gpuagent.core.identity import NodeIdentity, node_name
from gpuagent.core.metrics.clients import CLIENT_FAMILIES, SOURCE_FAMILIES
from gpuagent.core.metrics.remedies import REMEDY_FAMILIES
from gpuagent.core.metrics.series import ExtraFamilies
from gpuagent.driver.backend import longest_gap
from gpuagent.node import STATE_FILE, Node, NoSuchNode, lost_state, real_node, simulated_node, state_file
from gpuagent.procfs.machine import machine_id, raise_descriptor_limit
from gpuagent.runtime import logs
from gpuagent.runtime.memory import Reserve, c_library, set_up_heap
from gpuagent.runtime.sd_notify import SystemdNotifier
from gpuagent.runtime.state_files import LOCK_FILE, StateInUseError, lock_state, make_own_directory
from gpuagent.service.alert_commands import AlertCommands
from gpuagent.service.alerting import Alerting
from gpuagent.service.http_servers import HttpServers, own_url
from gpuagent.service.leak_commands import LeakCommands
from gpuagent.service.leak_feedback import FOLDER, FeedbackStore
from gpuagent.service.otlp import OtlpPush
from gpuagent.service.pictures import LeakPictures
from gpuagent.service.remedies import (
    RemediesRefused,
    check_permissions,
    remedy_service_of,
    settings_maker,
    state_faults,
)
from gpuagent.service.renewal import Renewal
from gpuagent.service.reports import UsageReports
from gpuagent.service.service import Service, ServiceComponents
from gpuagent.service.usage import UsageCommands, usage_of
from gpuagent.service.view import View
from gpuagent_alerts.leak.sensor import LeakDetection
from gpuagent_alerts.remedies.files.permissions import CheckedFiles
from gpuagent_alerts.rules.model import RuleFileError, RuleGroup
from gpuagent_exporters.http.listeners import ListenError
from gpuagent_exporters.http.web_config import WebConfig, WebConfigError

log = logging.getLogger(__name__)


class StartError(Exception):
    """The agent cannot start, and why, in words for the person who started it."""


class AnotherAgentError(StartError):
    """Another agent uses the same state."""


@dataclass(frozen=True, slots=True)
class PreparedService:
    """A service that is ready to run."""

    service: Service
    renewal: Renewal
    state_lock: BinaryIO | None = None
    """Held for as long as this is: no other agent uses the state."""

    def run(self) -> bool:
        """Run it; returns whether a new process must take over.

        The process is to end, or to become another one, right after that: the loop is not closed, for that would wait
        for every thread, also for one that a disk or the driver holds.

        Raises:
            StartError: an address cannot be listened on.
        """
        runner = asyncio.Runner()
        try:
            return runner.run(self.service.run())
        except ListenError as error:
            runner.close()
            raise StartError(str(error)) from None


def assemble(
    path: Path | None, *, simulate: str | None = None, speed: float = 1.0, bind: Mapping[str, int] | None = None
) -> PreparedService:
    """Build the agent by its configuration. `bind` gives a scenario real processes.

    Raises:
        StartError: the configuration or the scenario is at fault: every fault at once.
    """
    faults: dict[str, None] = {}  # of the state, from all times at which it was examined

    def load(progress: Progress) -> tuple[Config, tuple[RuleGroup, ...]]:
        # What a scenario is read with is what a configuration is read with: a child would save nothing.
        files = CheckedFiles(begun=lambda path: progress.at(f"reading {path}"))
        config = load_config(path, is_root=os.geteuid() == 0, simulated=bool(simulate), read=files.read)
        check_permissions(config, files)
        progress.at(f"examining {config.state_dir}")
        faults.update(dict.fromkeys(state_faults(config, files.own_uid)))
        progress.at("compiling rules")
        return config, load_rules(config, read=files.read)

    reload_notes: list[str] = []

    def load_again(progress: Progress) -> tuple[Config, tuple[RuleGroup, ...]]:
        loaded = load(progress)
        reload_notes[:] = _tell_notes(*loaded, path, simulated=bool(simulate))
        return loaded

    try:
        config, rules = load(Progress())
        web = WebConfig(config.web_config_file)
    except (ConfigError, WebConfigError, RuleFileError, RemediesRefused) as error:
        raise StartError(_with_places(error, path)) from None
    lock = None if simulate else _lock_state(config, faults)
    reserve = Reserve()
    logs.set_up(config.log.level, config.log.format, on_shortage=reserve.release)
    _tell_notes(config, rules, path, simulated=bool(simulate))
    raise_descriptor_limit()
    set_up_heap(c_library())
    lost = "" if simulate else lost_state(config)
    node = _node_of(config, simulate, speed, bind)
    monitor = Monitor(node.driver, node.processes, node.clock, _pace(config, node.clock), node.place)
    renewal = Renewal()
    where = NodeIdentity(
        node=node_name(),
        state_file=state_file(config, STATE_FILE),
        simulated=node.place.simulated,
        machine=machine_id(),
        url=own_url(config.listen, platform.node(), encrypts=web.encrypts),
        lost=lost,
    )
    try:
        alerting = Alerting(config, rules, node.clock, where)
    except ValueError as error:
        raise StartError(f"routes: {error}") from None
    clients = client_server(config, node.clock, node.place.boot_id)
    leaks = LeakDetection(
        config.leaks.sensitivity,
        node.clock,
        store=None if node.place.simulated else alerting.store,
        boot_id=node.place.boot_id,
        overrides=config.leaks.overrides,
    )
    client_commands = ClientCommands(clients, node.clock)
    sources, usage = Sources(config.sources), usage_of(config, node, alerting.store, where)
    durable = where.state_file is not None
    remedy_settings = settings_maker(node.clock.speed, durable=durable, faults=faults)
    try:
        remedies = remedy_service_of(
            remedy_settings(config), config, node, alerting.store, client_commands,
            durable=durable, config_file=path or DEFAULT_PATH,
        )  # fmt: skip
    except ValueError as error:
        raise StartError(f"remedies: {error}") from None

    def extra_families() -> list[ExtraFamilies]:
        return [
            (CLIENT_FAMILIES, clients.figures()),
            (SOURCE_FAMILIES, sources.readings()),
            (REMEDY_FAMILIES, remedies.figures()),
            leaks.further(),
            usage.further(),
        ]

    alerting.listen(remedies.update_alerts, extra_families, remedies.remedy_of, remedies.under_way, remedies.freed)
    alerting.endings.ask(remedies.history.ending_of, node.processes.is_running)
    leak_commands = LeakCommands(
        leaks,
        node.clock,
        FeedbackStore(state_file(config, FOLDER)),
        node=where.node,
        simulated=bool(node.place.simulated),
    )
    alerting.receiver_factory.picture_of = LeakPictures(leak_commands.explain).picture_of
    otlp = OtlpPush(config.otlp, where.node, lambda: alerting.incidents, alerting.firing, node.clock.now)
    parts = ServiceComponents(
        config=config,
        clock=node.clock,
        monitor=monitor,
        view=View(
            config,
            node.clock,
            node.place.simulated,
            lambda: otlp.added_to(alerting.figures()),
            extra_families,
            lambda: len(remedies.left_alone),
        ),
        http_servers=HttpServers(config, web),
        notifier=SystemdNotifier(),
        alerting=alerting,
        clients=clients,
        sources=sources,
        client_commands=client_commands,
        automatic_blame=AutomaticBlame(client_commands, node.clock, enabled=config.leaks.blame == "automatic"),
        otlp=otlp,
        leaks=leaks,
        usage=usage,
        usage_commands=UsageCommands(usage),
        reports=UsageReports(config, node.clock, alerting.store, usage, alerting.outbox, alerting.delivery, where.node),
        leak_commands=leak_commands,
        remedies=remedies,
        remedy_settings=remedy_settings,
        reserve=reserve,
        alert_commands=AlertCommands(alerting, node.clock),
        load=load_again,
        notes=reload_notes,
        may_renew=lambda: renewal.due and not node.place.simulated,
    )
    return PreparedService(Service(parts), renewal, lock)


def _node_of(config: Config, simulate: str | None, speed: float, bind: Mapping[str, int] | None) -> Node:
    try:
        return simulated_node(config, simulate, speed, bind, keep_inventory=True) if simulate else real_node(config)
    except NoSuchNode as error:
        raise StartError(str(error)) from None


def _lock_state(config: Config, faults: dict[str, None]) -> BinaryIO | None:
    """Have the state for this agent alone; where that cannot be told, add a fault of the state, and go on.

    Raises AnotherAgentError where another agent has it.
    """
    try:
        make_own_directory(config.state_dir)
    except OSError:
        return None  # nothing will be remembered, and that is told
    try:
        return lock_state(config.state_dir)
    except StateInUseError as error:
        raise AnotherAgentError(str(error)) from None
    except OSError as error:
        path = config.state_dir / LOCK_FILE
        faults[f"{path} cannot be locked ({error.strerror or error}): another agent may use this state"] = None
        return None


def _with_places(error: Exception, path: Path | None) -> str:
    """Return the faults; those of names in the configuration have file and line."""
    if not isinstance(error, RuleFileError):
        return str(error)
    from gpuagent.config_notes.notes import ConfigFile  # noqa: PLC0415  most configurations have no fault

    file = ConfigFile(path or DEFAULT_PATH)
    return "\n".join(file.place(line) for line in str(error).splitlines())


def _tell_notes(config: Config, rules: Iterable[RuleGroup], path: Path | None, *, simulated: bool) -> list[str]:
    """Log what would be noticed only when it was needed; return it."""
    acts = config.remedies.ladders or config.budgets or config.remedies.allow.users
    if not (acts or config.receivers or config.routes):
        return []
    from gpuagent.config_notes.notes import ConfigFile, Machine, config_notes  # noqa: PLC0415
    from gpuagent.config_notes.user_database import no_user_problems, no_users  # noqa: PLC0415  as above

    of_none = Machine(
        no_user_problems, (), may_trace=lambda: None, accounts=no_users, reclaim_refusal=lambda: "",
        limit_refusal=lambda: "",
    )  # fmt: skip
    machine = of_none if simulated else None
    notes = config_notes(config, rules, ConfigFile(path or DEFAULT_PATH), machine)
    for note in notes:
        log.warning("%s", note)
    return notes


def _pace(config: Config, clock: Clock) -> TickTimeouts:
    return TickTimeouts(
        fresh_seconds=max(config.nvml.stuck_after * clock.speed, 2 * config.poll_interval),
        longest_gap_seconds=longest_gap(config.poll_interval, clock.speed),
        deadline_seconds=max(0.8 * config.poll_interval / clock.speed, 0.05),
    )
