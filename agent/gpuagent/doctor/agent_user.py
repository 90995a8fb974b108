"""As whom the service runs and what it may do, for commands that root gives beside it.

State belongs to the agent's user. A check as root that goes by its own uid would call the agent's own files those of a
stranger.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Callable
from pathlib import Path

from gpuagent.config.models import Config
from gpuagent.core.api_client import listener
from gpuagent.procfs.machine import CAP_SYS_PTRACE, effective_capabilities, may_trace
from gpuagent.service.http_servers import control_socket

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
