"""Asks docker, or podman in its place, what a container is called: over its unix socket, and nothing but that.

Docker Engine API, `GET /containers/{id}/json` (https://docs.docker.com/reference/api/engine/); podman serves the same
(`podman system service`). containerd's own interface is gRPC and is not spoken here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from gpuagent.ask import NoAgent, request
from gpuagent.procfs.printable import printable

_TIMEOUT_SECONDS = 2.0
_NAME_LIMIT_BYTES = 255
_OK, _NOT_FOUND = 200, 404


def docker_names(socket: Path) -> Callable[[str], str]:
    """What `ContainerNames` asks with."""

    def ask(container_id: str) -> str:
        try:
            status, body = request(socket, "GET", f"/containers/{container_id}/json", _TIMEOUT_SECONDS)
        except NoAgent as error:  # nobody there, or no right to the socket
            raise OSError(str(error)) from None
        if status == _NOT_FOUND:
            return ""
        if status != _OK:
            raise OSError(f"{socket}: HTTP {status}")
        return _name(body, container_id)

    return ask


def _name(body: bytes, container_id: str) -> str:
    """Without docker's slash; "" where the answer is of another container, or none at all."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(document, dict) or document.get("Id") != container_id:
        return ""
    name = document.get("Name")
    return printable(name.removeprefix("/"), _NAME_LIMIT_BYTES) if isinstance(name, str) else ""
