"""All processes of the machine at one look, with what ties them to one another: parents, groups, terminals, tracers.

One pass over `stat` and `status`, which everybody may read. It is made only where a remedy is about to act, or a person
asks what it would do. `Placement` is where a process runs by the kernel's word: what shares its cgroups and login may
be a target's own work.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from gpuagent.procfs.cgroup import CgroupLevel, leaves
from gpuagent.procfs.credentials import has_host_uids
from gpuagent.procfs.files import LivingThread, ProcFiles, living_thread, parse_stat, read_living
from gpuagent.procfs.hanging import HangingProcess

HOST_INIT = 1
"""Pid of the first process of a pid namespace, the host's among them."""
LISTINGS = 5
"""Short programs begin at any time; a few listings find whoever was started by one that was read already."""
GONE = (FileNotFoundError, ProcessLookupError)
"""What reading a file of /proc raises once its process has ended."""
_ENDED = frozenset({"Z", "X"})
_STOPPED = frozenset({"T", "t"})
_TRACER = re.compile(rb"^TracerPid:\s*(\d+)", re.MULTILINE)
_UIDS = re.compile(rb"^Uid:\s*(\d+)\s+(\d+)\s+(\d+)\s+(\d+)", re.MULTILINE)
_NAMESPACE_PIDS = re.compile(rb"^NSpid:([0-9\t ]+)$", re.MULTILINE)

_STATUS_LINE = re.compile(rb"^(\w+):\t(.*)$", re.MULTILINE)
_ANY_TERMINAL = os.makedev(136, 2**20 - 1)
"""Device number of a pseudo-terminal that none has: the pool has fewer."""
_NO_START = 2**63


_LARGE_BYTES = 16 * 1024
"""A status with some 1,600 groups. The kernel writes all of it before it gives any: 17 ms of CPU for 65,535 groups."""
_LARGE_SECONDS = 60.0
_MOST_LARGE_SECONDS = 3.0
"""For all of them at one look, of the 10 s that a decision has."""


class _Status(NamedTuple):
    """What is needed of /proc/PID/status."""

    uids: frozenset[int]
    namespace_pids: tuple[int, ...]
    tracer: int


class LargeStatuses:
    """Those of processes with thousands of groups in user namespaces of somebody's own, kept for a minute.

    A user with subordinate group ids (subgid(5)) can have such processes: 200 of them, read several times for each
    decision, would keep everybody's remedies waiting. In the host's own user namespace root alone gives groups, and
    nothing is kept. Who traces such a process is in its namespace, or may do anything to it in any case.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds."""
        self._clock = clock
        self._kept: dict[tuple[int, int], tuple[float, _Status]] = {}

    def forget_old(self) -> None:
        """Let go of those that are read anew the next time."""
        before = self._clock() - _LARGE_SECONDS
        for key, (read_at, _) in tuple(self._kept.items()):
            if read_at <= before:
                self._kept.pop(key, None)

    def read(self, files: ProcFiles, pid: int, start_ticks: int, spent: defaultdict[int, float]) -> _Status:
        """Return what the status of a process says.

        `spent` has the seconds that such processes have taken at this look, by user. Raises OSError, ValueError for
        what is no status, and UnseenProcesses where they take too long.
        """
        if known := self._kept.get((pid, start_ticks)):
            return known[1]
        began = self._clock()
        status = files.read(pid, "status")
        uids, namespace_pids, tracer = _UIDS.search(status), _NAMESPACE_PIDS.search(status), _TRACER.search(status)
        if uids is None or namespace_pids is None:
            raise ValueError(f"what it says of pid {pid} cannot be understood")
        found = _Status(
            frozenset(map(int, uids.groups())),
            tuple(map(int, namespace_pids[1].split())),
            int(tracer[1]) if tracer else 0,
        )
        if len(status) > _LARGE_BYTES:
            self._count(self._clock() - began, found.uids, spent)
            if has_host_uids(files, pid) is False:
                self._kept[pid, start_ticks] = self._clock(), found
        return found

    def _count(self, seconds: float, uids: Iterable[int], spent: defaultdict[int, float]) -> None:
        spent[max(uids)] += seconds
        if sum(spent.values()) > _MOST_LARGE_SECONDS:
            uid = max(spent, key=lambda each: spent[each])
            raise UnseenProcesses(
                f"processes of uid {uid} with thousands of groups each take too long to read: they have to end first"
            )


