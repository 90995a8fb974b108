"""Checks of the agent's own places: configuration and the files that it names, directories, sockets.

They are about the user that the service runs as. State belongs to that user: a check as root that goes by its own uid
would call the agent's own files those of a stranger.
"""

from __future__ import annotations

import grp
import os
import pwd
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from gpuagent import __version__
from gpuagent.config.load import DEFAULT_PATH, ConfigError, load_config
from gpuagent.config.models import Config
from gpuagent.config.rules import implausible_rules, load_rules, unknown_metrics
from gpuagent.config_notes.notes import ConfigFile, Machine, config_notes
from gpuagent.config_notes.user_database import no_user_problems, no_users
from gpuagent.core.api_client import AgentUnreachable, fetch_document, listener
from gpuagent.core.identity import SIMULATED_NAME
from gpuagent.doctor.finding import Finding, Level
from gpuagent.doctor.machine import managed_memory
from gpuagent.driver.memory_limits.client import refusal_here
from gpuagent.procfs.machine import CAP_SYS_PTRACE, effective_capabilities, may_trace
from gpuagent.service.http_servers import GROUP, control_socket
from gpuagent.service.remedies import RemediesRefused, acts_for_real, check_permissions, state_faults
from gpuagent_alerts.remedies.execution.reclaim import helper_refusal
from gpuagent_alerts.remedies.files.permissions import CheckedFiles
from gpuagent_alerts.rules.model import RuleFileError
from gpuagent_exporters.http.listeners import parse_listen
from gpuagent_exporters.http.web_config import WebConfig, WebConfigError

_UNIT = "gpuagent.service"
_SECONDS = 5.0

ShowUnit = Callable[[], str]


def show_unit() -> str:
    """Return `LoadState=`, `User=` and `AmbientCapabilities=` of the unit, as systemd tells them; "" for none."""
    command = ["systemctl", "show", "--property=LoadState,User,AmbientCapabilities", _UNIT]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def agent_uid(config: Config, show: ShowUnit = show_unit, own: int | None = None) -> int:
    """Return the uid of the agent that runs by this configuration, or would run.

    That is the user of whoever listens on the control socket. Where nobody does, and root asks: the `User=` of the
    unit, else the owner of the state directory. Anybody else runs an agent of their own.
    """
    own = os.geteuid() if own is None else own
    running = listener(control_socket(config))
    if running is not None:
        return running.uid
    if own != 0:
        return own
    by_unit = _uid_of_unit(show())
    return by_unit if by_unit is not None else _owner(config.state_dir)


def agent_may_trace(config: Config, show: ShowUnit = show_unit, own: int | None = None) -> bool | None:
    """Return whether the agent has, or would have, CAP_SYS_PTRACE; None is unknown. See `agent_uid`."""
    own = os.geteuid() if own is None else own
    running = listener(control_socket(config))
    if running is not None:
        found = effective_capabilities(running.pid)
        return None if found is None else bool(found >> CAP_SYS_PTRACE & 1)
    if own != 0:
        return may_trace()
    text = show()
    uid = _uid_of_unit(text)
    if uid is None or uid == 0:  # what root keeps is said by more than one line of a unit
        return None
    return "cap_sys_ptrace" in _properties(text).get("AmbientCapabilities", "").lower().split()


def _properties(text: str) -> dict[str, str]:
    return dict(line.partition("=")[::2] for line in text.splitlines())


def _uid_of_unit(text: str) -> int | None:
    """Return whom the unit runs as; None where there is no unit, or no such user."""
    properties = _properties(text)
    if properties.get("LoadState") != "loaded":
        return None
    name = properties.get("User") or "root"
    if name.isdecimal():
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def _owner(directory: Path) -> int:
    try:
        return directory.stat().st_uid
    except OSError:
        return 0


