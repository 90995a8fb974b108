"""The clients' own socket: in a directory that containers may mount, read-only, and that stays the same for ever.

A container that mounted the file itself would keep a dead socket when the agent starts again; so it is the directory
that is mounted, and is never removed.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

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
    for directory in (path, path.parent):
        found = directory.lstat()
        if found.st_uid not in (0, os.geteuid()):
            raise PermissionError(errno.EPERM, f"{directory} belongs to another user", str(path))
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX:
            raise PermissionError(errno.EPERM, f"{directory} may be written by others", str(path))