_LARGE_STATUSES = LargeStatuses()
"""Those of this machine."""


class UnseenProcesses(Exception):
    """Not every process can be seen, so nobody can tell who is tied to whom."""


class SystemdSilent(UnseenProcesses):
    """Systemd cannot be asked: there is none, or it does not answer."""


class ProcessRow(NamedTuple):
    """One living process: fields 1 to 8, 20, 22 and 38 of proc_pid_stat(5), and three of proc_pid_status(5)."""

    pid: int
    name: str
    state: str
    parent_pid: int
    group: int
    session: int
    terminal: int
    """Device number of the controlling terminal; 0 for none."""
    foreground: int
    """Process group in the foreground of that terminal; -1 for none."""
    start_ticks: int
    uids: frozenset[int]
    """Real, effective, saved and file system user id of the first thread, without repetition."""
    tracer: int
    """Thread that traces the first thread; 0 for none."""
    namespace_pids: tuple[int, ...]
    """Its pid in each namespace, from the reader's own inwards."""
    exit_signal: int = signal.SIGCHLD
    """Signal that the kernel sends its parent at its end, whoever that is; 0 for none (clone(2))."""
    living_state: str = ""
    """State of a thread that lives, where the first one has ended; "" otherwise."""

    @property
    def is_stopped(self) -> bool:
        return (self.living_state or self.state) in _STOPPED

    @property
    def is_namespace_init(self) -> bool:
        """Whether everybody in a pid namespace ends with it."""
        return len(self.namespace_pids) > 1 and self.namespace_pids[-1] == 1


def list_pids(root: str = "/proc") -> list[int]:
    """Return the pids that /proc lists. Raises OSError."""
    return [int(name) for name in os.listdir(root) if name.isdigit()]  # noqa: PTH208  there may be ten thousands


class ProcessScan:
    """Every living process by its pid. A process counts as living while any thread of it does."""

    def __init__(
        self,
        files: ProcFiles,
        pids: Callable[[], Iterable[int]] = list_pids,
        large: LargeStatuses = _LARGE_STATUSES,
    ) -> None:
        """Read them. Raises UnseenProcesses."""
        large.forget_old()
        self.rows: Mapping[int, ProcessRow] = _read_all(files, pids, large)

    @cached_property
    def children(self) -> Mapping[int, Collection[int]]:
        """Pids of the children of each process."""
        found: dict[int, list[int]] = defaultdict(list)
        for row in self.rows.values():
            found[row.parent_pid].append(row.pid)
        return found

    @cached_property
    def groups(self) -> Mapping[int, Sequence[ProcessRow]]:
        """Members of each process group."""
        found: dict[int, list[ProcessRow]] = defaultdict(list)
        for row in self.rows.values():
            found[row.group].append(row)
        return found

    def descendants(self, pids: Collection[int]) -> Iterator[tuple[int, int]]:
        """Yield each descendant once, with the one of `pids` that it descends from; none of `pids` is yielded."""
        met = set(pids)
        waiting = [(pid, pid) for pid in pids]
        while waiting:
            pid, ancestor = waiting.pop()
            for child in self.children.get(pid, ()):
                if child not in met:
                    met.add(child)
                    waiting.append((child, ancestor))
                    yield child, ancestor


def _read_all(files: ProcFiles, pids: Callable[[], Iterable[int]], large: LargeStatuses) -> dict[int, ProcessRow]:
    found: dict[int, ProcessRow] = {}
    seen: set[int] = set()
    spent: defaultdict[int, float] = defaultdict(float)
    try:
        for _ in range(LISTINGS):
            new = set(pids()) - seen
            if not new:
                break
            seen |= new
            for pid in new:
                try:
                    row = _read(files, pid, large, spent)
                except GONE:
                    continue
                if row is not None:
                    found[pid] = row
    except (OSError, ValueError) as error:
        raise UnseenProcesses(f"/proc does not show every process: {error}") from error
    if HOST_INIT not in found:
        raise UnseenProcesses("/proc does not show every process (hidepid)")
    return found


