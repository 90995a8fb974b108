"""The one way to read a file that somebody names or may replace: configuration, rules, certificates, secrets, state.

A FIFO waits for a writer, a terminal for a key, a device may never end: what is no regular file is refused unread, so
that nobody who may put something in the place of a file can hold up a start or a reload.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

MAX_FILE_BYTES = 1024 * 1024
"""Most bytes that a configuration or rule file may have."""
_CHUNK_BYTES = 1 << 14
"""A read takes as much memory before it knows how much there is, and may find none where memory is short."""
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a symbolic link",
}


def not_regular(path: Path | str, mode: int) -> OSError:
    """Return the error for a file of this `st_mode`: what it is, and what is allowed."""
    kind = _KINDS.get(stat.S_IFMT(mode), "no regular file")
    return OSError(errno.EINVAL, f"it is {kind}; only a regular file is read", str(path))


def open_regular_file(path: Path | str, *, follow_links: bool = True) -> int:
    """Return a descriptor that reads a regular file and never waits, which the caller closes.

    A file on a network or FUSE mount whose server does not answer may still hold the call up: that is for the
    deadline of who calls. Raises OSError; `not_regular` for anything else than a regular file.
    """
    # O_NONBLOCK: a FIFO is opened at once, and a lease that somebody holds on the file is no reason to wait.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | (0 if follow_links else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a device without a driver: neither can be opened
            raise not_regular(path, Path(path).stat(follow_symlinks=follow_links).st_mode) from None
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise not_regular(path, mode)
    return descriptor


def read_regular_file(path: Path | str, most_bytes: int = MAX_FILE_BYTES, *, follow_links: bool = True) -> bytes:
    """Return the content of a regular file, of a larger one the first `most_bytes` + 1 bytes. Raises OSError."""
    descriptor = open_regular_file(path, follow_links=follow_links)
    try:
        return read_at_most(descriptor, most_bytes + 1)
    finally:
        os.close(descriptor)


def read_at_most(descriptor: int, most_bytes: int) -> bytes:
    """Return what a descriptor gives, to its end or to this many bytes. Raises OSError."""
    chunks: list[bytes] = []
    left = most_bytes
    while left > 0 and (chunk := os.read(descriptor, min(left, _CHUNK_BYTES))):
        chunks.append(chunk)
        left -= len(chunk)
    return b"".join(chunks)
