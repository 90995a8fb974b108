"""The clients' own socket: in a directory that containers may mount, read-only, and that stays the same for ever.

A container that mounted the file itself would keep a dead socket when the agent starts again; so it is the directory
that is mounted, and is never removed.
"""

from __future__ import annotations

from pathlib import Path

from gpuagent.runtime.directories import check_socket_directory
from gpuagent_exporters.listeners import ListenError, UnixListener, open_unix

SOCKET_NAME = "client.sock"
_SOCKET_MODE = 0o666
_DIRECTORY_MODE = 0o755


def open_client_socket(directory: Path) -> UnixListener:
    """Listen there; everybody may connect, nobody but us may put another socket in its place.

    Raises:
        ListenError: the directory cannot be had, or others could tamper with it.
    """
    try:
        _make_directory(directory)
    except OSError as error:
        raise ListenError(f"{directory}: {error.strerror}; set client_dir to a directory this user may write") from None
    return open_unix(directory / SOCKET_NAME, mode=_SOCKET_MODE, group=None, pass_credentials=True)


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, mode=_DIRECTORY_MODE)
        path.chmod(_DIRECTORY_MODE)  # whatever the umask: apps of other users have to get in
    except FileExistsError:
        pass
    check_socket_directory(path)