def _read(files: ProcFiles, pid: int, large: LargeStatuses, spent: defaultdict[int, float]) -> ProcessRow | None:
    """Return a process; None for one that has ended. Raises OSError, and ValueError for what is none."""
    try:
        stat = files.read(pid, "stat")
    except HangingProcess:
        return _read_hanging(files, pid)
    opening, closing = stat.find(b" ("), stat.rfind(b") ")
    fields = stat[closing + 2 :].split()
    if opening < 0 or closing <= opening or len(fields) < 20:
        raise ValueError(f"what it says of pid {pid} cannot be understood")
    state = fields[0].decode("ascii")
    living_state = ""
    if state in _ENDED:
        if int(fields[17]) <= 1:  # where more live, its first thread alone has ended
            return None
        thread = living_thread(files, parse_stat(stat))
        living_state = thread.stat.state if thread else ""
    status = large.read(files, pid, int(fields[19]), spent)
    return ProcessRow(
        pid, stat[opening + 2 : closing].decode("utf-8", "replace"), state, int(fields[1]), int(fields[2]),
        int(fields[3]), int(fields[4]), int(fields[5]), int(fields[19]), status.uids,
        status.tracer, status.namespace_pids,
        int(fields[35]) if len(fields) > 35 else signal.SIGCHLD, living_state,
    )  # fmt: skip


def _read_hanging(files: ProcFiles, pid: int) -> ProcessRow:
    """Return a process by its status alone, as `stat` hangs. What that does not tell is so as it ties it to most.

    It may be at any pseudo-terminal, and is older than nobody. Who has it among those that end cannot read more of it,
    and is withheld then. Raises as `_read`.
    """
    status = files.read(pid, "status")
    fields = dict(_STATUS_LINE.findall(status))
    try:
        namespace_pids, groups, sessions = (
            tuple(map(int, fields[name].split())) for name in (b"NSpid", b"NSpgid", b"NSsid")
        )
        return ProcessRow(
            pid, fields[b"Name"].decode("utf-8", "replace"), fields[b"State"][:1].decode("ascii"),
            int(fields[b"PPid"]), groups[0], sessions[0], _ANY_TERMINAL, -1, _NO_START,
            frozenset(map(int, fields[b"Uid"].split())), int(fields[b"TracerPid"]), namespace_pids,
        )  # fmt: skip
    except (KeyError, IndexError, ValueError) as error:
        raise ValueError(f"what it says of pid {pid} cannot be understood") from error


class Placement(NamedTuple):
    """The cgroup in every hierarchy, and the login that it came from."""

    cgroups: bytes
    """Cgroups as /proc has them; b"" for a process of which no thread is seen to live."""
    login: tuple[bytes, bytes]
    """Login uid and audit session; b"" where the kernel tells none."""

    def difference(self, other: Placement) -> str:
        """Return how another process is in another place than this one; "" where it is in the same or below it."""
        if not self._holds(other):
            return "in another cgroup"
        return "of another login" if self.login != other.login else ""

    def _holds(self, other: Placement) -> bool:
        """Return whether the other is in the same cgroups or in such below them. Nothing counts as below a root."""
        if self.cgroups == other.cgroups:
            return True
        here, there = ({each.controllers: each for each in leaves(one.cgroups)} for one in (self, other))
        return bool(here) and here.keys() == there.keys() and all(_is_below(there[name], here[name]) for name in here)


def _is_below(level: CgroupLevel, above: CgroupLevel) -> bool:
    """Return whether it is the same cgroup or one below it."""
    below = level.segments[: len(above.segments)] == above.segments and bool(above.segments)
    return level == above or (level.above == above.above and below)


def read_placement(files: ProcFiles, pid: int) -> Placement:
    """Read where a process stands.

    Raises FileNotFoundError or ProcessLookupError (gone), OSError and ValueError (not to be read).
    """
    cgroups = read_living(files, parse_stat(files.read(pid, "stat")), _cgroups)
    return Placement(cgroups or b"", (_number(files, pid, "loginuid"), _number(files, pid, "sessionid")))


def _cgroups(thread: LivingThread) -> bytes:
    return thread.read("cgroup")


def _number(files: ProcFiles, pid: int, name: str) -> bytes:
    """Return a file's number; a kernel without audit has no such file."""
    try:
        return files.read(pid, name).strip()
    except FileNotFoundError:
        if files.exists(pid):
            return b""
        raise
