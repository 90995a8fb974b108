"""Read one process: its files in /proc become one `ProcessInfo`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from gpuagent.core.identity import TICKS_PER_SECOND, ProcessId
from gpuagent.core.snapshot import ProcessInfo
from gpuagent.procfs.cgroup import Membership
from gpuagent.procfs.cgroup_owner import ABOVE_CONTAINER, CgroupOwner, CgroupOwners, Name, read_membership
from gpuagent.procfs.containers import ContainerNames, PodName, PodNames
from gpuagent.procfs.credentials import is_on_host
from gpuagent.procfs.files import (
    LivingThread,
    ProcessStatus,
    ProcFiles,
    Stat,
    decode,
    living_thread,
    parse_stat,
    parse_status,
    read_living,
)
from gpuagent.procfs.job_signs import read_job_signs
from gpuagent.procfs.machine import namespace_inode
from gpuagent.procfs.redact import Redactor

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_UNKNOWN_UID = -1
_REAL_UID = re.compile(rb"^Uid:\t(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class BootContext:
    """What places a process in time and space: the same for all of them."""

    boot_id: str
    time_seconds: float
    """Unix time of the boot."""
    pid_namespace: int
    """Inode of the agent's own pid namespace, 0 where unknown."""


class ProcessRecord(NamedTuple):
    """A process as read, and what to compare to see whether it is still the same program."""

    info: ProcessInfo
    image: tuple[bytes, ...]
    """() where there is nothing to compare: then the process is read again at the slow rate."""
    cgroup: bytes = b""
    """Cgroups as /proc has them, with all hierarchies: another one is another place. b"" where it is unknown."""
    ending: bool = False
    """No thread of the process is seen to live: what it runs, and where, is not known any more."""


