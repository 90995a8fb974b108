"""Read /proc: the only package that does.

In reading order: `table` (which processes the driver's pids are), `reader` (one process), `files` (the edge to the
kernel), `cgroup`, `cgroup_owner` and `redact` (pure: bytes in, facts out), `containers`, `users` and
`machine` (what else of the machine is needed), `credentials` and `programs` (read where somebody is judged),
`kernel_log`.
"""

from gpuagent.procfs.containers import PodName, PodNames
from gpuagent.procfs.files import ProcFiles, RealProc
from gpuagent.procfs.machine import boot_id, boot_time_seconds, raise_descriptor_limit
from gpuagent.procfs.redact import Redactor
from gpuagent.procfs.table import PidfdWatcher, ProcessTable, Watcher
from gpuagent.procfs.users import UserNames

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
