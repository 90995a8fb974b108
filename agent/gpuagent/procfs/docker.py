"""Ask docker, or podman in its place, about a container over its unix socket: its name, and its main process.

Docker Engine API, `GET /containers/{id}/json` (https://docs.docker.com/reference/api/engine/); podman serves the same
(`podman system service`). containerd's own interface is gRPC and is not spoken here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from gpuagent.core.api_client import AgentUnreachable, request
from gpuagent.procfs.printable import printable

_TIMEOUT_SECONDS = 2.0
_NAME_LIMIT_BYTES = 255
_OK, _NOT_FOUND = 200, 404


def docker_names(socket: Path) -> Callable[[str], str]:
    """What `ContainerNames` asks with."""

    def ask(container_id: str) -> str:
        return _name(_inspect(socket, container_id))

    return ask


class RunningContainer(NamedTuple):
    """What the runtime says of a container that runs."""

    main_pid: int
    """In the host's pid namespace."""
    name: str
    """"" for none."""


def docker_container(socket: Path, container_id: str) -> RunningContainer | None:
    """Ask the runtime about a container; None if it knows no such running one.

    Raises OSError where the runtime cannot be asked.
    """
    document = _inspect(socket, container_id)
    state = document.get("State")
    pid = state.get("Pid") if isinstance(state, dict) else None
    if not isinstance(pid, int) or isinstance(pid, bool) or pid <= 1:
        return None
    return RunningContainer(pid, _name(document))


def _inspect(socket: Path, container_id: str) -> dict[str, object]:
    """Return what the runtime says of a container; {} where it knows none, or speaks of another. Raises OSError.

    Only root's runtime and the agent's own user's is asked: its answer decides who is allowed, and who is ended.
    """
    try:
        path = f"/containers/{container_id}/json"
        status, body = request(socket, "GET", path, _TIMEOUT_SECONDS, peer_uids={0, os.geteuid()})
    except AgentUnreachable as error:  # nobody there, or no right to the socket
        raise OSError(str(error)) from None
    if status == _NOT_FOUND:
        return {}
    if status != _OK:
        raise OSError(f"{socket}: HTTP {status}")
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) and document.get("Id") == container_id else {}


def _name(document: dict[str, object]) -> str:
    """Return the name without docker's slash, "" for none."""
    name = document.get("Name")
    return printable(name.removeprefix("/"), _NAME_LIMIT_BYTES) if isinstance(name, str) else ""
