"""One agent for one state directory: two would act by limits, records and listings that they write over each other."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import BinaryIO

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
