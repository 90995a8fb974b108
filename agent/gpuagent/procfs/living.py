"""Where /proc tells of a process whose first thread has ended, or is about to.

A task that exits (PF_EXITING) lets go of memory, program, root directory and, with cgroups of version 1, of its place:
`/proc/PID/cgroup` says "/" then (proc_cgroup_show(), kernel/cgroup/cgroup.c). While other threads of the process live
it has all of these still, under /proc/PID/task/TID. What was read in vain, or of a thread that has begun to exit
meanwhile, is no fact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from gpuagent.procfs.files import ProcFiles
from gpuagent.procfs.stat import Stat, parse_stat

T = TypeVar("T")
_GONE = (FileNotFoundError, ProcessLookupError)
_ATTEMPTS = 5
"""Each is lost only to a thread that ends just then."""


class LivingThread(NamedTuple):
    """The proc directory of a thread that has not begun to exit: the process's own, while its first thread has not."""

    files: ProcFiles
    pid: int
    folder: str
    """"" or "task/TID/"."""
    stat: Stat
    """Of this thread. Identity and name of the process are those of its first thread."""

    def read(self, name: str) -> bytes:
        """Text of a file of the process. Raises as `ProcFiles.read`."""
        return self.files.read(self.pid, self.folder + name)

    def link(self, name: str) -> str:
        """Target of a link of the process. Raises as `ProcFiles.link`."""
        return self.files.link(self.pid, self.folder + name)


def living_thread(files: ProcFiles, stat: Stat) -> LivingThread | None:
    """Return where /proc tells of the process that has this `stat`; None where none of its threads is seen to live."""
    if not stat.exiting:
        return LivingThread(files, stat.pid, "", stat)
    if stat.threads <= 1:
        return None
    try:
        threads = files.threads(stat.pid)
    except OSError:
        return None
    for thread in sorted(threads):
        folder = f"task/{thread}/"
        try:
            found = parse_stat(files.read(stat.pid, f"{folder}stat"))
        except (OSError, ValueError):
            continue
        if not found.exiting:
            return LivingThread(files, stat.pid, folder, found)
    return None


def read_living(files: ProcFiles, stat: Stat, take: Callable[[LivingThread], T]) -> T | None:
    """Return what `take` reads of a thread that lived before and after; None where no such thread is seen.

    Raises as `take` does, but for a thread that has ended while others may live: then it is asked of another. Raises
    FileNotFoundError or ProcessLookupError where the process has gone.
    """
    for _ in range(_ATTEMPTS):
        thread = living_thread(files, stat)
        if thread is None:
            return None
        try:
            found = take(thread)
            after = parse_stat(thread.read("stat"))
        except _GONE:
            if not thread.folder:
                raise
        else:
            if not after.exiting and after.start_ticks == thread.stat.start_ticks:
                return found
        stat = parse_stat(files.read(stat.pid, "stat"))
    return None


def executable_name(files: ProcFiles, pid: int) -> str:
    """Return the name of the file that a process runs; "" where it may not be read."""
    try:
        found = read_living(files, parse_stat(files.read(pid, "stat")), lambda thread: thread.link("exe"))
    except (OSError, ValueError):
        return ""
    return (found or "").removesuffix(" (deleted)").rpartition("/")[2]
