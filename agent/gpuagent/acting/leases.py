"""Whether a file is open for writing anywhere: who opened it before a chown or a chmod writes on after it."""

from __future__ import annotations

import errno
import fcntl
import signal
from contextlib import suppress


def is_open_for_writing(descriptor: int) -> bool:
    """Ask for a read lease, which the kernel grants on no file that is open, or mapped, for writing (fcntl(2)).

    False where that cannot be asked: the file belongs to another user and CAP_LEASE is missing, or its file system
    has no leases.
    """
    try:
        # Who opens it for writing meanwhile has the lease broken by a signal: one that does nothing by default.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as error:
        return error.errno == errno.EAGAIN
    with suppress(OSError):  # closing it gives it back as well
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False
