"""The outside world of a monitor: this machine, or a scenario in its place."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from gpuagent.collector.holders import LastHolders
from gpuagent.collector.inventory import IndexRegistry, Inventory, count_pci_gpus
from gpuagent.collector.listings import Listings
from gpuagent.collector.repairs import FaultTracker, RepairsFile
from gpuagent.collector.saved_state import find_traces, write_stamp
from gpuagent.collector.sleep import read_runtime_power
from gpuagent.collector.tick import MonitorContext
from gpuagent.collector.trust import TrustRegistry
from gpuagent.config.models import Config
from gpuagent.core.clock import Clock, ScaledClock, SystemClock
from gpuagent.core.hardware import MemoryKind
from gpuagent.driver.nvml.driver import NvmlDriver
from gpuagent.driver.nvml.library import Library
from gpuagent.procfs.cgroup import CgroupLevel
from gpuagent.procfs.cgroup_owner import CgroupOwner, CgroupOwners
from gpuagent.procfs.containers import ContainerNames, PodNames, docker_names
from gpuagent.procfs.files import ProcFiles, RealProc
from gpuagent.procfs.host_memory import own_cgroup_folder, read_memory_pressure, read_whole_memory
from gpuagent.procfs.kernel_log import KernelLog
from gpuagent.procfs.machine import PidSpace, boot_id, boot_time_seconds
from gpuagent.procfs.table import PidfdWatcher, ProcessTable
from gpuagent.procfs.users import UserNames
from gpuagent.runtime.state_files import make_own_directory

log = logging.getLogger(__name__)

STATE_FILE = "state.db"
"""Alerts, leaks, limits and the record of remedies, in the state directory."""
LISTINGS_FILE = "listings.json"
"""Since when the driver has listed each number, beside it: see `gpuagent.collector.listings`."""
TRUST_FILE = "trust.json"
"""Which GPUs' figures are distrusted, beside it: see `gpuagent.collector.trust`."""
INVENTORY_FILE = "gpus.json"
INDICES_FILE = "indices.json"
"""What the indices of the GPUs mean, beside it: see `gpuagent.collector.inventory`."""
FAULTS_FILE = "faults.json"
"""GPUs that are lost or not repaired, beside it: see `gpuagent.collector.repairs`."""
HOLDERS_FILE = "holders.json"
"""Processes on the GPUs, so that one that has ended has a name, beside it: see `gpuagent.collector.holders`."""
COMMAND_KEY_FILE = "command.key"
"""Key of the digests of command lines, beside it: see `gpuagent_alerts.remedies.facts.command_digests`."""
_STATE_FILES = (
    STATE_FILE,
    LISTINGS_FILE,
    TRUST_FILE,
    INVENTORY_FILE,
    INDICES_FILE,
    FAULTS_FILE,
    HOLDERS_FILE,
    COMMAND_KEY_FILE,
)
STATE_STEMS = frozenset(name.partition(".")[0] for name in _STATE_FILES)
"""How the names of all files begin that the agent reads there."""


class NoSuchNode(Exception):
    """A scenario cannot be used, and why: every mistake on a line of its own."""


@dataclass(frozen=True, slots=True)
class Node:
    """What a monitor measures, and the time it does it by."""

    driver: NvmlDriver
    processes: ProcessTable
    clock: Clock
    place: MonitorContext
    files: ProcFiles
    bound: frozenset[int] | None = None
    """Under a scenario: the real processes that it was given. No other may ever be acted on."""


def real_node(config: Config, *, keep_inventory: bool = True) -> Node:
    """Open the machine that the agent runs on."""
    clock = SystemClock()
    boot = boot_id()
    processes = _table(config, clock, boot)
    if keep_inventory:
        place = _remembering_place(config, clock, boot)
    else:
        listings = Listings(None, boot, now_seconds=clock.now(), pid_space=PidSpace())
        place = MonitorContext(boot, trusts=TrustRegistry(), pci_gpus=count_pci_gpus, listings=listings)
    place = replace(place, fallen=KernelLog.open().fallen)
    place = replace(place, host_memory=read_whole_memory, memory_pressure=read_memory_pressure)
    if config.nvml.let_sleep:
        place = replace(place, power=read_runtime_power)
    driver = NvmlDriver(None, read_whole_memory, _memory_kind(config), own_cgroup_folder())
    return Node(driver, processes, clock, place, RealProc())


def _remembering_place(config: Config, clock: Clock, boot: str) -> MonitorContext:
    """Load what an agent before this one has left: a GPU that vanished while the agent was down is missed then."""
    traces = find_traces(config.state_dir, config.runtime_dir, boot, STATE_STEMS, LISTINGS_FILE)
    inventory = Inventory(state_file(config, INVENTORY_FILE), boot)
    ran_before = traces.ran_before or bool(inventory.known)
    indices = IndexRegistry(
        state_file(config, INDICES_FILE), lost=traces.any_state and not inventory.was_readable
    )  # fmt: skip
    inventory.create_file()
    repairs = _remembered_repairs(config, clock, boot)
    repairs.expect(inventory.expect(repairs.lost))
    return MonitorContext(
        boot_id=boot,
        inventory=inventory,
        indices=indices,
        trusts=TrustRegistry(state_file(config, TRUST_FILE), boot, seen_before=ran_before),
        pci_gpus=count_pci_gpus,
        repairs=repairs,
        holders=LastHolders(clock, state_file(config, HOLDERS_FILE), boot, PidSpace()),
        listings=Listings(
            state_file(config, LISTINGS_FILE),
            boot,
            ran_before=ran_before,
            now_seconds=clock.now(),
            pid_space=PidSpace(),
            on_first_list=partial(write_stamp, config.runtime_dir, boot),
        ),
    )


