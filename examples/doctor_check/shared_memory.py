"""Check the size of /dev/shm: data loaders of torch pass batches through it, and hang where it is full."""

from __future__ import annotations

import os
from collections.abc import Iterator

from gpuagent.core.units import format_bytes
from gpuagent.doctor.finding import Finding, Level

_SMALL_BYTES = 1 << 30


def shared_memory(path: str = "/dev/shm") -> Iterator[Finding]:  # noqa: S108  the mount point itself
    """Report whether there is room for batches."""
    try:
        status = os.statvfs(path)
    except OSError as error:
        yield Finding("shared memory", Level.WARNING, f"{path} cannot be looked at: {error.strerror}")
        return
    total_bytes = status.f_blocks * status.f_frsize
    if total_bytes < _SMALL_BYTES:
        text = f"{path} has {format_bytes(total_bytes)}: data loaders with several workers may hang"
        yield Finding("shared memory", Level.WARNING, text, "a container needs --shm-size or --ipc=host")
    else:
        yield Finding("shared memory", Level.OK, f"{path} has {format_bytes(total_bytes)}")
