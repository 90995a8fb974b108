"""What tells one process from another, also when its number is used again."""

from __future__ import annotations

from typing import NamedTuple

SHOWN_FIELDS = ("start_ticks", "boot_id", "pid_namespace", "card")
"""What a request about a process has to carry of what was shown of it: its pid goes to another one sooner or later."""

NO_INSTANCE = -1
"""`gpu_instance_id` and `compute_instance_id` of a process or GPU without MIG."""


class ProcessId(NamedTuple):
    """Identity of a process: pids are reused, this is not. `start_ticks` is field 22 of /proc/<pid>/stat."""

    boot_id: str
    pid: int
    start_ticks: int
