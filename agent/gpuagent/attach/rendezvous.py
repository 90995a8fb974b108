"""The directory with the script that a process is to run and the socket on which it reports.

It belongs to the target's user and only that user and root may enter it. It is made below a directory that nobody else
can write, never in /tmp, and both files are removed as soon as the process has connected.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import struct
from pathlib import Path
from typing import Any, Self

from gpuagent.attach import bootstrap
from gpuagent.attach.target import NotAttachable, Target
from gpuagent_alerts.remedies.files.path_walk import walk

SYSTEM_DIRECTORY = "/run/gpuagent-attach"
_MAX_SOCKET_PATH_BYTES = 107
_MAX_LINE_BYTES = 64 * 1024
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid (unix(7), SO_PEERCRED)


def find_base(own_uid: int, environment: dict[str, str]) -> str:
    """Return the directory below which to make ours; it is made where it is missing.

    Raises:
        NotAttachable: others can write it, or it cannot be made.
    """
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    if own_uid == 0:
        base, mode = SYSTEM_DIRECTORY, 0o711
    elif runtime.startswith("/"):
        base, mode = f"{runtime.rstrip('/')}/gpuagent-attach", 0o700
    else:
        base, mode = f"{environment.get('HOME', '').rstrip('/')}/.gpuagent-attach", 0o700
    return check_base(base, mode, own_uid)


def check_base(base: str, mode: int, own_uid: int) -> str:
    """Make a directory where it is missing, and return its path.

    Raises:
        NotAttachable: others can write it or a directory above, or it cannot be made.
    """
    try:
        with contextlib.suppress(FileExistsError):
            Path(base).mkdir(mode)
    except OSError as error:
        raise NotAttachable(f"{base} cannot be made: {error.strerror}.") from None
    with walk(base, {0, own_uid}) as walked:
        if walked.faults or not walked.is_directory():
            raise NotAttachable(f"{walked.faults[0] if walked.faults else f'{base} is no directory'}.")
    return base


def script_text(client_directory: str, socket_path: str) -> str:
    """Return what the process is to run: the fixed text of `bootstrap`, and the call."""
    source = Path(bootstrap.__file__).read_text(encoding="utf-8")
    return f"{source}\n\nattach({client_directory!r}, {socket_path!r})\n"


class Rendezvous:
    """Script and socket for one process; use it as a context manager."""

    def __init__(self, base: str, target: Target, client_directory: str) -> None:
        """Make directory, script and socket.

        Raises:
            OSError: that is not possible.
        """
        self._target = target
        self.directory = Path(base, f"{target.pid}-{secrets.token_hex(4)}")
        self.script = self.directory / "attach.py"
        self._path = self.directory / "socket"
        if len(os.fsencode(self._path)) > _MAX_SOCKET_PATH_BYTES:
            raise OSError(f"the path of the socket would be too long: {self._path}")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._connection: socket.socket | None = None
        self._received = b""
        self.directory.mkdir(0o700)
        try:
            self._fill(script_text(client_directory, str(self._path)))
        except OSError:
            self.close()
            raise

    def _fill(self, text: str) -> None:
        descriptor = os.open(self.script, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o400)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        self._listener.bind(str(self._path))
        self._listener.listen(1)
        if os.geteuid() == 0:
            # The directory last: as long as it is root's, nobody can put a link in the way of chown.
            for path in (self.script, self._path, self.directory):
                os.chown(path, self._target.uid, self._target.gid, follow_symlinks=False)

    def accept(self, timeout_seconds: float) -> bool:
        """Wait for the process to connect, then remove both files; return whether it did in time."""
        self._listener.settimeout(timeout_seconds)
        try:
            connection, _ = self._listener.accept()
        except (TimeoutError, BlockingIOError):
            return False
        _, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid != self._target.uid:
            connection.close()
            return False
        self._connection = connection
        self.remove()
        return True

    def read(self, timeout_seconds: float) -> dict[str, Any]:
        """Return the next thing that the process says; {} where it has hung up or says nothing in time."""
        connection = self._connection
        if connection is None:
            return {}
        connection.settimeout(timeout_seconds)
        try:
            while b"\n" not in self._received and len(self._received) < _MAX_LINE_BYTES:
                data = connection.recv(4096)
                if not data:
                    return {}
                self._received += data
            line, _, self._received = self._received.partition(b"\n")
            answer = json.loads(line)
        except (OSError, ValueError, RecursionError):
            return {}
        return answer if isinstance(answer, dict) else {}

    def hang_up(self) -> None:
        """Ask the process to remove the client: it does so whenever this connection ends."""
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_WR)

    def remove(self) -> None:
        """Remove the files and the directory. What the target's user has added to it stays."""
        for path in (self.script, self._path):
            with contextlib.suppress(OSError):
                path.unlink()
        with contextlib.suppress(OSError):
            self.directory.rmdir()

    def close(self) -> None:
        """Close the sockets, which ends the client, and remove the files."""
        self._listener.close()
        if self._connection is not None:
            self._connection.close()
        self.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
