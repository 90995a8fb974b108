"""Whether a process is frozen by its cgroup: `docker pause`, `systemctl freeze`, or a user's own cgroup.

A process that the freezer of cgroups of version 2 holds looks asleep (state S), and a signal stays pending until it is
thawed. Only SIGKILL ends it at once (Documentation/admin-guide/cgroup-v2.rst, `cgroup.freeze`). The freezer of version
1 puts it into state D.
"""

from __future__ import annotations

from pathlib import Path

from gpuagent.procfs.cgroup_tree import path_in_hierarchy, systemd_hierarchies

_MOUNTINFO = Path("/proc/self/mountinfo")
_TRAP = "do_freezer_trap"
"""Where in the kernel a frozen process waits (kernel/signal.c)."""


def frozen_by(cgroups: bytes, wait_channel: str, mountinfo: Path = _MOUNTINFO) -> str:
    """Return the cgroup that freezes a process, or is about to; "" where none does, or that cannot be seen.

    `cgroups` is its /proc/PID/cgroup. The wait channel, which takes the right to trace the process, tells of a cgroup
    that is not mounted here.
    """
    path = path_in_hierarchy(cgroups, "")
    if path is not None and ".." not in path.split("/"):
        for hierarchy in systemd_hierarchies(mountinfo.read_bytes()):
            if not hierarchy.controllers:
                return _frozen_at(hierarchy.root, path) or (path if wait_channel == _TRAP else "")
    return (path or "/") if wait_channel == _TRAP else ""


def _frozen_at(root: Path, path: str) -> str:
    """Return the outermost cgroup that is frozen; one that is being frozen counts, as it may be done any moment."""
    names = path.strip("/").split("/")
    for depth in range(1, len(names) + 1):
        cgroup = "/" + "/".join(names[:depth])
        folder = root / cgroup.lstrip("/")
        if _text(folder / "cgroup.freeze").strip() == "1" or "frozen 1" in _text(folder / "cgroup.events").splitlines():
            return cgroup
    return ""


def _text(file: Path) -> str:
    """Return "" for what is not there: before Linux 5.2, and in the root of the hierarchy."""
    try:
        return file.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
