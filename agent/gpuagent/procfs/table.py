"""Say which processes the driver's pids are, kept up to date at next to no cost.

A process is read when it appears, with all others of that tick: those that hang whoever reads of them, which a user
can have (`gpuagent.procfs.hanging`), cost the tick a second together, once. From then on a pidfd reports its end: a
handle on one process, which becomes readable when the process has ended and never points to another process with the
same number (pidfd_open(2)). All of them are in one epoll object, so a tick over 512 processes is one system call; where
no pidfd can be had, the start time is compared instead. What changes in a life is followed at the slow rate, some
processes at each tick: state, memory, another program by exec.
"""

from __future__ import annotations

import os
import resource
import select
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Protocol

from gpuagent.core.clock import CLOCK_STEP_SECONDS, Clock
from gpuagent.core.identity import ProcessId
from gpuagent.core.snapshot import CollectorRun, ProcessInfo
from gpuagent.procfs.cgroup_owner import CgroupOwner, above_container
from gpuagent.procfs.containers import ContainerNames, PodNames
from gpuagent.procfs.files import ProcFiles, Stat
from gpuagent.procfs.hanging import HANGS_AFTER_SECONDS, read_all, read_within
from gpuagent.procfs.machine import HOST_PID_NAMESPACE, in_host_pid_namespace, own_namespace
from gpuagent.procfs.machine import boot_id as read_boot_id
from gpuagent.procfs.machine import boot_time_seconds as read_boot_time_seconds
from gpuagent.procfs.reader import BootContext, ProcessReader, ProcessRecord
from gpuagent.procfs.redact import Redactor
from gpuagent.procfs.users import UserNames

_SLOW_SECONDS = HANGS_AFTER_SECONDS / 2
_PAUSE_SECONDS = 10.0
HIGHEST_PID = 4_194_304
"""PID_MAX_LIMIT of 64-bit Linux: the kernel gives out no pid above it, a simulated node no pid
below."""


class PidfdWatcher:
    """One pidfd per process. Not for several threads."""

    def __init__(self, *, maximum: int | None = None) -> None:
        """Watch at most `maximum` processes.

        By default half of the descriptors that the agent may open: on a crowded node it must still
        be able to accept a connection.
        """
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._maximum = soft // 2 if maximum is None else maximum
        self._epoll = select.epoll()
        self._descriptors: dict[int, int] = {}
        self._pids: dict[int, int] = {}

    def add(self, pid: int) -> bool:
        """Begin to watch a process; False where that cannot be, and the caller has to look."""
        if pid in self._descriptors:
            return True
        if pid > HIGHEST_PID or len(self._descriptors) >= self._maximum:
            return False
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:  # gone, out of descriptors, or a kernel before 5.3
            return False
        try:
            self._epoll.register(descriptor, select.EPOLLIN)
        except OSError:  # fs.epoll.max_user_watches
            os.close(descriptor)
            return False
        self._descriptors[pid] = descriptor
        self._pids[descriptor] = pid
        return True

    def has_exited(self, pid: int) -> bool:
        """Return whether a watched process has ended, be it a zombie still; False if not watched."""
        descriptor = self._descriptors.get(pid)
        if descriptor is None:
            return False
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(0))

    def exited(self) -> set[int]:
        """Return all watched processes that have ended and were not removed since. Does not wait."""
        if not self._descriptors:
            return set()
        events = self._epoll.poll(0, len(self._descriptors))
        return {self._pids[descriptor] for descriptor, _ in events}

    def remove(self, pid: int) -> None:
        """End watching a process, watched or not."""
        descriptor = self._descriptors.pop(pid, None)
        if descriptor is not None:
            del self._pids[descriptor]
            # Closing alone does not do it while a child between fork and exec holds the same
            # descriptor.
            self._epoll.unregister(descriptor)
            os.close(descriptor)

    def close(self) -> None:
        """End watching all of them."""
        for pid in list(self._descriptors):
            self.remove(pid)
        self._epoll.close()


_GONE = (FileNotFoundError, ProcessLookupError)
_UNREADABLE = (OSError, ValueError)
_ENDED = frozenset({"Z", "X"})
_MOST_UNLISTED = 1024
_FOLLOWED_AT_ONCE = 16
"""Processes at a tick, a millisecond: all of them at once would hold up the event loop."""
_FOLLOWED_PART = 16
"""Part of a larger crowd that is followed at a tick: with a tick a second each has its turn every half a minute."""


