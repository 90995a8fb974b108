"""The one thing that takes root to cap a process: to set a memory limit on its cgroup, and to take it off.

`gpuagent-limit.service` runs it. It answers the agent's user and root, sets a limit where there is none, takes off
those that it has set, and ends when nobody has asked for a minute. Its ledger lies in /run: limits end with the boot.
What nobody waits for any more is not done. With `--lift-all` root has all of them taken off: before an uninstall.
"""

from __future__ import annotations

import os
import pwd
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from gpuagent.core.memory_limits import CGROUP_ROOT, LimitHolder, LimitRefused, LimitUnknown
from gpuagent.driver.memory_limits.folders import CgroupFolders
from gpuagent.driver.memory_limits.ledger import LimitLedger
from gpuagent.driver.memory_limits.nvml import NvmlMemoryLimits
from gpuagent.driver.memory_limits.protocol import (
    LEDGER_NAME,
    LIFT,
    LIMITS,
    MOST_REQUEST_BYTES,
    SET,
    SOCKET,
    UNTIL,
    document_of,
    line_of,
)
from gpuagent.driver.memory_limits.setter import MemoryLimitSetter
from gpuagent.driver.nvml.library import Library

LEDGER = Path(SOCKET).with_name(LEDGER_NAME)
AGENT_USER = "gpuagent"
_FIRST_DESCRIPTOR = 3
"""sd_listen_fds(3)."""
_IDLE_SECONDS = 60.0
_ASK_SECONDS = 5.0
_PEER = struct.Struct("3i")
"""struct ucred: pid, uid, gid."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def serve(
    listener: socket.socket, limits: MemoryLimitSetter, users: Callable[[], Collection[int]], idle_seconds: float
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


def _answer(connection: socket.socket, limits: MemoryLimitSetter, users: Collection[int]) -> dict[str, Any]:
    line = _line(connection)  # first: a connection that is shut with bytes in it gives the other end no answer
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    if _PEER.unpack(peer)[1] not in users:
        return {"refused": "only root and the agent's user may ask"}
    try:
        request = document_of(line)
        until = float(request.pop(UNTIL))
        return _do(request, limits, lambda: _is_waited_for(connection, until))
    except LimitUnknown as error:
        return {"unknown": str(error)}
    except LimitRefused as error:
        return {"refused": str(error)}
    except Exception as error:  # noqa: BLE001  whatever is asked: the next one is answered
        return {"refused": f"no request: {error!r}"}


def _is_waited_for(connection: socket.socket, until: float) -> bool:
    """Return whether whoever has asked waits still: neither too late, nor gone."""
    if time.clock_gettime(time.CLOCK_BOOTTIME) >= until:
        return False
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return not poll.poll(0)


def _line(connection: socket.socket) -> bytes:
    text = b""
    while not text.endswith(b"\n") and len(text) <= MOST_REQUEST_BYTES:
        part = connection.recv(MOST_REQUEST_BYTES)
        if not part:
            break
        text += part
    return text


def _do(request: dict[str, Any], limits: MemoryLimitSetter, is_wanted: Callable[[], bool]) -> dict[str, Any]:
    if not is_wanted():
        raise LimitRefused("it was asked for too late, and is not done")
    match request.pop("do", None):
        case "set":
            done = limits.set(
                str(request["gpu_uuid"]), str(request["cgroup"]), int(request["inode"]), int(request["hard_bytes"]),
                LimitHolder(**request["holder"]), rehearse=request["rehearse"] is not False, is_wanted=is_wanted,
            )  # fmt: skip
            return {"limit": done.limit.document(), "used_bytes": done.used_bytes}
        case "lift":
            return {"done": limits.lift(str(request["gpu_uuid"]), str(request["cgroup"]), str(request["owner"]))}
        case "limits":
            return {"limits": [each.document() for each in limits.limits()]}
    raise ValueError(f"one of {SET}, {LIFT}, {LIMITS} is to be done")


def _users() -> frozenset[int]:
    """Return who may ask: root, and the agent's user where there is one."""
    try:
        return frozenset({0, pwd.getpwnam(AGENT_USER).pw_uid})
    except KeyError:
        return frozenset({0})


def lift_all(limits: MemoryLimitSetter) -> int:
    """Take all limits off that are in the ledger, whichever agent has set them; return the exit status."""
    status = 0
    try:
        for each in limits.limits():
            try:
                sys.stdout.write(f"{limits.lift(*each.key, each.holder.owner)}\n")
            except LimitRefused as error:
                sys.stderr.write(f"the memory limit on {each.cgroup} could not be lifted: {error}\n")
                status = 1
    except LimitRefused as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return status


def main(arguments: Sequence[str] = ()) -> int:
    """Serve the socket that systemd hands over, or lift all; return the exit status."""
    wants_all = list(arguments) == ["--lift-all"]
    if not wants_all and (os.environ.get("LISTEN_PID") != str(os.getpid()) or os.environ.get("LISTEN_FDS") != "1"):
        sys.stderr.write("gpuagent-limit.socket starts this\n")
        return 1
    ledger = LimitLedger(LEDGER, _BOOT_ID.read_text("ascii").strip())
    setter = MemoryLimitSetter(NvmlMemoryLimits(Library()), ledger, CgroupFolders(CGROUP_ROOT))
    if wants_all:
        return lift_all(setter)
    serve(socket.socket(fileno=_FIRST_DESCRIPTOR), setter, _users, _IDLE_SECONDS)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