class ConfigFindings(NamedTuple):
    """What was found, in the words of who refuses it."""

    faults: tuple[str, ...]
    notes: tuple[str, ...]
    """Rules that can never fire, ladders that can never act, secrets that are missing, alerts that go to nobody."""


def examine_config(
    config: Config, path: Path, machine: Machine | None = None, own_uid: int | None = None
) -> ConfigFindings:
    """Rule files, TLS and passwords, and who may write what remedies go by; `path` is the configuration's.

    `own_uid` is the user of the agent, by default whoever `agent_uid` finds.
    """
    agent = agent_uid(config) if own_uid is None else own_uid
    machine = machine or Machine(
        may_trace=lambda: agent_may_trace(config),
        reclaim_refusal=lambda: helper_refusal() if agent else "",
        limit_refusal=refusal_here,
    )
    faults: list[str] = []
    notes: list[str] = []
    file = ConfigFile(path)

    def look_at_rules() -> None:
        groups = load_rules(config)
        notes.extend(str(note) for note in (*unknown_metrics(groups), *implausible_rules(groups)))
        notes.extend(config_notes(config, groups, file, machine, asked=True))

    looks: tuple[Callable[[], object], ...] = (
        look_at_rules,
        lambda: _check(config, path, agent),
        lambda: WebConfig(config.web_config_file),
    )
    for look in looks:
        try:
            look()
        except (RuleFileError, RemediesRefused, WebConfigError) as error:
            faults += [file.place(line) for line in str(error).splitlines()]
    return ConfigFindings((*faults, *_examine_state(config, agent)), tuple(notes))


def _check(config: Config, path: Path, own_uid: int) -> None:
    files = CheckedFiles(own_uid)
    with suppress(OSError):  # told by who reads it
        files.read(path)
    check_permissions(config, files)


def _examine_state(config: Config, own_uid: int) -> tuple[str, ...]:
    """Return what keeps remedies off, though the agent starts."""
    if not acts_for_real(config):
        return ()
    return tuple(f"{fault} (until then remedies are off)" for fault in state_faults(config, own_uid))


def configuration(path: Path | None, *, simulated: bool = False) -> tuple[Config, list[Finding]]:
    """Read the configuration, or the defaults if it is at fault; then the files that it names."""
    try:
        config = load_config(path, is_root=os.geteuid() == 0, simulated=simulated)
    except ConfigError as error:
        found = [Finding("configuration", Level.FAILURE, line) for line in str(error).splitlines()]
        return Config(), found
    of_none = Machine(
        no_user_problems, (), may_trace=lambda: None, accounts=no_users, reclaim_refusal=lambda: "",
        limit_refusal=lambda: "",
    )  # fmt: skip
    machine = of_none if simulated else None
    beside = examine_config(config, path or DEFAULT_PATH, machine)
    found = [Finding("configuration", Level.FAILURE, line) for fault in beside.faults for line in fault.splitlines()]
    found += [Finding("configuration", Level.WARNING, note) for note in beside.notes]
    return config, found or [Finding("configuration", Level.OK, str(path) if path else "no fault")]


def directories(config: Config) -> Iterator[Finding]:
    """Whether this user could keep state and open the sockets."""
    for key in ("state_dir", "runtime_dir"):
        path: Path = getattr(config, key)
        existing = path
        while not existing.exists() and existing != existing.parent:
            existing = existing.parent
        if os.access(existing, os.W_OK | os.X_OK):
            yield Finding(key, Level.OK, f"{path}{'' if path.exists() else ' can be made'}")
        else:
            yield Finding(key, Level.INFO, f"{path} cannot be written by this user",
                          "only the user that runs the service needs to")  # fmt: skip


def access() -> Iterator[Finding]:
    """Report on the group that may command the agent."""
    try:
        members = grp.getgrnam(GROUP)
    except KeyError:
        yield Finding("group", Level.INFO, f"there is no group {GROUP}: only root and the agent's user may command it")
        return
    if os.geteuid() == 0 or members.gr_gid in os.getgroups():
        yield Finding("group", Level.OK, f"this user may use the control socket ({GROUP})")
    else:
        yield Finding("group", Level.INFO, f"this user is not in the group {GROUP}",
                      f"usermod -aG {GROUP} USER lets a user command the agent")  # fmt: skip