class Watcher(Protocol):
    """Watcher of the end of processes."""

    def add(self, pid: int) -> bool:
        """Begin to watch; False where this process cannot be watched."""
        ...

    def has_exited(self, pid: int) -> bool:
        """Return whether this watched process has ended."""
        ...

    def exited(self) -> set[int]:
        """Return all watched processes that have ended."""
        ...

    def remove(self, pid: int) -> None:
        """End watching a process, watched or not."""
        ...

    def close(self) -> None:
        """End watching all of them."""
        ...


@dataclass(slots=True)
class _Entry:
    record: ProcessRecord
    watched: bool


class _Read(NamedTuple):
    """What was read of a process at the beginning of a tick."""

    outcome: ProcessRecord | Stat | Exception
    watched: bool
    """Its end was watched before."""


class ProcessTable:
    """The processes of the pids asked for last; for one thread."""

    def __init__(
        self,
        files: ProcFiles,
        clock: Clock,
        *,
        watch: Watcher,
        pods: PodNames | None = None,
        containers: ContainerNames | None = None,
        users: Callable[[int], str] | None = None,
        fresh_users: Callable[[int], str] | None = None,
        boot_id: str | None = None,
        boot_time_seconds: float | None = None,
        command: bool = True,
        redact: Sequence[str] = (),
        host_pid_namespace: bool | None = None,
        cgroup_owner: CgroupOwner | None = None,
        container_cgroups: Sequence[str] = (),
    ) -> None:
        """Start empty. What is None is read from the machine.

        `command` says whether command lines are read at all, `redact` are regular expressions of
        what to hide in them beyond the built-in ones. `container_cgroups` are further cgroups in which
        the host's managers make containers. Raises ValueError where RE2 does not take one.
        """
        if host_pid_namespace is None:
            host_pid_namespace = in_host_pid_namespace()
        self.host_pid_namespace = host_pid_namespace
        """False: pids from the driver cannot be told apart from others here, and nothing is
        resolved."""
        self.processes_seen = 0
        """Different processes since the start."""
        if users is None:
            users = UserNames(clock)
            fresh_users = users.fresh
        self._clock = clock
        self._to_unix = clock.wall() - clock.now()
        self._watch = watch
        self._containers = containers
        self.reader = ProcessReader(
            files,
            BootContext(
                read_boot_id() if boot_id is None else boot_id,
                read_boot_time_seconds() if boot_time_seconds is None else boot_time_seconds,
                HOST_PID_NAMESPACE if host_pid_namespace else own_namespace(),
            ),
            users=users,
            fresh_users=fresh_users,
            redactor=Redactor(redact),
            command=command,
            pods=pods,
            containers=containers,
            cgroup_owner=cgroup_owner,
            above_container=above_container(container_cgroups),
        )
        self._entries: dict[int, _Entry] = {}
        self._unlisted: dict[int, int] = {}
        """Start times by pid of those that the driver listed once, and that may live."""
        self._dead: set[int] = set()
        self._hidden = 0
        self._asked: frozenset[int] = frozenset()
        self._resolved: dict[int, ProcessInfo | None] = {}
        self._outdated = False
        """Something may have changed that no pidfd tells of."""
        self._asks_again_at = 0.0
        self._to_follow: list[int] = []
        self._asked_about: set[int] = set()
        """Those among them that are read anew, changed or not."""

    def resolve(self, pids: Iterable[int]) -> Mapping[int, ProcessInfo | None]:
        """Say who these pids are: all that the driver lists now, in every tick.

        None is a dead process: /proc does not know it. It stays dead until the driver has stopped
        listing the pid: a process that is given the number meanwhile is a stranger to the memory
        that the driver still counts. What lists that come and go, or another agent before this one,
        have to do with it is for `gpuagent.collector.listings` to tell.

        The same object as before for as long as nothing has changed: mostly a tick is no more than
        one look at the pidfds.
        """
        asked, self._asked = self._asked, frozenset(pids)
        self._follow_wall_clock()
        self._follow()
        exited = self._watch.exited()
        if not exited and not self._outdated and (self._asked is asked or self._asked == asked):
            return self._resolved
        self._resolved = self._resolve_all(self._asked, exited)
        self._outdated = not all(entry.watched for entry in self._entries.values())
        return self._resolved

    def _follow_wall_clock(self) -> None:
        """Give every process its start by a wall clock that was set: how old it is has not changed."""
        step = self._clock.wall() - self._clock.now() - self._to_unix
        if abs(step) <= CLOCK_STEP_SECONDS:
            return
        self._to_unix += step
        self.reader.shift_wall_clock(step)
        for entry in self._entries.values():
            info = entry.record.info
            if info.start_time_seconds:
                info = replace(info, start_time_seconds=info.start_time_seconds + step)
                entry.record = entry.record._replace(info=info)
        self._outdated = True

    def _resolve_all(self, wanted: frozenset[int], exited: set[int]) -> dict[int, ProcessInfo | None]:
        if not self.host_pid_namespace:
            return dict.fromkeys(wanted)
        for pid in self._entries.keys() - wanted:
            if pid not in exited:
                self._note_unlisted(self._entries[pid].record.info.id)
            self._forget(pid)
        self._dead &= wanted
        ahead = self._read_ahead(wanted, exited)
        return {pid: self._resolve(pid, ahead.get(pid), has_exited=pid in exited) for pid in wanted}

    def _read_ahead(self, wanted: frozenset[int], exited: set[int]) -> dict[int, _Read]:
        """Read all that this tick has to read: all at once, so that those that hang are waited for once.

        Of a process that was not known the pidfd comes first: if it has not fired after the reading, all that was read
        is of the one process that it holds.
        """
        reads: dict[int, Callable[[], ProcessRecord | Stat]] = {}
        watched: set[int] = set()
        for pid in wanted - self._dead:
            entry = self._entries.get(pid)
            if entry is None:
                if self._watch.add(pid):
                    watched.add(pid)
                reads[pid] = partial(self.reader.read, pid)
            elif pid in exited or not entry.watched:
                reads[pid] = partial(self.reader.stat, pid)
        found = read_all(list(reads.values()))
        return {pid: _Read(outcome, pid in watched) for pid, outcome in zip(reads, found, strict=True)}

    def refresh(self) -> None:
        """Have the next ticks follow state, resident memory and exec of all processes; at the slow rate."""
        if not self._to_follow:  # ticks may be few and processes many: all have their turn
            self._to_follow = list(self._entries)

    def follow_soon(self, pids: Iterable[int]) -> None:
        """Have the next tick read all of these anew, and first: somebody asks about them."""
        wanted = [pid for pid in pids if pid in self._entries]
        self._asked_about.update(wanted)
        self._to_follow = [*wanted, *(pid for pid in self._to_follow if pid not in self._asked_about)]

    def _follow(self) -> None:
        at_once = max(_FOLLOWED_AT_ONCE, len(self._entries) // _FOLLOWED_PART)
        turn, self._to_follow = self._to_follow[:at_once], self._to_follow[at_once:]
        reads: dict[int, Callable[[], ProcessRecord | None]] = {}
        for pid in turn:
            entry = self._entries.get(pid)
            if entry is None:
                self._asked_about.discard(pid)
                continue
            reads[pid] = partial(self._renewed, pid, entry.record, anew=pid in self._asked_about)
        for pid, record in zip(reads, read_all(list(reads.values())), strict=True):
            if isinstance(record, Exception):
                _raise_defect(record)
            elif record is not None:  # if it has gone, its pidfd says so
                entry = self._entries[pid]
                self._asked_about.discard(pid)
                self._outdated |= record is not entry.record
                entry.record = record

    def _renewed(self, pid: int, record: ProcessRecord, *, anew: bool) -> ProcessRecord | None:
        """Return a record as it is now; None where another process has the number. Raises as `ProcessReader.stat`."""
        stat = self.reader.stat(pid)
        return self.reader.renew(record, stat, anew=anew) if stat.start_ticks == record.info.id.start_ticks else None

    def is_running(self, identity: ProcessId) -> bool | None:
        """Return whether a process of this boot runs, whoever lists it; None where that is unknown.

        Where one has kept this waiting, nobody is asked about for some seconds: many could do so one after the other.
        """
        began = time.monotonic()
        if not self.host_pid_namespace or began < self._asks_again_at:
            return None
        try:
            stat = read_within(HANGS_AFTER_SECONDS, partial(self.reader.stat, identity.pid))
        except _GONE:
            return False
        except _UNREADABLE:
            return None
        finally:
            if time.monotonic() - began >= _SLOW_SECONDS:
                self._asks_again_at = time.monotonic() + _PAUSE_SECONDS
        return stat.start_ticks == identity.start_ticks and stat.state not in _ENDED

    def runs(self) -> tuple[CollectorRun, ...]:
        """Return how those fared that are asked what /proc does not report."""
        return () if self._containers is None else self._containers.runs()

    def close(self) -> None:
        """Forget all processes and give back their descriptors."""
        self._entries.clear()
        self._resolved = {}
        self._watch.close()

    def _resolve(self, pid: int, ahead: _Read | None, *, has_exited: bool) -> ProcessInfo | None:
        if pid in self._dead:
            return None
        entry = self._entries.get(pid)
        if entry is not None and (has_exited or not entry.watched):
            entry = self._check(pid, entry, ahead)
        elif entry is None:
            entry = self._read_new(pid, ahead)
        if entry is None:
            self._dead.add(pid)
            return None
        return entry.record.info

    def _read_new(self, pid: int, ahead: _Read | None = None) -> _Entry | None:
        """Take in a process that was not known, by what was read of it ahead.

        If its pidfd has fired since, the number may have been given away meanwhile: what is there now is read again.
        """
        if ahead is None:
            watched = self._watch.add(pid)
            (outcome,) = read_all([partial(self.reader.read, pid)])
            ahead = _Read(outcome, watched)
        watched = ahead.watched
        record = self._recorded(pid, ahead.outcome, alive=watched)
        if watched and self._watch.has_exited(pid):
            self._watch.remove(pid)
            watched = False
            (again,) = read_all([partial(self.reader.read, pid)])
            record = self._recorded(pid, again, alive=False)
        if record is None:
            return None
        entry = self._entries[pid] = _Entry(record, watched)
        self._count(record.info.id)
        return entry

    def _check(self, pid: int, entry: _Entry, ahead: _Read | None) -> _Entry | None:
        """Look again at a process that has ended, or whose end nobody would tell."""
        stat = ahead.outcome if ahead is not None else None
        if isinstance(stat, _GONE):
            self._forget(pid)
            return None
        if isinstance(stat, Exception) or not isinstance(stat, Stat):
            _raise_defect(stat)
            self._unwatch(pid, entry)
            return entry
        # Start times are 10 ms apart at best: one that has ended and seems to run is another.
        runs_again = entry.watched and stat.state not in _ENDED
        if runs_again or stat.start_ticks != entry.record.info.id.start_ticks:
            self._forget(pid)
            return self._read_new(pid)
        # Ended and still listed is a zombie, and a pidfd cannot tell when that one goes.
        self._unwatch(pid, entry)
        if stat.state == "Z" != entry.record.info.state:
            entry.record = self.reader.renew(entry.record, stat)
        return entry

    def _recorded(self, pid: int, outcome: object, *, alive: bool) -> ProcessRecord | None:
        """Return what was read of a process; None if it has gone.

        One that is known to be alive, but not to be found or not to be read, is hidden.
        """
        if isinstance(outcome, ProcessRecord):
            return outcome
        if isinstance(outcome, _GONE) and not alive:
            return None
        _raise_defect(outcome)
        self._hidden += 1
        return self.reader.unreadable(pid, self._hidden)

    def _unwatch(self, pid: int, entry: _Entry) -> None:
        self._watch.remove(pid)
        entry.watched = False

    def _forget(self, pid: int) -> None:
        self._watch.remove(pid)
        self._entries.pop(pid, None)

    def _note_unlisted(self, identity: ProcessId) -> None:
        self._unlisted[identity.pid] = identity.start_ticks
        if len(self._unlisted) > _MOST_UNLISTED:
            del self._unlisted[next(iter(self._unlisted))]

    def _count(self, identity: ProcessId) -> None:
        """Count a process once, also when the driver's list came without it for a while."""
        if self._unlisted.pop(identity.pid, None) != identity.start_ticks:
            self.processes_seen += 1


def _raise_defect(outcome: object) -> None:
    """Raise what a read has raised where that is no fact about the process, but a defect."""
    if isinstance(outcome, Exception) and not isinstance(outcome, _UNREADABLE):
        raise outcome
