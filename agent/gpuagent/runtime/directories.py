"""The agent's own directories: made for it alone, and nobody else's."""

from __future__ import annotations

import errno
import os
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
        if directory.lstat().st_uid not in (0, os.geteuid()):
            raise PermissionError(errno.EPERM, f"{directory} belongs to another user", str(path))
