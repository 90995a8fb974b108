"""Who ends with the first process of a container that has no pid namespace of its own.

The kernel ends everybody in a pid namespace with its first process. Without one of its own (`docker run --pid=host`,
`hostPID`, `shareProcessNamespace`, `--pid=container:`) the runtime does the same when the container's first process has
ended: whatever is in its cgroup, or in one below it, gets SIGKILL (runc's and crun's `delete`; containerd-shim when it
sees the end). That means whoever was started into it from outside (`docker exec`) too.

The first process is the oldest of those whose parent is outside of the container: a runtime starts it, and whom it
starts into the container later is younger. Who is in a container is told by the very cgroup, not by the id: below a
cgroup of their own anybody may make one of the same name. Nobody but root and the owner of that cgroup can move a
process there. Where a path leads through several containers, as a process may make for itself, it is asked of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpuagent.procfs.cgroup import CgroupLevel, Membership, container_levels, leaves, parse_cgroup
from gpuagent.procfs.files import LivingThread, ProcFiles, parse_stat, read_living
from gpuagent.procfs.hanging import HangingProcess
from gpuagent_alerts.remedies.facts.process_scan import GONE, ProcessRow, UnseenProcesses


class ContainerEnds:
    """Whom a container's first process takes along, by the cgroups of all processes of one moment."""

    def __init__(self, files: ProcFiles, rows: Mapping[int, ProcessRow]) -> None:
        self._files = files
        self._rows = rows
        self._cgroups: dict[int, bytes] = {}

    def ended_with(self, row: ProcessRow) -> Iterator[ProcessRow]:
        """Yield everybody in a container of which this is, or may be, the first process; nobody of any other.

        One that has a pid namespace of its own is left to what the kernel does. Raises UnseenProcesses.
        """
        if row.is_namespace_init:
            return
        for level in sorted(container_levels(self._cgroup(row.pid))):
            yield from self._ended_with_level(row, level)

    def led_by(self, row: ProcessRow) -> frozenset[int] | None:
        """Return who is in a container of which this is, or may be, the first process; None where it is of none.

        A container of a pod is left out: its network is the pod's. Raises UnseenProcesses.
        """
        cgroup = self._cgroup(row.pid)
        if parse_cgroup(cgroup).pod_uid:
            return None
        led = [level for level in sorted(container_levels(cgroup)) if self._leads(row, level)]
        return frozenset(each for each in self._rows if self._is_inside(each, led[0])) if led else None

    def _ended_with_level(self, row: ProcessRow, level: CgroupLevel) -> Iterator[ProcessRow]:
        if self._leads(row, level):
            yield from (
                each for each in self._rows.values() if each.pid != row.pid and self._is_inside(each.pid, level)
            )

    def _leads(self, row: ProcessRow, level: CgroupLevel) -> bool:
        """Return whether it is, or may be, the first process of a container."""
        return not self._is_inside(row.parent_pid, level) and not any(
            each.start_ticks < row.start_ticks
            and self._is_inside(each.pid, level)
            and not self._is_inside(each.parent_pid, level)
            for each in self._rows.values()
        )

    def _is_inside(self, pid: int, level: CgroupLevel) -> bool:
        return is_below(self._cgroup(pid), level)

    def _cgroup(self, pid: int) -> bytes:
        """Return /proc/PID/cgroup of a thread that lives; b"" for who has gone, or is none of these."""
        if pid not in self._rows:
            return b""
        if pid not in self._cgroups:
            try:
                found = read_living(self._files, parse_stat(self._files.read(pid, "stat")), _read_cgroup)
            except HangingProcess:  # the file itself is read without a lock
                found = self._files.read(pid, "cgroup")
            except GONE:
                found = b""
            except (OSError, ValueError) as error:
                raise UnseenProcesses(f"where pid {pid} runs cannot be read: {error}") from error
            self._cgroups[pid] = found or b""
        return self._cgroups[pid]


def _read_cgroup(thread: LivingThread) -> bytes:
    return thread.read("cgroup")


def is_in_container(cgroup: bytes, own: Membership) -> bool:
    """Return whether a process is in the container, or in a cgroup below it, in any hierarchy, or says that it is."""
    return parse_cgroup(cgroup).container_id == own.container_id or is_below(cgroup, own.container_level)


def is_below(cgroup: bytes, level: CgroupLevel | None) -> bool:
    """Return whether a process is in this cgroup or in one below it, in any hierarchy."""
    return level is not None and any(
        (leaf.controllers, leaf.above) == (level.controllers, level.above)
        and leaf.segments[: len(level.segments)] == level.segments
        for leaf in leaves(cgroup)
    )
