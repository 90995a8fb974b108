"""Processes as /proc tells of them: the only package that reads it.

In reading order: `table` (which processes the driver's pids are), `reader` (one process), `stat`,
`cgroup` and `redact` (pure: bytes in, facts out), `files` and `watch` (the edges to the kernel),
`pods`, `users`, `namespace`, `boot` and `limits` (what else of the machine is needed).
"""

from gpuagent.procfs.boot import boot_id, boot_time_seconds
from gpuagent.procfs.files import ProcFiles, RealProc
from gpuagent.procfs.limits import raise_descriptor_limit
from gpuagent.procfs.pods import PodName, PodNames
from gpuagent.procfs.redact import Redactor
from gpuagent.procfs.table import ProcessTable, Watcher
from gpuagent.procfs.users import UserNames
from gpuagent.procfs.watch import PidfdWatcher

__all__ = [
    "PidfdWatcher",
    "PodName",
    "PodNames",
    "ProcFiles",
    "ProcessTable",
    "RealProc",
    "Redactor",
    "UserNames",
    "Watcher",
    "boot_id",
    "boot_time_seconds",
    "raise_descriptor_limit",
]
