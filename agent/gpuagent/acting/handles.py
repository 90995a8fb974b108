"""What a pidfd tells of the process that it holds."""

from __future__ import annotations

import os
import select
import signal


def handle_inode(descriptor: int) -> int:
    """Return what is unique per process where the kernel has pidfs (Linux 6.9), 0 where it has not."""
    found = os.fstat(descriptor)
    return found.st_ino if found.st_ino > 2**32 or _has_pidfs() else 0


def has_ended(descriptor: int) -> bool:
    """Return whether all threads have ended, also while nobody has reaped the process: a pidfd is readable then."""
    poll = select.poll()  # not select.select, which refuses descriptors from 1024 on
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def has_been_reaped(descriptor: int) -> bool:
    """Return whether its number is free. Signal 0 works on a zombie, whose pid is still its own."""
    try:
        signal.pidfd_send_signal(descriptor, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return has_ended(descriptor)
    return False


def _has_pidfs() -> bool:
    """Return whether two processes have two inodes. Before pidfs all pidfds shared one of anon_inodefs."""
    own, parent = os.pidfd_open(os.getpid()), os.pidfd_open(os.getppid() or 1)
    try:
        return os.fstat(own).st_ino != os.fstat(parent).st_ino
    finally:
        os.close(own)
        os.close(parent)
