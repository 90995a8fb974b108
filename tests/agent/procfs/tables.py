"""Tables over a made-up /proc."""

from __future__ import annotations

from gpuagent.core.clock import ManualClock
from gpuagent.core.snapshot import ProcessInfo
from gpuagent.procfs.containers import PodNames
from gpuagent.procfs.files import ProcFiles
from gpuagent.procfs.table import ProcessTable
from tests.fakes.proc import FakeWatcher

BOOT_TIME = 1_700_000_000.0
POD_UID = "2c4b2241-5c01-11e9-8e4e-42010a800002"
CONTAINER = "5b0a" * 16


def table_of(
    proc: ProcFiles,
    watcher: FakeWatcher | None = None,
    *,
    command: bool = True,
    pods: PodNames | None = None,
) -> ProcessTable:
    """A table on the host, with known users and a known boot."""
    return ProcessTable(
        proc,
        ManualClock(),
        watch=watcher or FakeWatcher(),
        boot_id="boot",
        boot_time_seconds=BOOT_TIME,
        users=lambda uid: f"user{uid}",
        cgroup_owner=lambda level, *, whole: True,  # made-up cgroups are root's
        command=command,
        pods=pods,
        host_pid_namespace=True,
    )


def known(info: ProcessInfo | None) -> ProcessInfo:
    """The process, which must be there."""
    assert info is not None
    return info
