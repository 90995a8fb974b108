"""Asking a running agent, with the standard library alone: a command should start at once."""

from __future__ import annotations

import http.client
import json
import os
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

DEFAULT_URL = "http://127.0.0.1:9837"
STATUS_PATH = "/api/v1/status"
_SYSTEM_SOCKET = Path("/run/gpuagent/control.sock")
_LARGEST_ANSWER = 64 * 1024**2
_TIMEOUT_SECONDS = 2.0


class NoAgent(Exception):
    """No agent answers there, and why."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_seconds: float) -> None:
        super().__init__("localhost", timeout=timeout_seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def default_socket() -> Path:
    """The system's agent, or this user's own if there is only that."""
    directory = os.environ.get("GPUAGENT_RUNTIME_DIR")
    if directory:
        return Path(directory) / "control.sock"
    own = os.environ.get("XDG_RUNTIME_DIR")
    if own and os.geteuid() != 0 and not _SYSTEM_SOCKET.exists():
        return Path(own) / "gpuagent" / "control.sock"
    return _SYSTEM_SOCKET


def request(target: Path | str, method: str, path: str, timeout_seconds: float = _TIMEOUT_SECONDS) -> tuple[int, bytes]:
    """One request over the control socket (a path) or to a URL; returns status and body.

    Raises:
        NoAgent: nothing answers there, or not in HTTP, or not in time.
    """
    try:
        connection = _connection(target, timeout_seconds)
    except ValueError as error:
        raise NoAgent(f"{target}: {error}") from None
    try:
        connection.request(method, path, headers={"Accept": "application/json"})
        response = connection.getresponse()
        body = response.read(_LARGEST_ANSWER + 1)
    except (OSError, http.client.HTTPException) as error:
        raise NoAgent(f"{target}: {_reason(error)}") from None
    finally:
        connection.close()
    if len(body) > _LARGEST_ANSWER:
        raise NoAgent(f"{target}: the answer is larger than {_LARGEST_ANSWER // 1024**2} MiB")
    return response.status, body


def fetch_document(target: Path | str, path: str = STATUS_PATH, timeout_seconds: float = _TIMEOUT_SECONDS) -> Any:
    """A JSON document of the agent.

    Raises:
        NoAgent: there is no agent, or what answers is none.
    """
    status, body = request(target, "GET", path, timeout_seconds)
    if status != http.HTTPStatus.OK:
        raise NoAgent(f"{target}: HTTP {status}")
    try:
        document = json.loads(body)
    except ValueError:
        raise NoAgent(f"{target}: the answer is not JSON") from None
    if not isinstance(document, dict) or "schema" not in document:
        raise NoAgent(f"{target}: the answer is not a gpuagent's")
    return document


def fetch_anywhere(control_socket: Path | None, url: str | None) -> Any:
    """The status by the control socket, else by the read-only address; by one of them alone if it was named.

    Raises:
        NoAgent: neither answers.
    """
    if url is not None:
        return fetch_document(url)
    if control_socket is not None:
        return fetch_document(control_socket)
    try:
        return fetch_document(default_socket())
    except NoAgent as error:
        try:
            return fetch_document(DEFAULT_URL)
        except NoAgent:
            raise error from None


def _connection(target: Path | str, timeout_seconds: float) -> http.client.HTTPConnection:
    if isinstance(target, Path):
        return _UnixConnection(target, timeout_seconds)
    parts = urlsplit(target if "//" in target else f"http://{target}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("not a URL such as http://127.0.0.1:9837")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname, parts.port, timeout=timeout_seconds)


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return f"no HTTP ({type(error).__name__})"
