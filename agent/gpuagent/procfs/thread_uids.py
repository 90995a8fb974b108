"""As which users a process runs, all of its threads together.

The kernel knows user ids of threads alone: the C library keeps those of a process the same, and setresuid(2) called
directly changes one. File servers do that to act for their clients. `/proc/PID/status` tells of the first thread.
Read only where somebody is judged: a process may have thousands of threads.
"""

from __future__ import annotations

from gpuagent.procfs.files import ProcFiles
from gpuagent.procfs.stat import parse_status

MOST_THREADS = 8192
_LOOKS = 2
"""A thread that begins or ends during the first look costs a second one; then it is unknown."""
_UIDS = 4
_GONE = (FileNotFoundError, ProcessLookupError)


def read_uids(files: ProcFiles, pid: int, first: tuple[int, ...]) -> tuple[int, ...]:
    """Return the real, effective, saved and file system user ids of all threads; () where that cannot be seen.

    `first` are the four of the first thread, which are returned as they are where all others have the same. More users
    are returned each once, in order.
    """
    for _ in range(_LOOKS):
        try:
            found = _look(files, pid)
        except _GONE:
            continue
        except (OSError, ValueError):
            return ()
        if found is not None:
            everybody = found | frozenset(first)
            return first if everybody == frozenset(first) else tuple(sorted(everybody))
    return ()


def _look(files: ProcFiles, pid: int) -> frozenset[int] | None:
    """Return the ids of all threads; None where another one has begun meanwhile. Raises OSError, ValueError."""
    threads = set(files.threads(pid))
    if not threads or len(threads) > MOST_THREADS:
        raise ValueError("no threads, or too many to look at")
    found: set[int] = set()
    for thread in threads - {pid}:
        uids = parse_status(files.read(pid, f"task/{thread}/status")).uids
        if len(uids) != _UIDS:
            raise ValueError(f"the user ids of thread {thread} are unknown")
        found.update(uids)
    # The first thread comes last, as it may be the one that makes the others.
    uids = parse_status(files.read(pid, "status")).uids
    if len(uids) != _UIDS:
        raise ValueError("its user ids are unknown")
    found.update(uids)
    return frozenset(found) if set(files.threads(pid)) <= threads else None
