"""Which processes belong to what is recorded: a process, and all that come from it."""

from __future__ import annotations

import ctypes
from collections.abc import Collection

from gpuagent.procfs.files import ProcFiles, Stat, parse_stat

_PR_SET_CHILD_SUBREAPER = 36
_MOST_GENERATIONS = 256


class Family:
    """The processes `roots` and their descendants.

    Only processes that hold GPU memory are asked for, and there are few: each is followed up through its parents, which
    is far less to read than all of /proc. One that has been seen stays in the family when its parents have ended.
    """

    def __init__(self, files: ProcFiles, roots: Collection[int]) -> None:
        self._files = files
        self._roots = frozenset(roots)
        self._known: dict[int, int] = {}
        for pid in self._roots:
            stat = self._stat(pid)
            if stat is not None:
                self._known[pid] = stat.start_ticks

    def has(self, pid: int) -> bool:
        """Return whether this process belongs to it.

        A pid that was given to another process in the meantime does not.
        """
        stat = self._stat(pid)
        if stat is None:  # it has just ended, or is a simulated one
            return pid in self._roots and pid not in self._known
        member = self._descends(stat)
        if member:
            self._known[pid] = stat.start_ticks
        return member

    def lives(self, root: int) -> bool | None:
        """Return whether this root still runs; None if /proc has never known it."""
        if root not in self._known:
            return None
        stat = self._stat(root)
        if stat is None or stat.start_ticks != self._known[root]:
            return False
        return stat.state not in {"Z", "X"} or stat.threads > 1

    def _descends(self, stat: Stat | None) -> bool:
        """Return whether it or one of its parents is known."""
        for _ in range(_MOST_GENERATIONS):
            if stat is None:
                return False
            if self._known.get(stat.pid) == stat.start_ticks:
                return True
            stat = self._stat(stat.parent_pid)
        return False

    def _stat(self, pid: int) -> Stat | None:
        try:
            return parse_stat(self._files.read(pid, "stat"))
        except (OSError, ValueError):
            return None


def adopt_orphans() -> None:
    """Have descendants whose parents end become children of this process, not of init, so that they are still found.

    prctl(2), PR_SET_CHILD_SUBREAPER; where it is not to be had, an orphan that was never seen is lost.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
