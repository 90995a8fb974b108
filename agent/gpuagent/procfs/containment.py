"""Whether a process is on the host itself or in a container, by the kernel's word and whatever its cgroup is called."""

from __future__ import annotations

from gpuagent.procfs.files import READ_LIMIT_BYTES, ProcFiles
from gpuagent.procfs.living import read_living
from gpuagent.procfs.stat import Stat, Status

_HOST_INIT = 1
"""The agent acts in the host's pid namespace alone, where this is the host's init."""
_UID_MAP_FIELDS = 3
_MOUNT_DEVICE, _MOUNT_ROOT, _MOUNT_POINT = 2, 3, 4


def is_on_host(files: ProcFiles, pid: int, stat: Stat, status: Status) -> bool:
    """Return whether it has the host's pid namespace, user ids and root directory: then its user is an account here.

    A container chooses the user ids of its processes, and those of the host mean nothing in it. False also where that
    cannot be seen.
    """
    return len(status.namespace_pids) == 1 and has_host_uids(files, pid) is True and has_own_root(files, stat) is False


def root_mount(mounts: bytes) -> tuple[bytes, bytes] | None:
    """Return device and path of what a process has at `/`, of its mountinfo (proc_pid_mountinfo(5)).

    None where nothing is mounted there: a process after chroot(2) sees only the mounts below its root. Unlike the link
    `root`, mountinfo may be read without the right to trace the process (measured on Linux 6.18).
    """
    found = None
    for line in mounts.split(b"\n"):
        fields = line.split(b" ")
        if len(fields) > _MOUNT_POINT and fields[_MOUNT_POINT] == b"/":
            found = fields[_MOUNT_DEVICE], fields[_MOUNT_ROOT]  # the last one lies on top
    return found


def has_host_uids(files: ProcFiles, pid: int) -> bool | None:
    """Return whether the process is in the host's user namespace: that of the host's init (user_namespaces(7))."""
    try:
        host, own = (files.read(each, "uid_map").split() for each in (_HOST_INIT, pid))
    except OSError:
        return None
    return own == host and len(own) == _UID_MAP_FIELDS


def has_own_root(files: ProcFiles, stat: Stat) -> bool | None:
    """Return whether its root directory is another than the host's; None where that cannot be seen."""
    try:
        host = files.read(_HOST_INIT, "mountinfo")
        own = read_living(files, stat, lambda thread: thread.read("mountinfo"))
    except (OSError, ValueError):
        return None
    if not own:
        return None
    at_host, at_own = root_mount(host), root_mount(own)
    if at_host is None or (at_own is None and len(own) >= READ_LIMIT_BYTES):
        return None
    return at_own != at_host
