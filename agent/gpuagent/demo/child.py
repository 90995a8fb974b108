"""A process that lives until it is told to end, or until its parent has: `python child.py NAME PARENT`."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_SET_DEATH_SIGNAL, _SET_NAME = 1, 15  # PR_SET_PDEATHSIG, PR_SET_NAME: linux/prctl.h


def main(name: str, parent: int) -> None:
    """Take the name, say that it lives, and wait for a signal."""
    libc = ctypes.CDLL(None)
    libc.prctl(_SET_NAME, name.encode(), 0, 0, 0)
    libc.prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the kernel was asked to tell
        return
    print("ready", flush=True)  # noqa: T201
    while True:
        signal.pause()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
