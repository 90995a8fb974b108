"""Send requests to a running agent, with the standard library alone: a command should start at once."""

from __future__ import annotations

import base64
import contextlib
import errno
import http.client
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from gpuagent.core.identity import SIMULATED_NAME

DEFAULT_URL = "http://127.0.0.1:9837"
STATUS_PATH = "/api/v1/status"
SCHEMA = 1
SYSTEM_SOCKET = Path("/run/gpuagent/control.sock")
_LARGEST_ANSWER = 64 * 1024**2
_TIMEOUT_SECONDS = 2.0
_UCRED = struct.Struct("iII")
"""`struct ucred`: pid, uid, gid (unix(7))."""


class AgentUnreachable(Exception):
    """No agent answers there, and why."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_seconds: float, peer_uids: Collection[int] | None = None) -> None:
        super().__init__("localhost", timeout=timeout_seconds)
        self._path = path
        self._peer_uids = peer_uids

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
        if self._peer_uids is not None:
            uid = _listener_of(self.sock).uid
            if uid not in self._peer_uids:
                raise PermissionError(errno.EPERM, f"a process of uid {uid} listens there, which is not trusted")


class Listener(NamedTuple):
    """Who called listen(2) on a unix socket, as the kernel noted it (unix(7)): nothing that the peer says."""

    pid: int
    uid: int


def _listener_of(connected: socket.socket) -> Listener:
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return Listener(*_UCRED.unpack(credentials)[:2])


def listener(path: Path, timeout_seconds: float = _TIMEOUT_SECONDS) -> Listener | None:
    """Return who listens on a unix socket; None where nobody does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(timeout_seconds)
        try:
            probe.connect(str(path))
            return _listener_of(probe)
        except OSError:
            return None


def default_socket(
    environ: Mapping[str, str] = os.environ, *, is_root: bool | None = None, system: Path = SYSTEM_SOCKET
) -> Path:
    """Return the socket of the system's agent, else of this user's own, else of a simulated node's."""
    directory = environ.get("GPUAGENT_RUNTIME_DIR")
    if directory:
        return Path(directory) / "control.sock"
    own = environ.get("XDG_RUNTIME_DIR")
    if is_root is None:
        is_root = os.geteuid() == 0
    usual = system if is_root or not own or _is_there(system) else Path(own, "gpuagent", system.name)
    simulated = usual.parent.with_name(SIMULATED_NAME) / usual.name
    return simulated if not _is_there(usual) and _is_there(simulated) else usual


def _is_there(path: Path) -> bool:
    """Return whether the socket is there, also in a directory that this user may not enter: its refusal tells more."""
    try:
        path.lstat()
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def request(
    target: Path | str,
    method: str,
    path: str,
    timeout_seconds: float = _TIMEOUT_SECONDS,
    *,
    body: Any = None,
    peer_uids: Collection[int] | None = None,
) -> tuple[int, bytes]:
    """Send one request over the control socket (a path) or to a URL; return status and body.

    `timeout_seconds` is for the whole of it: a peer that sends a byte a second does not prolong it. `body` is sent as
    JSON, unless it is None. Of a control socket, `peer_uids` are the users who may answer; None means any.

    Raises:
        AgentUnreachable: nothing answers there, or not in HTTP, or not in time, or another user than `peer_uids`.
    """
    try:
        connection, headers = _connection(target, timeout_seconds, peer_uids)
    except ValueError as error:
        raise AgentUnreachable(f"{_shown(target)}: {error}") from None
    headers["Accept"] = "application/json"
    sent = None
    if body is not None:
        sent = json.dumps(body).encode()
        headers["Content-Type"] = "application/json"
    deadline = time.monotonic() + timeout_seconds
    guard = threading.Timer(timeout_seconds, hang_up, (connection,))
    try:
        connection.connect()
        guard.start()
        with suppress(BrokenPipeError):  # who refuses by the head alone may close before it has read the body
            connection.request(method, path, sent, headers)
        with connection.getresponse() as response:  # it holds the socket open on its own
            answer = response.read(_LARGEST_ANSWER + 1)
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = "no answer in time" if time.monotonic() >= deadline else _reason(error)
        raise AgentUnreachable(f"{_shown(target)}: {reason}") from None
    finally:
        guard.cancel()
        connection.close()
    if time.monotonic() >= deadline:  # what has arrived was cut off
        raise AgentUnreachable(f"{_shown(target)}: no answer in time")
    if len(answer) > _LARGEST_ANSWER:
        raise AgentUnreachable(f"{_shown(target)}: the answer is larger than {_LARGEST_ANSWER // 1024**2} MiB")
    return response.status, answer


def fetch_document(target: Path | str, path: str = STATUS_PATH, timeout_seconds: float = _TIMEOUT_SECONDS) -> Any:
    """Return a JSON document of the agent.

    Raises:
        AgentUnreachable: there is no agent, or what answers is none, or is of another time.
    """
    status, body = request(target, "GET", path, timeout_seconds)
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    where = _shown(target)
    if status != http.HTTPStatus.OK:
        message = document.get("message") if isinstance(document, dict) else None
        raise AgentUnreachable(f"{where}: HTTP {status}{f' ({_printable(message)})' if message else ''}")
    if not isinstance(document, dict) or "schema" not in document:
        raise AgentUnreachable(f"{where}: the answer is not a gpuagent's")
    if document["schema"] != SCHEMA:
        raise AgentUnreachable(f"{where}: the agent's version is too far from this command's: update the older one")
    return document


def fetch_anywhere(control_socket: Path | None, url: str | None, *, usual: Sequence[Path | str] | None = None) -> Any:
    """Return the status from the place that was named, else from the first of the `usual` ones that answers.

    Those are the control socket and the read-only address, which is open to users that the socket is not for.

    Raises:
        AgentUnreachable: none answers; the reason is that of the first.
    """
    named = url if url is not None else control_socket
    places = (default_socket(), DEFAULT_URL) if usual is None else usual
    first: AgentUnreachable | None = None
    for place in [named] if named is not None else places:
        try:
            return fetch_document(place)
        except AgentUnreachable as error:
            first = first or error
    raise first or AgentUnreachable("nobody was asked")


def _connection(
    target: Path | str, timeout_seconds: float, peer_uids: Collection[int] | None
) -> tuple[http.client.HTTPConnection, dict[str, str]]:
    if isinstance(target, Path):
        return _UnixConnection(target, timeout_seconds, peer_uids), {}
    parts = urlsplit(target if "//" in target else f"http://{target}")
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("not a URL such as http://127.0.0.1:9837")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    headers = {}
    if parts.username is not None:
        credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(credentials.encode()).decode()}"
    return kind(parts.hostname, parts.port, timeout=timeout_seconds), headers


def hang_up(connection: http.client.HTTPConnection) -> None:
    """Shut the connection down from the guard's thread, so that whoever is reading sees the end."""
    sock = connection.sock
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def _shown(target: Path | str) -> str:
    """Return a target for a message, without its password."""
    before, at, host = str(target).rpartition("@")
    if not at or isinstance(target, Path):
        return str(target)
    scheme, slashes, _ = before.partition("//")
    return f"{scheme}{slashes}{host}" if slashes else host


def _printable(message: object) -> str:
    """Return what a stranger says, fit for a terminal."""
    return "".join(character if character.isprintable() else "?" for character in str(message)[:200])


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return f"no HTTP ({type(error).__name__})"
