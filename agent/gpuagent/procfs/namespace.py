"""Whether the agent's pids are the driver's pids."""

from __future__ import annotations

import re
from pathlib import Path

HOST_PID_NAMESPACE = 4026531836
"""Inode of the first pid namespace, the same on every Linux: PROC_PID_INIT_INO in
include/linux/proc_ns.h."""

COST = (
    "the agent runs in a pid namespace of its own: the pids that the driver lists mean nothing"
    " here, so processes have no name, user or container, none can be killed, and some may not be"
    " listed at all; figures per GPU are complete. Run it on the host, or in a container with the"
    ' pids of the host ("--pid=host", "hostPID: true")'
)
"""What it means not to be in the host's pid namespace, and what to do: for `doctor`, the log and
the page."""

_LINK = re.compile(r"pid:\[(\d+)\]")


def namespace_inode(link: str) -> int:
    """Inode in the target of a link such as /proc/<pid>/ns/pid; 0 where the text is none."""
    found = _LINK.fullmatch(link)
    return int(found[1]) if found else 0


def own_namespace(root: str = "/proc") -> int:
    """Inode of the agent's pid namespace; 0 where /proc does not tell."""
    try:
        return namespace_inode(str(Path(root, "self/ns/pid").readlink()))
    except OSError:
        return 0


def in_host_pid_namespace(root: str = "/proc") -> bool:
    """Whether the agent sees the host's pids; False where that cannot be known.

    A wrong "yes" could end in the death of a stranger.
    """
    return own_namespace(root) == HOST_PID_NAMESPACE
