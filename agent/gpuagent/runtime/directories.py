"""The agent's own directories: made for it alone, and nobody else's."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


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