def _remembered_repairs(config: Config, clock: Clock, boot: str) -> FaultTracker:
    path = state_file(config, FAULTS_FILE)
    return FaultTracker(clock, None if path is None else RepairsFile(path, boot))


def lost_state(config: Config) -> str:
    """Say that the database is gone or empty while other state of an agent's is there; "" if not.

    To be called before anything is written: a power cut, a repair or half a restore leaves no first start.
    """
    path = config.state_dir / STATE_FILE
    try:
        if path.stat().st_size:
            return ""
    except FileNotFoundError:
        pass
    except OSError:
        return ""
    if not find_traces(config.state_dir, config.runtime_dir, "", STATE_STEMS, LISTINGS_FILE).any_state:
        return ""
    return f"{path} is missing or empty, and other state of an agent's is there: what was recorded in it is lost"


def simulated_node(
    config: Config,
    name: str,
    speed: float = 1.0,
    bind: Mapping[str, int] | None = None,
    *,
    keep_inventory: bool = False,
) -> Node:
    """Put a scenario in place of the driver; processes that it makes up have a /proc of their own.

    `bind` says which real processes stand for those that the scenario leaves open, by their keys. `keep_inventory`
    remembers its GPUs, and which of them are lost, in files of the scenario's own in the state directory.

    Raises:
        NoSuchNode: there is no such scenario, or it is at fault, or it has no such key, or there is no such process.
    """
    from gpuagent_simulator.captures.node import open_node  # noqa: PLC0415  a real node has no use for it
    from gpuagent_simulator.scenario import ScenarioError  # noqa: PLC0415

    clock = SystemClock() if speed == 1.0 else ScaledClock(speed)
    try:
        node = open_node(name, clock, fallback=RealProc())
    except ScenarioError as error:
        raise NoSuchNode(str(error)) from None
    boot = boot_id()
    real_users = UserNames(clock)
    processes = ProcessTable(
        node.proc,
        clock,
        watch=PidfdWatcher(),
        users=lambda uid: node.proc.user_name(uid) or real_users(uid),
        fresh_users=lambda uid: node.proc.user_name(uid) or real_users.fresh(uid),
        containers=_container_names(config, clock),
        boot_id=boot,
        boot_time_seconds=node.proc.boot_time_seconds,
        command=config.processes.command,
        redact=config.processes.redact,
        host_pid_namespace=node.host_pid_namespace,
        cgroup_owner=_simulated_owner(),
    )
    for key, pid in (bind or {}).items():
        try:
            node.bind(key, pid)
        except KeyError as error:
            raise NoSuchNode(str(error.args[0])) from None
        except ProcessLookupError:
            raise NoSuchNode(f"--bind {key}={pid}: there is no such process") from None
    log.warning("SIMULATED: every reading comes from the scenario %s", node.name)
    prefix = f"simulated-{hashlib.sha256(node.name.encode()).hexdigest()[:8]}-"
    gpus, faults = (
        state_file(config, prefix + name) if keep_inventory else None for name in (INVENTORY_FILE, FAULTS_FILE)
    )
    inventory = Inventory(gpus, boot)
    repairs = FaultTracker(clock, None if faults is None else RepairsFile(faults, boot))
    repairs.expect(inventory.expect(repairs.lost))
    place = MonitorContext(
        boot_id=boot,
        inventory=inventory,
        repairs=repairs,
        simulated=node.name,
        pci_gpus=node.pci_gpu_count,
        host_memory=node.host_memory,
        memory_pressure=node.memory_pressure,
    )
    driver = NvmlDriver(Library(node.library, max_pid=node.max_pid), node.host_memory, _memory_kind(config))
    return Node(driver, processes, clock, place, node.proc, frozenset((bind or {}).values()))


def _memory_kind(config: Config) -> MemoryKind | None:
    kind = config.nvml.memory_kind
    return None if kind == "auto" else MemoryKind(kind)


def _table(config: Config, clock: Clock, boot: str) -> ProcessTable:
    return ProcessTable(
        RealProc(),
        clock,
        watch=PidfdWatcher(),
        pods=PodNames(clock),
        containers=_container_names(config, clock),
        boot_id=boot,
        boot_time_seconds=boot_time_seconds(),
        command=config.processes.command,
        redact=config.processes.redact,
        container_cgroups=config.processes.container_cgroups,
    )


def _simulated_owner() -> CgroupOwner:
    """Cgroups of real processes as they are; made-up ones are root's, as no directory says otherwise."""
    real = CgroupOwners()

    def owner(level: CgroupLevel, *, whole: bool) -> bool | None:
        found = real(level, whole=whole)
        return True if found is None else found

    return owner


def _container_names(config: Config, clock: Clock) -> ContainerNames:
    socket = config.processes.container_socket
    return ContainerNames(clock, ask=docker_names(socket) if socket is not None else None)


def state_file(config: Config, name: str) -> Path | None:
    """Return a file in the state directory; None where there is none: everything goes on, and a restart forgets."""
    try:
        make_own_directory(config.state_dir)
    except OSError as error:
        log.warning("%s cannot be used, nothing will be remembered over a restart: %s", config.state_dir, error)
        return None
    return config.state_dir / name
