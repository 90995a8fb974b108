"""Whether all threads of a process are in one unit, container and job: cgroups of version 1 move single threads.

`/proc/PID/cgroup` tells of the first thread. Read only where somebody is judged: a process may have thousands.
"""

from __future__ import annotations

from gpuagent.procfs.cgroup import parse_cgroup
from gpuagent.procfs.credentials import MOST_THREADS
from gpuagent.procfs.files import ProcFiles, parse_stat

_GONE = (FileNotFoundError, ProcessLookupError)
_UNKNOWN = "it cannot be told whether all of its threads run in one place"


def thread_elsewhere(files: ProcFiles, pid: int, cgroups: bytes) -> str:
    """Return that a thread is in another unit, container or job than `cgroups` say, or may be; "" where none is.

    A thread that is about to exit is in no cgroup any more, and counts for nothing.
    """
    place = _place(cgroups)
    try:
        threads = files.threads(pid)
        if len(threads) > MOST_THREADS:
            return f"{_UNKNOWN}: it has more than {MOST_THREADS}"
        for thread in threads:
            try:
                found = files.read(pid, f"task/{thread}/cgroup")
                if found == cgroups or _place(found) == place:
                    continue
                if not parse_stat(files.read(pid, f"task/{thread}/stat")).exiting:
                    return f"its thread {thread} runs in another unit, container or job than the process is told to"
            except _GONE:
                continue
    except _GONE:
        return ""
    except (OSError, ValueError) as error:
        return f"{_UNKNOWN}: {error}"
    return ""


def _place(cgroups: bytes) -> tuple[str, ...]:
    found = parse_cgroup(cgroups)
    return found.unit, found.container_id, found.pod_uid, found.slurm_job
