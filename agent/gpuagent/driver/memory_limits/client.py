"""Ask `gpuagent-limit.service` over its socket to set memory limits, whoever the agent runs as: it has the ledger.

A request says until when somebody waits for it. What was sent and not answered by then is not known to be undone.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpuagent.core.memory_limits import (
    CGROUP_ROOT,
    LimitHolder,
    LimitRefused,
    LimitUnknown,
    MemoryLimit,
    SetLimit,
    limit_of,
)
from gpuagent.driver.memory_limits.folders import CgroupFolders
from gpuagent.driver.memory_limits.protocol import (
    LEDGER_NAME,
    LIFT,
    LIMITS,
    MOST_ANSWER_BYTES,
    SET,
    SOCKET,
    UNTIL,
    document_of,
    line_of,
)

ASK_SECONDS = 20.0
"""NVML is initialized for each request, which takes seconds where the GPU sleeps."""
WAY_OUT = "enable gpuagent-limit.socket (docs/remedies.md), or leave the step out"


class LimitHelperClient:
    """See `gpuagent.core.memory_limits.MemoryLimits`."""

    def __init__(
        self, socket_path: str | Path = SOCKET, root: str = CGROUP_ROOT, ask_seconds: float = ASK_SECONDS
    ) -> None:
        """`root` is where cgroup version 2 has to be."""
        self._socket = str(socket_path)
        self._folders = CgroupFolders(root)
        self._ask_seconds = ask_seconds

    def refusal(self) -> str:
        return self._folders.refusal() or helper_refusal(self._socket)

    def set(
        self, gpu_uuid: str, cgroup: str, inode: int, hard_bytes: int, holder: LimitHolder, *, rehearse: bool = False
    ) -> SetLimit:
        answer = self._ask({
            "do": SET, "gpu_uuid": gpu_uuid, "cgroup": cgroup, "inode": inode, "hard_bytes": hard_bytes,
            "holder": asdict(holder), "rehearse": rehearse,
        })  # fmt: skip
        try:
            return SetLimit(limit_of(answer["limit"]), int(answer["used_bytes"]))
        except (ValueError, KeyError, TypeError) as error:
            raise LimitUnknown(f"{self._socket} gave no answer that is one: {error}") from None

    def lift(self, gpu_uuid: str, cgroup: str, owner: str) -> str:
        answer = self._ask({"do": LIFT, "gpu_uuid": gpu_uuid, "cgroup": cgroup, "owner": owner})
        return str(answer.get("done", ""))

    def is_there(self, limit: MemoryLimit) -> bool:
        return self._folders.has(limit.cgroup, limit.inode)

    def limits(self) -> tuple[MemoryLimit, ...]:
        path = Path(self._socket)
        if not path.is_socket():
            if path.with_name(LEDGER_NAME).exists():
                raise LimitRefused(f"{path} is gone, and limits were set through it: {WAY_OUT}")
            return ()  # a helper that was never there has set none
        answer = self._ask({"do": LIMITS})
        try:
            return tuple(limit_of(each) for each in answer["limits"])
        except (ValueError, KeyError, TypeError) as error:
            raise LimitRefused(f"{self._socket} gave no answer that is one: {error}") from None

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        if refusal := self.refusal():
            raise LimitRefused(refusal)
        was_sent = False
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(self._ask_seconds)
                connection.connect(self._socket)
                until = time.clock_gettime(time.CLOCK_BOOTTIME) + self._ask_seconds
                was_sent = True  # from here on it may be done
                connection.sendall(line_of(request | {UNTIL: until}))
                answer = document_of(_line(connection, until))
        except (OSError, ValueError) as error:
            if was_sent:
                raise LimitUnknown(f"{self._socket} has not answered: {error}") from None
            raise LimitRefused(f"{self._socket}: {error}") from None
        if "refused" in answer:
            raise LimitRefused(str(answer["refused"]))
        if "unknown" in answer:
            raise LimitUnknown(str(answer["unknown"]))
        return answer


def _line(connection: socket.socket, until: float) -> bytes:
    """Read the answer. Raises TimeoutError at `until`, however slowly it comes."""
    text = b""
    while not text.endswith(b"\n") and len(text) <= MOST_ANSWER_BYTES:
        left = until - time.clock_gettime(time.CLOCK_BOOTTIME)
        if left <= 0:
            raise TimeoutError("timed out")
        connection.settimeout(left)
        part = connection.recv(65536)
        if not part:
            break
        text += part
    return text


def refusal_here(socket_path: str | Path = SOCKET, root: str = CGROUP_ROOT) -> str:
    """Return why an agent can set no limit on this machine, whatever its driver; "" if it can."""
    return CgroupFolders(root).refusal() or helper_refusal(socket_path)


def helper_refusal(socket_path: str | Path = SOCKET) -> str:
    """Return why no limit can be set; "" where the helper is there for this user."""
    if not Path(socket_path).is_socket():
        return f"root's helper sets memory limits, and there is no {socket_path}: {WAY_OUT}"
    if not os.access(socket_path, os.W_OK):
        return f"{socket_path} may not be used by the agent's user: {WAY_OUT}"
    return ""
