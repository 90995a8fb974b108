"""Memory limits for an agent that is not root: it asks `gpuagent-limit.service` over a socket."""

from __future__ import annotations

import os
import socket
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpuagent.core.memory_limits import (
    CGROUP_ROOT,
    LimitHolder,
    LimitRefused,
    MemoryLimit,
    SetLimit,
    limit_of,
)
from gpuagent.driver.memory_limits.folders import CgroupFolders
from gpuagent.driver.memory_limits.protocol import (
    LIFT,
    LIMITS,
    MOST_ANSWER_BYTES,
    SET,
    SOCKET,
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
        self, gpu_uuid: str, cgroup: str, hard_bytes: int, holder: LimitHolder, *, rehearse: bool = False
    ) -> SetLimit:
        answer = self._ask({
            "do": SET, "gpu_uuid": gpu_uuid, "cgroup": cgroup, "hard_bytes": hard_bytes, "holder": asdict(holder),
            "rehearse": rehearse,
        })  # fmt: skip
        try:
            return SetLimit(limit_of(answer["limit"]), int(answer["used_bytes"]))
        except (ValueError, KeyError, TypeError) as error:
            raise LimitRefused(f"{self._socket} gave no answer that is one: {error}") from None

    def lift(self, gpu_uuid: str, cgroup: str) -> str:
        return str(self._ask({"do": LIFT, "gpu_uuid": gpu_uuid, "cgroup": cgroup}).get("done", ""))

    def is_there(self, limit: MemoryLimit) -> bool:
        return self._folders.has(limit.cgroup, limit.inode)

    def limits(self) -> tuple[MemoryLimit, ...]:
        if not Path(self._socket).is_socket():
            return ()  # a helper that was never there has set none
        answer = self._ask({"do": LIMITS})
        try:
            return tuple(limit_of(each) for each in answer["limits"])
        except (ValueError, KeyError, TypeError) as error:
            raise LimitRefused(f"{self._socket} gave no answer that is one: {error}") from None

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        if refusal := self.refusal():
            raise LimitRefused(refusal)
        text = b""
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(self._ask_seconds)
                connection.connect(self._socket)
                connection.sendall(line_of(request))
                while not text.endswith(b"\n") and len(text) <= MOST_ANSWER_BYTES:
                    part = connection.recv(65536)
                    if not part:
                        break
                    text += part
            answer = document_of(text)
        except (OSError, ValueError) as error:
            raise LimitRefused(f"{self._socket}: {error}") from None
        if "refused" in answer:
            raise LimitRefused(str(answer["refused"]))
        return answer


def refusal_here(uid: int, socket_path: str | Path = SOCKET, root: str = CGROUP_ROOT) -> str:
    """Return why an agent of this user can set no limit on this machine, whatever its driver; "" if it can."""
    return CgroupFolders(root).refusal() or ("" if uid == 0 else helper_refusal(socket_path))


def helper_refusal(socket_path: str | Path = SOCKET) -> str:
    """Return why an agent that is not root can set no limit; "" where the helper is there for it."""
    if not Path(socket_path).is_socket():
        return f"only root may set a memory limit, and there is no {socket_path}: {WAY_OUT}"
    if not os.access(socket_path, os.W_OK):
        return f"{socket_path} may not be used by the agent's user: {WAY_OUT}"
    return ""
