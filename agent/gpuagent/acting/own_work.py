"""Where a process runs by the kernel's word, its cgroups and login: what shares them may be a target's own work."""

from __future__ import annotations

from typing import NamedTuple

from gpuagent.procfs.cgroup import CgroupLevel, leaves
from gpuagent.procfs.files import LivingThread, ProcFiles, parse_stat, read_living

_GONE = (FileNotFoundError, ProcessLookupError)


class Place(NamedTuple):
    """The cgroup in every hierarchy, and the login that it came from."""

    cgroups: bytes
    """As /proc has them; b"" for a process of which no thread is seen to live."""
    login: tuple[bytes, bytes]
    """Login uid and audit session; b"" where the kernel tells none."""

    def difference(self, other: Place) -> str:
        """Return how another process is in another place than this one; "" where it is in the same or below it."""
        if not self._holds(other):
            return "in another cgroup"
        return "of another login" if self.login != other.login else ""

    def _holds(self, other: Place) -> bool:
        """Return whether the other is in the same cgroups or in such below them. Nothing counts as below a root."""
        if self.cgroups == other.cgroups:
            return True
        here, there = ({each.controllers: each for each in leaves(one.cgroups)} for one in (self, other))
        return bool(here) and here.keys() == there.keys() and all(_is_below(there[name], here[name]) for name in here)


def _is_below(level: CgroupLevel, above: CgroupLevel) -> bool:
    """Return whether it is the same cgroup or one below it."""
    below = level.segments[: len(above.segments)] == above.segments and bool(above.segments)
    return level == above or (level.above == above.above and below)


def read_place(files: ProcFiles, pid: int) -> Place:
    """Read a process's place. Raise FileNotFoundError, ProcessLookupError (gone), OSError, ValueError (unreadable)."""
    cgroups = read_living(files, parse_stat(files.read(pid, "stat")), _cgroups)
    return Place(cgroups or b"", (_number(files, pid, "loginuid"), _number(files, pid, "sessionid")))


def _cgroups(thread: LivingThread) -> bytes:
    return thread.read("cgroup")


def _number(files: ProcFiles, pid: int, name: str) -> bytes:
    """Read a number of the audit subsystem; a kernel without audit has no such file."""
    try:
        return files.read(pid, name).strip()
    except FileNotFoundError:
        if files.exists(pid):
            return b""
        raise