class ProcessReader:
    """Read all that may be read of one process.

    Only `stat` is needed; a fact from a file that is denied stays empty.
    """

    def __init__(
        self,
        files: ProcFiles,
        boot: BootContext,
        *,
        users: Callable[[int], str],
        fresh_users: Callable[[int], str] | None = None,
        redactor: Redactor,
        command: bool = True,
        pods: PodNames | None = None,
        containers: ContainerNames | None = None,
        cgroup_owner: CgroupOwner | None = None,
        above_container: re.Pattern[str] = ABOVE_CONTAINER,
    ) -> None:
        """Put it together. `fresh_users` names a user as `users` does, and remembers nothing.

        `above_container` says where the host's managers make containers: see `gpuagent.procfs.cgroup_owner`.
        """
        self._files = files
        self._boot = boot
        self._users = users
        self._fresh_users = fresh_users or users
        self._redactor = redactor
        self._command = command
        self._pods = pods
        self._containers = containers
        self._cgroup_owner = cgroup_owner or CgroupOwners()
        self._above_container = above_container

    def shift_wall_clock(self, seconds: float) -> None:
        """Tell start times by a wall clock that was set forward by so many seconds."""
        self._boot = replace(self._boot, time_seconds=self._boot.time_seconds + seconds)

    def stat(self, pid: int) -> Stat:
        """Read the one file that has identity, state and resident memory.

        Raises FileNotFoundError or ProcessLookupError (gone), other OSErrors (not readable),
        ValueError (garbage).
        """
        return parse_stat(self._files.read(pid, "stat"))

    def read(self, pid: int) -> ProcessRecord:
        """Read everything, of a thread that lives where the first one has ended. Raises as `stat` does."""
        stat = self.stat(pid)
        record = read_living(self._files, stat, lambda thread: self._record(stat, thread))
        return record or self._record(stat, None)

    def _record(self, stat: Stat, thread: LivingThread | None) -> ProcessRecord:
        """Put a process together; where no thread lives, its place and its program are unknown."""
        pid = stat.pid
        status = parse_status(_text(thread, "status") if thread else self._own_text(pid, "status"))
        cgroup = _text(thread, "cgroup")
        membership, proven = self._membership(cgroup)
        pod = self._pod(membership.pod_uid)
        uid = self._owner(pid) if status.uid is None else status.uid
        command = self._command_line(thread)
        memory = thread.stat if thread else stat
        info = ProcessInfo(
            id=ProcessId(self._boot.boot_id, pid, stat.start_ticks),
            name=self._redactor.text(decode(stat.name)),
            uid=uid,
            user=self._users(uid),
            command=command or "",
            state=stat.state,
            parent_pid=stat.parent_pid,
            process_group=stat.process_group,
            pid_namespace=self._namespace(thread, status),
            start_time_seconds=self._boot.time_seconds + stat.start_ticks / TICKS_PER_SECOND,
            resident_bytes=memory.resident_pages * _PAGE_BYTES,
            cgroup=membership.path,
            unit=membership.unit,
            container_id=membership.container_id,
            container_runtime=membership.container_runtime,
            container_name=self._container(membership.container_id),
            pod_uid=membership.pod_uid,
            pod=pod.name,
            namespace=pod.namespace,
            slurm_job=membership.slurm_job,
            proven_names=frozenset(proven),
            on_host=is_on_host(self._files, pid, stat, status),
            job_signs=read_job_signs(self._files, stat, status, thread) if self._command else (),
        )
        return ProcessRecord(info, () if command is None else memory.image, cgroup, ending=thread is None)

    def proven_container(self, pid: int) -> str:
        """Return the id of the container that it runs in, "" where there is none, or others than root may name it."""
        try:
            cgroup = read_living(self._files, self.stat(pid), lambda thread: thread.read("cgroup"))
        except (OSError, ValueError):
            return ""
        membership, proven = self._membership(cgroup or b"")
        return membership.container_id if Name.CONTAINER in proven else ""

    def user_now(self, uid: int) -> str:
        """Return the name that the user database has for this user at this moment; it may block."""
        return self._fresh_users(uid)

    def renew(self, record: ProcessRecord, stat: Stat, *, anew: bool = False) -> ProcessRecord:
        """Bring a record up to date with a newer `stat` of the same process; the same one if nothing has changed.

        Reads the process again only where it runs another program, belongs to another user or is
        in another cgroup now, or where the program cannot be seen. One of which no thread lives has no
        memory, arguments or cgroup any more, and one in state D must not be asked for them: what was
        known of it is kept. With `anew` it is read in any case. Raises as `stat` does.
        """
        thread = living_thread(self._files, stat)
        if (
            thread is not None
            and thread.stat.state != "D"
            and (anew or not record.image or record.image != thread.stat.image or _has_moved(record, thread))
        ):
            again = self.read(stat.pid)
            if again.info.id == record.info.id and not again.ending:
                return again
        info = record.info
        resident_bytes = (thread.stat if thread else stat).resident_pages * _PAGE_BYTES
        family = stat.parent_pid, stat.process_group
        if (info.parent_pid, info.process_group) != family:
            info = replace(info, parent_pid=family[0], process_group=family[1])
        if (info.state, info.resident_bytes) != (stat.state, resident_bytes):
            info = replace(info, state=stat.state, resident_bytes=resident_bytes)
        if info.pod_uid and not info.pod:  # the kubelet makes the folder shortly after the cgroup
            pod = self._pod(info.pod_uid)
            info = replace(info, pod=pod.name, namespace=pod.namespace)
        # Names go over: a uid to another user, a name to another container.
        names = self._users(info.uid), self._container(info.container_id)
        if (info.user, info.container_name) != names:
            info = replace(info, user=names[0], container_name=names[1])
        return record if info is record.info else record._replace(info=info)

    def unreadable(self, pid: int, ordinal: int) -> ProcessRecord:
        """Stand in for a process that lives and hides (hidepid).

        Its start time is not known; a negative `ordinal` in the place of it keeps identities apart.
        """
        identity = ProcessId(self._boot.boot_id, pid, -ordinal)
        return ProcessRecord(ProcessInfo(id=identity, name="", uid=_UNKNOWN_UID, user=""), ())

    def _membership(self, cgroup: bytes) -> tuple[Membership, frozenset[Name]]:
        return read_membership(cgroup, self._cgroup_owner, self._above_container)

    def _own_text(self, pid: int, name: str) -> bytes:
        try:
            return self._files.read(pid, name)
        except OSError:
            return b""

    def _owner(self, pid: int) -> int:
        try:
            return self._files.owner(pid)
        except OSError:
            return _UNKNOWN_UID

    def _command_line(self, thread: LivingThread | None) -> str | None:
        """Return the redacted command line; None where it should be asked for later.

        `cmdline` lies in the memory of the process, and reading it waits for the lock of that
        memory. One that hangs in a driver (state D) may hold it for ever, and so would hang whoever
        reads.
        """
        if not self._command or thread is None:
            return ""
        if thread.stat.state == "D":
            return None
        return self._redactor.command(_text(thread, "cmdline"))

    def _namespace(self, thread: LivingThread | None, status: ProcessStatus) -> int:
        """Return the pid namespace by the link, which needs the right to trace the process.

        Without it: a process that has one pid only is in the namespace of the agent.
        """
        try:
            inode = namespace_inode(thread.link("ns/pid")) if thread else 0
        except OSError:
            inode = 0
        if not inode and len(status.namespace_pids) == 1:
            return self._boot.pid_namespace
        return inode

    def _container(self, container_id: str) -> str:
        return self._containers.lookup(container_id) if container_id and self._containers else ""

    def _pod(self, uid: str) -> PodName:
        return self._pods.lookup(uid) if uid and self._pods else PodName()


def _has_moved(record: ProcessRecord, thread: LivingThread) -> bool:
    """Return whether user or cgroup are not as they were, or its thread has ended meanwhile."""
    try:
        if _text(thread, "cgroup") != record.cgroup:
            return True
        uid = _REAL_UID.search(_text(thread, "status"))
    except (FileNotFoundError, ProcessLookupError):
        return True
    return uid is not None and int(uid[1]) != record.info.uid


def _text(thread: LivingThread | None, name: str) -> bytes:
    """Return a file of a living thread; b"" where none lives, or the file may not be read.

    Raises FileNotFoundError or ProcessLookupError where a thread other than the first has ended meanwhile.
    """
    if thread is None:
        return b""
    try:
        return thread.read(name)
    except (FileNotFoundError, ProcessLookupError):
        if thread.folder:
            raise
        return b""
    except OSError:
        return b""
