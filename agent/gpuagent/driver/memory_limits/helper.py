"""The one thing that takes root to cap a process: to set a memory limit on its cgroup, and to take it off.

`gpuagent-limit.service` runs it. It answers the agent's user and root, sets a limit where there is none, takes off
those that it has set, and ends when nobody has asked for a minute. Its ledger lies in /run: limits end with the boot.
"""

from __future__ import annotations

import os
import pwd
import socket
import struct
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from gpuagent.core.memory_limits import CGROUP_ROOT, LimitHolder, LimitRefused, MemoryLimits
from gpuagent.driver.memory_limits.folders import CgroupFolders
from gpuagent.driver.memory_limits.ledger import LimitLedger
from gpuagent.driver.memory_limits.nvml import NvmlMemoryLimits
from gpuagent.driver.memory_limits.protocol import (
    LIFT,
    LIMITS,
    MOST_REQUEST_BYTES,
    SET,
    document_of,
    line_of,
)
from gpuagent.driver.memory_limits.setter import MemoryLimitSetter
from gpuagent.driver.nvml.library import Library

LEDGER = Path("/run/gpuagent-limit/ledger.json")
AGENT_USER = "gpuagent"
_FIRST_DESCRIPTOR = 3
"""sd_listen_fds(3)."""
_IDLE_SECONDS = 60.0
_ASK_SECONDS = 5.0
_PEER = struct.Struct("3i")
"""struct ucred: pid, uid, gid."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def serve(
    listener: socket.socket, limits: MemoryLimits, users: Callable[[], Collection[int]], idle_seconds: float
) -> None:
    """Answer one connection after the other, until none has come for so long."""
    listener.settimeout(idle_seconds)
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:  # nobody has come for so long, or the socket was shut
            return
        with connection:
            connection.settimeout(_ASK_SECONDS)
            try:
                connection.sendall(line_of(_answer(connection, limits, users())))
            except OSError:  # it has gone, or says nothing
                continue


def _answer(connection: socket.socket, limits: MemoryLimits, users: Collection[int]) -> dict[str, Any]:
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    if _PEER.unpack(peer)[1] not in users:
        return {"refused": "only root and the agent's user may ask"}
    try:
        return _do(document_of(_line(connection)), limits)
    except LimitRefused as error:
        return {"refused": str(error)}
    except (ValueError, KeyError, TypeError) as error:
        return {"refused": f"no request: {error}"}


def _line(connection: socket.socket) -> bytes:
    text = b""
    while not text.endswith(b"\n") and len(text) <= MOST_REQUEST_BYTES:
        part = connection.recv(MOST_REQUEST_BYTES)
        if not part:
            break
        text += part
    return text


def _do(request: dict[str, Any], limits: MemoryLimits) -> dict[str, Any]:
    match request.pop("do", None):
        case "set":
            holder = LimitHolder(**request["holder"])
            done = limits.set(
                str(request["gpu_uuid"]), str(request["cgroup"]), int(request["hard_bytes"]), holder,
                rehearse=request["rehearse"] is not False,
            )  # fmt: skip
            return {"limit": done.limit.document(), "used_bytes": done.used_bytes}
        case "lift":
            return {"done": limits.lift(str(request["gpu_uuid"]), str(request["cgroup"]))}
        case "limits":
            return {"limits": [each.document() for each in limits.limits()]}
    raise ValueError(f"one of {SET}, {LIFT}, {LIMITS} is to be done")


def _users() -> frozenset[int]:
    """Return who may ask: root, and the agent's user where there is one."""
    try:
        return frozenset({0, pwd.getpwnam(AGENT_USER).pw_uid})
    except KeyError:
        return frozenset({0})


def main() -> int:
    """Serve the socket that systemd hands over; return the exit status."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or os.environ.get("LISTEN_FDS") != "1":
        sys.stderr.write("gpuagent-limit.socket starts this\n")
        return 1
    ledger = LimitLedger(LEDGER, _BOOT_ID.read_text("ascii").strip())
    setter = MemoryLimitSetter(NvmlMemoryLimits(Library()), ledger, CgroupFolders(CGROUP_ROOT))
    serve(socket.socket(fileno=_FIRST_DESCRIPTOR), setter, _users, _IDLE_SECONDS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
