"""The agent's own directories and the small files in them: private, read within bounds, locked for one agent.

A FIFO, a device or a huge file there must not hold up the start, and none of these files is worth failing it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from gpuagent.core.regular_files import read_regular_file


def make_own_directory(path: Path) -> None:
    """Make a directory that others cannot look into, if it is not there.

    Without $XDG_RUNTIME_DIR it lies below /tmp, at a name that anybody can guess and make first: whoever owns it, or
    what it lies in, could put other files in the place of ours.

    Raises:
        OSError: it cannot be made, or belongs to somebody who is neither this user nor root.
    """
    path.mkdir(mode=0o750, parents=True, exist_ok=True)
    for directory in (path, path.parent):
        _check_owner(directory, path)


def check_socket_directory(path: Path) -> None:
    """Refuse a directory in which somebody else could put another socket in the place of ours.

    The mode of a directory that is there is not changed: whoever made it so may rely on it, and what others have put
    there would stay. The sticky bit helps for the directory above, as in /tmp. It does not help for the directory
    itself: while the agent is down, anybody could create the socket that its clients look for.

    Raises:
        PermissionError: it or the directory above, also of what a link leads to, belongs to another user, or others
            may write it.
    """
    for place in dict.fromkeys((path, path.resolve())):
        for directory in (place, place.parent):
            _check_owner(directory, path)
            mode = directory.stat().st_mode  # of a link, that of what it leads to; with an ACL, its mask
            is_kept = directory != place and mode & stat.S_ISVTX
            if mode & (stat.S_IWGRP | stat.S_IWOTH) and not is_kept:
                raise PermissionError(
                    errno.EPERM, f"{directory} can be written by others (chmod go-w {directory})", str(path)
                )


def _check_owner(directory: Path, named: Path) -> None:
    """Raise PermissionError where a directory belongs to neither this user nor root."""
    if directory.lstat().st_uid not in (0, os.geteuid()):
        raise PermissionError(errno.EPERM, f"{directory} belongs to another user", str(named))


MAX_BYTES = 8 * 2**20
"""Some 80,000 numbers on the driver's lists: far more than a node has."""
_ASIDE = "unreadable-"
"""Before the name of what was set aside. No file that the agent reads is called so."""


def read_bounded(path: Path) -> str:
    """Return as `read_state` does, and leave what cannot be read where it is. Raises as it does."""
    return _content(path).decode()


def read_state(path: Path) -> str:
    """Return the text of a regular file, without waiting for anything.

    What is no such file, or is larger than `MAX_BYTES`, is moved aside.

    Raises:
        FileNotFoundError: there is none.
        OSError: it cannot be read; the text says where it is now.
        UnicodeDecodeError: it is no text.
    """
    try:
        content = _content(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}{_set_aside(path)}") from None
    return content.decode()


def write_state(path: Path, text: str) -> None:
    """Replace the file by one with this text that only its owner reads. Raises OSError; the old one is there then."""
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(new, flags, 0o600), "w") as stream:
        stream.write(text)
    new.replace(path)


def _content(path: Path) -> bytes:
    content = read_regular_file(path, MAX_BYTES, follow_links=False)
    if len(content) > MAX_BYTES:
        raise OSError(errno.EFBIG, f"it is larger than {MAX_BYTES // 2**20} MiB")
    return content


def _set_aside(path: Path) -> str:
    aside = path.with_name(_ASIDE + path.name)
    with suppress(OSError):
        path.replace(aside)
        return f"; it was moved to {aside}"
    return ""


LOCK_FILE = "agent.lock"
"""It has no content, and it is no trace of an agent: it stays when the agent ends."""


class StateInUseError(Exception):
    """Another agent uses this state; the text says what to do."""


def lock_state(folder: Path) -> BinaryIO:
    """Have the state directory alone for as long as what is returned is open.

    Only who may open the file can hold its lock: the agent's own user, and root. The lock ends with the process, also
    with its replacement by `execve`.

    Raises:
        StateInUseError: another process has it.
        OSError: it cannot be told whether another one has it.
    """
    path = folder / LOCK_FILE
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    file = os.fdopen(os.open(path, flags, 0o600), "r+b", buffering=0)
    try:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o077:
            raise OSError(errno.EINVAL, "it is not the agent's own file", str(path))
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise StateInUseError(
            f"another gpuagent is running: it uses the state in {folder}; stop it (`fuser -v {path}` names it),"
            " or give this one a state_dir of its own"
        ) from None
    except OSError:
        file.close()
        raise
    return file