def agent(config: Config) -> Iterator[Finding]:
    """Whether one runs, and whether it is the installed version."""
    try:
        document = fetch_document(control_socket(config))
    except AgentUnreachable as error:
        simulated = _simulated_agent(config)
        if simulated is None:
            text, advice = f"none is running ({error})", "gpuagent run, or systemctl start gpuagent"
        else:
            text = f"only a simulated one is running (scenario {simulated['agent']['simulated']})"
            advice = "gpuagent doctor --simulate SCENARIO examines a simulated node"
        yield Finding("agent", Level.INFO, text, advice)
        yield from _address(config, simulated)
        return
    running = str(document.get("agent", {}).get("version"))
    if running != __version__:
        yield Finding("agent", Level.WARNING, f"version {running} is running, {__version__} is installed",
                      "systemctl restart gpuagent")  # fmt: skip
    else:
        yield Finding("agent", Level.OK, f"version {running} is running")
    yield from managed_memory(document)
    yield from _locked_pages(config, document)
    for problem in document.get("problems", []):
        yield Finding("agent", Level.WARNING, str(problem.get("text")), str(problem.get("advice") or ""))


def _locked_pages(config: Config, document: Mapping[str, Any], proc: Path = Path("/proc")) -> Iterator[Finding]:
    """Whether an agent that has to act when memory runs out keeps its own pages then."""
    running = listener(control_socket(config))
    unified = any(gpu.get("memory_kind") == "unified" for gpu in document.get("gpus", ()))
    if running is None or not unified or not config.remedies.ladders:
        return
    try:
        lines = (proc / str(running.pid) / "status").read_bytes().split(b"\n")
        locked = next(int(line.split()[1]) for line in lines if line.startswith(b"VmLck:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return
    if locked:
        yield Finding("locked pages", Level.OK, "the agent keeps its pages when memory is short")
    else:
        yield Finding("locked pages", Level.WARNING,
                      "the agent's pages can be taken when memory is short: its ladders would wait for the disk then",
                      "install systemd/gpuagent-unified-memory.conf as a drop-in, and restart it")  # fmt: skip


def _simulated_agent(config: Config) -> Mapping[str, Any] | None:
    """Return the status of the simulated agent that `gpuagent status` would show, None where none answers."""
    usual = control_socket(config)
    try:
        document = fetch_document(usual.parent.with_name(SIMULATED_NAME) / usual.name)
    except AgentUnreachable:
        return None
    return document if document.get("agent", {}).get("simulated") else None


def _is_same_agent(listen: str, document: Mapping[str, Any]) -> bool:
    """Return whether the agent of this status serves this address."""
    host, port = parse_listen(listen)
    try:
        found = fetch_document(f"http://{f'[{host}]' if ':' in host else host}:{port}")
    except AgentUnreachable:
        return False
    return bool(found.get("agent", {}).get("pid") == document.get("agent", {}).get("pid"))


def _address(config: Config, simulated: Mapping[str, Any] | None = None) -> Iterator[Finding]:
    """Whether the address is free, since no agent has it; a simulated one may."""
    if not config.listen:
        return
    host, port = parse_listen(config.listen)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if simulated is not None and _is_same_agent(config.listen, simulated):
                yield Finding("listen", Level.INFO, f"{config.listen} is the simulated agent's",
                              "end it before an agent of this node is started")  # fmt: skip
                return
            yield Finding("listen", Level.FAILURE, f"{config.listen}: {error.strerror}",
                          "set listen to another port, or find who has it: ss -ltnp")  # fmt: skip
        else:
            yield Finding("listen", Level.OK, f"{config.listen} is free")
