"""Find the processes that the kernel hangs up when others end: by pseudo-terminals and by job control.

A terminal program (tmux, screen, sshd, script, a notebook server, the shim of a container) has the master open, and its
sessions run on the slave, `/dev/pts/N`. The kernel tells the number in `fdinfo` of the master alone (`pty_show_fdinfo`,
drivers/tty/pty.c). Each devpts file system counts its own numbers, so the file system is compared too where it is told
(pts(4)). Reading the open files of another user's process takes the right to trace it. Threads may have open files of
their own, by unshare(CLONE_FILES): those are in no other list. Nothing here opens or asks a file that the process
chose: a file system in user space could keep the agent waiting.

* The leader of a session with a terminal ends: SIGHUP goes to the foreground process group of that terminal, whoever
  its processes belong to, as what a person runs by `sudo -u somebody` in a shell (`disassociate_ctty`).
* A leader whose terminal was hung up before (a connection that was lost, of a program that ignores SIGHUP) sends SIGHUP
  and SIGCONT to what was the foreground then (`tty_old_pgrp`, drivers/tty/tty_jobctrl.c).
* A descriptor can be sent through a socket (SCM_RIGHTS), and lie there unread: then it is in nobody's list, and the
  terminal is hung up with the last socket that leads to it. `fdinfo` of a socket tells how many lie in it (`scm_fds`,
  since Linux 5.11). Files that are registered with an io_uring are in nobody's list either.
* A process group becomes an orphan while a member of it is stopped: nobody could continue it, so it gets SIGHUP and
  SIGCONT (`kill_orphaned_pgrp`, kernel/exit.c). A member whose parent is in another group of the session keeps it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import socket
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from gpuagent.procfs.files import ProcFiles, living_thread, parse_stat
from gpuagent.procfs.hanging import READS, HangingProcess
from gpuagent_alerts.remedies.facts.open_terminals import (
    ANY,
    Device,
    LookTime,
    Slave,
    read_device,
    slave_of,
    terminal_of,
)
from gpuagent_alerts.remedies.facts.process_scan import HOST_INIT, ProcessRow, ProcessScan, UnseenProcesses

_SLAVE_MAJOR = 136  # UNIX98_PTY_SLAVE_MAJOR, include/uapi/linux/major.h
_INDEX = re.compile(rb"^tty-index:\s*(\d+)", re.MULTILINE)
_MOUNT = re.compile(rb"^mnt_id:\s*(\d+)", re.MULTILINE)
_MOST_DESCRIPTORS = 65536
_MOST_SOCKET_BYTES = 16 * 1024 * 1024
_IN_FLIGHT = re.compile(rb"^scm_fds:\s*(\d+)", re.MULTILINE)
_REGISTERED = re.compile(rb"^UserFiles:\s*(\d+)", re.MULTILINE)
_PENDING = re.compile(rb"^\s*op=\d+", re.MULTILINE)
"""A request of an io_uring that waits, below `PollList:`: its file stays open, whatever is closed meanwhile."""
_SOCKET = "socket:["
_RING = "anon_inode:[io_uring]"
_MASTER = "ptmx"
_DELETED = " (deleted)"
"""At the end of a link to a terminal that was hung up: with its other side devpts loses the node (`devpts_pty_kill`,
fs/devpts/inode.c). Nobody else can take it away, and a node outside devpts does not open one."""
_KCMP = {"x86_64": 312, "aarch64": 272}  # arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h
_KCMP_FILES = 2
_KCMP_LESS, _KCMP_GREATER, _KCMP_UNORDERED = 1, 2, 3


class Master(NamedTuple):
    """The other side of a pseudo-terminal."""

    number: int
    """N of `/dev/pts/N`."""
    file_system: str
    """Device number of its devpts; "" where it is not told."""
    possible: frozenset[str] = frozenset()
    """Devpts that it may be of; none where it may be of any."""


class OpenFiles:
    """What /proc tells of open files. Methods raise OSError."""

    def __init__(self, root: str = "/proc") -> None:
        self._root = root

    def list(self, pid: int, folder: str) -> list[int]:
        """Return the descriptors of a process, none once it has gone, or of a thread: `folder` is "" or "task/TID/"."""
        try:
            return [int(name) for name in os.listdir(f"{self._root}/{pid}/{folder}fd")]  # noqa: PTH208  names do
        except (FileNotFoundError, ProcessLookupError):
            if Path(self._root, str(pid)).exists():
                raise
            return []

    def path(self, pid: int, folder: str, descriptor: int) -> str:
        """Return what the link of a descriptor says."""
        with READS.reading(pid, "fd"):
            return os.readlink(f"{self._root}/{pid}/{folder}fd/{descriptor}")  # noqa: PTH115  no file is made of it

    def info(self, pid: int, folder: str, descriptor: int) -> bytes:
        """Return its fdinfo."""
        with READS.reading(pid, "fdinfo"):
            return Path(f"{self._root}/{pid}/{folder}fdinfo/{descriptor}").read_bytes()

    def tells_of_sockets(self) -> bool:
        """Return whether the kernel tells how many files lie unread in a socket."""
        one, other = socket.socketpair(socket.AF_UNIX)
        with one, other:
            return b"scm_fds" in Path(f"{self._root}/self/fdinfo/{one.fileno()}").read_bytes()

    def local_sockets(self, pid: int) -> bytes:
        """Return its net/unix, which has a line for each socket of its network: thousands on a busy node.

        Raises also ValueError where that is more than can be read.
        """
        with READS.reading(pid, "net/unix"), Path(f"{self._root}/{pid}/net/unix").open("rb") as lines:
            known = lines.read(_MOST_SOCKET_BYTES)
        if len(known) == _MOST_SOCKET_BYTES:
            raise ValueError(f"pid {pid} is in a network of too many sockets")
        return known

    def device(self, pid: int, folder: str, descriptor: int) -> Device | None:
        """Return the device that a descriptor is open for; None for another file."""
        with READS.reading(pid, "fd"):
            return read_device(f"{self._root}/{pid}/{folder}fd/{descriptor}")

    def terminal(self, pid: int, folder: str, descriptor: int) -> int:
        """Return the device number of the terminal that is open as /dev/tty."""
        if folder:
            raise OSError("the descriptors of a single thread are not copied")
        with READS.reading(pid, "fd"):
            return terminal_of(pid, descriptor)

    def mounts(self, pid: int, folder: str) -> bytes:
        """Return its whole mountinfo."""
        return Path(f"{self._root}/{pid}/{folder}mountinfo").read_bytes()


class PtyMasters:
    """Looks for masters among the open files of processes."""

    def __init__(self, files: ProcFiles, open_files: OpenFiles) -> None:
        self._files = files
        self._open = open_files
        self.time = LookTime(self._size)
        """Of the looks at other processes; whoever calls for many of them takes these from its rows."""

    def held_by(self, pid: int) -> frozenset[Master]:
        """Return all masters that any thread of a process has open; none of one that has ended.

        Raises OSError, ValueError.
        """
        found = set(self._find(pid, lambda path: path.startswith("/")))
        for thread in self._other_tables(pid):
            found.update(self._find(pid, lambda path: path.startswith("/"), f"task/{thread}/"))
        return frozenset(found)

    def paths(self, pid: int) -> frozenset[str]:
        """Return what the links of all its descriptors say, of all threads; none of one that has ended.

        Raises OSError, ValueError.
        """
        return frozenset(path for _, _, path in self._links(pid))

    def devices(self, pid: int, is_meant: Callable[[Device], bool]) -> list[tuple[str, Device, bytes]]:
        """Return link, device and fdinfo of each open device that is meant. Raises as `paths`."""
        found: list[tuple[str, Device, bytes]] = []
        for folder, descriptor, path in self._links(pid):
            with suppress(FileNotFoundError, ProcessLookupError):  # closed meanwhile
                device = self._open.device(pid, folder, descriptor) if path.startswith("/") else None
                if device and is_meant(device):
                    found.append((path, device, self._open.info(pid, folder, descriptor)))
        return found

    def _links(self, pid: int) -> Iterator[tuple[str, int, str]]:
        """Yield each descriptor with its folder and link, of every table of a process."""
        for folder in (self._folder(pid), *(f"task/{thread}/" for thread in self._other_tables(pid))):
            for descriptor in self._open.list(pid, folder) if folder is not None else ():
                self.time.check()
                with suppress(FileNotFoundError, ProcessLookupError):  # closed meanwhile
                    yield folder or "", descriptor, self._open.path(pid, folder or "", descriptor)

    def mountinfo(self, pid: int) -> bytes:
        """Return the mounts that a process sees; b"" for one that has ended. Raises OSError."""
        folder = self._folder(pid)
        return b"" if folder is None else self._open.mounts(pid, folder)

    def slaves(self, pid: int) -> frozenset[Slave]:
        """Return the terminals that any thread of a process has open, as far as that may be seen; none that is hung up.

        Raises UnseenProcesses for one that hangs in the kernel: it may have any.
        """
        found: set[Slave] = set()
        try:
            for slave in self._slaves(pid):
                found.add(slave)
        except HangingProcess as error:
            raise UnseenProcesses(f"its open files cannot be seen: {error}") from error
        except (OSError, ValueError):
            pass
        return frozenset(found)

    def _slaves(self, pid: int) -> Iterator[Slave]:
        for folder, descriptor, path in self._links(pid):
            try:
                slave = self._slave(pid, folder, descriptor) if path.startswith("/") else None
            except HangingProcess:
                raise
            except OSError:  # closed meanwhile
                continue
            if slave and not (path.endswith(_DELETED) and slave.file_system):
                yield slave

    def _slave(self, pid: int, folder: str, descriptor: int) -> Slave | None:
        device = self._open.device(pid, folder, descriptor)
        return slave_of(device, lambda: self._open.terminal(pid, folder, descriptor)) if device else None

    def _size(self, pid: int) -> str:
        """Return how many files a process has open, and how many threads may have others. Raises OSError."""
        return f"{len(self._open.list(pid, ''))} open files and {len(self._files.threads(pid))} threads"

    def _other_tables(self, pid: int) -> Iterator[int]:
        return other_tables(self._files, pid, self.time.check)

    def of_all(self, rows: Iterable[ProcessRow]) -> frozenset[tuple[int, str]]:
        """Return number and devpts of the masters that any of these is proven to have open: they are not closed.

        One whose files cannot be read is not known to have any. Nor is anybody where it is not proven of which devpts
        one is: then the same number may be another terminal's. Raises UnseenProcesses where it takes too long.
        """
        found: set[tuple[int, str]] = set()
        for row in self.time.rows(rows):
            with suppress(OSError, ValueError):
                for each in self._find(row.pid, lambda path: path.endswith(_MASTER)):
                    found.add((each.number, each.file_system))
        return frozenset(each for each in found if each[1])

    def is_on(self, row: ProcessRow, master: Master, slaves: Collection[Slave], mates: Collection[Slave]) -> bool:
        """Return whether a process may have this terminal, as the controlling one or open and no more.

        Its number alone does not tell: of another devpts it is another terminal. Which devpts it is on say descriptors
        for terminals of that number: its own `slaves`, and those of its session, `mates`. Without any it counts.
        """
        if any(
            each.number == ANY
            or (each.number == master.number and (not master.possible or each.file_system in {*master.possible, ""}))
            for each in slaves
        ):
            return True
        if pty_number(row.terminal) != master.number:
            return False
        told = {each.file_system for each in (*slaves, *mates) if each.number == master.number} - {""}
        return not (told and master.possible) or bool(told & master.possible)

    def may_have_in_flight(self, pid: int) -> bool:
        """Return whether a process may keep files that are in nobody's list: unread in a socket, or registered.

        Raises OSError, ValueError.
        """
        folders = [self._folder(pid), *(f"task/{thread}/" for thread in self._other_tables(pid))]
        return any(self._has_in_flight(pid, folder) for folder in folders if folder is not None)

    def _has_in_flight(self, pid: int, folder: str) -> bool:
        for descriptor in self._open.list(pid, folder):
            self.time.check()
            try:
                path = self._open.path(pid, folder, descriptor)
                if path.startswith(_SOCKET):
                    info = self._open.info(pid, folder, descriptor)
                    told = _IN_FLIGHT.search(info)
                    if int(told[1]) if told else self._may_be_untold(pid, path):
                        return True
                elif path == _RING:
                    info = self._open.info(pid, folder, descriptor)
                    told = _REGISTERED.search(info)
                    if told is None or int(told[1]) or _PENDING.search(info):
                        return True
            except (FileNotFoundError, ProcessLookupError):  # closed meanwhile
                continue
        return False

    def _may_be_untold(self, pid: int, path: str) -> bool:
        """Return whether a socket may have files in it of which the kernel does not tell: before Linux 5.11."""
        if self._open.tells_of_sockets():
            return False
        number = path.removeprefix(_SOCKET).removesuffix("]").encode()
        try:
            known = self._open.local_sockets(pid)
        except (OSError, ValueError):
            return True
        return any(number in line.split() for line in known.split(b"\n"))

    def unheld(self, rows: Collection[ProcessRow], holders: Collection[ProcessRow]) -> Iterator[tuple[ProcessRow, int]]:
        """Yield which of `rows` are on a terminal whose other side none of `holders` is proven to have open.

        One whose files cannot be read is not seen to have any. Raises UnseenProcesses.
        """
        by_number: dict[int, set[str]] = {}
        for number, file_system in self.of_all(holders):
            by_number.setdefault(number, set()).add(file_system)
        for row in self.time.rows(rows):
            slaves = self.slaves(row.pid)
            own = pty_number(row.terminal)
            for number in {each.number for each in slaves} | (set() if own is None else {own}):
                told = {each.file_system for each in slaves if each.number == number} - {""}
                held = by_number.get(number, set())
                if not (told <= held if told else held & self._seen_devpts(row.pid)):
                    yield row, number

    def _seen_devpts(self, pid: int) -> frozenset[str]:
        """Return the devpts that a process sees; none where that may not be seen."""
        with suppress(OSError, ValueError):
            folder = self._folder(pid)
            if folder is not None:
                return frozenset(each.device for each in mounts_of(self._open.mounts(pid, folder)) if each.is_devpts)
        return frozenset()

    def _find(self, pid: int, is_candidate: Callable[[str], bool], folder: str | None = None) -> Iterator[Master]:
        folder = self._folder(pid) if folder is None else folder
        if folder is None:
            return
        descriptors = self._open.list(pid, folder)
        if len(descriptors) > _MOST_DESCRIPTORS:
            raise ValueError(f"pid {pid} has more than {_MOST_DESCRIPTORS} open files")
        for descriptor in descriptors:
            self.time.check()
            try:
                path = self._open.path(pid, folder, descriptor)
                if is_candidate(path) and (index := _INDEX.search(info := self._open.info(pid, folder, descriptor))):
                    possible = self._file_systems(pid, folder, descriptor, info, path)
                    yield Master(int(index[1]), next(iter(possible)) if len(possible) == 1 else "", possible)
            except (FileNotFoundError, ProcessLookupError):  # closed meanwhile
                continue

    def _folder(self, pid: int) -> str | None:
        """Return where its open files are told: by a thread that lives. None where it has ended."""
        try:
            thread = living_thread(self._files, parse_stat(self._files.read(pid, "stat")))
        except (FileNotFoundError, ProcessLookupError):
            return None
        return None if thread is None else thread.folder

    def _file_systems(self, pid: int, folder: str, descriptor: int, info: bytes, path: str) -> frozenset[str]:
        """Return the devpts of a master: that of its node, or the one beside a node in another file system.

        So the kernel chooses it when the node is opened (`devpts_acquire`, fs/devpts/inode.c). What lies beside it now
        is proof where root alone could have changed it: in mounts of the host, or of a process in the host's user
        namespace. Several where they lie one upon the other; none where it may be any.
        """
        try:
            device = self._open.device(pid, folder, descriptor)
            host = list(mounts_of(self._open.mounts(HOST_INIT, "")))
            if device and device.file_system in {each.device for each in host if each.is_devpts}:
                return frozenset({device.file_system})
            mounts = {each.mount_id: each for each in mounts_of(self._open.mounts(pid, folder))}
            seen = frozenset(each.device for each in mounts.values() if each.is_devpts)
            if device and device.file_system in seen:  # its node is in a devpts, whoever has mounted that
                return frozenset({device.file_system})
            if _mount_id(info) in {each.mount_id for each in host}:
                return _beside(host, info, path)
            # Read after the mounts: nobody comes back to the user namespace of the host.
            if self._files.link(pid, f"{folder}ns/user") == self._files.link(HOST_INIT, "ns/user"):
                return _beside(mounts.values(), info, path)
        except (OSError, ValueError):
            pass
        return frozenset()


def _beside(mounts: Collection[Mount], info: bytes, path: str) -> frozenset[str]:
    """Return the devpts beside the node of a master, if its mount is one of these."""
    if not any(each.mount_id == _mount_id(info) for each in mounts):
        return frozenset()
    point = f"{path.rpartition('/')[0]}/pts"
    return frozenset(each.device for each in mounts if each.is_devpts and each.point == point)


def pty_number(device: int) -> int | None:
    """Return N of `/dev/pts/N` by the device number in `stat`; None for what is no pseudo-terminal."""
    unsigned = device & 0xFFFFFFFF
    return os.minor(unsigned) if os.major(unsigned) == _SLAVE_MAJOR else None


class Mount(NamedTuple):
    """A line of mountinfo."""

    mount_id: int
    point: str
    root: str
    """What of its file system is mounted there."""
    device: str
    is_devpts: bool


def _mount_id(info: bytes) -> int:
    found = _MOUNT.search(info)
    return int(found[1]) if found else 0


def mounts_of(mountinfo: bytes) -> Iterator[Mount]:
    """Yield every mount: proc_pid_mountinfo(5)."""
    for line in os.fsdecode(mountinfo).split("\n"):
        mount, _, kind = line.partition(" - ")
        fields = mount.split(" ")
        if len(fields) > 4 and fields[0].isdecimal():
            yield Mount(int(fields[0]), fields[4], fields[3], fields[2], kind.startswith("devpts "))


def other_tables(files: ProcFiles, pid: int, check: Callable[[], None] = lambda: None) -> Iterator[int]:
    """Yield a thread for each table of descriptors that is not the first thread's.

    Nothing where the kernel does not compare them (no kcmp(2)), or the process has gone. It takes the right to trace
    it. `check` is called for each thread; what it raises is passed on.
    """
    number = _KCMP.get(platform.machine())
    if number is None:
        return
    kcmp = ctypes.CDLL(None, use_errno=True).syscall

    def compare(one: int, other: int) -> int:
        return int(kcmp(number, one, other, _KCMP_FILES, 0, 0))

    try:
        threads = sorted(files.threads(pid))
    except OSError:
        return
    known = [pid]
    """In the kernel's order of their tables: each with each would be millions of calls for some thousand threads."""
    for thread in threads:
        check()
        if thread != pid and (place := _place_in(known, thread, compare)) is not None:
            known.insert(place, thread)
            yield thread


def _place_in(known: list[int], thread: int, compare: Callable[[int, int], int]) -> int | None:
    """Return where a thread with a table of its own belongs; None for one that shares one, or cannot be compared.

    Those that have ended meanwhile are dropped.
    """
    low, high = 0, len(known)
    while low < high:
        middle = (low + high) // 2
        order = compare(known[middle], thread)
        if order == _KCMP_LESS:
            low = middle + 1
        elif order == _KCMP_GREATER:
            high = middle
        elif order == _KCMP_UNORDERED:
            return middle
        elif order == 0 or compare(thread, thread) != 0:
            return None
        else:
            del known[middle]
            high -= 1
    return low


def in_foreground_of(scan: ProcessScan, leader: ProcessRow) -> Iterator[ProcessRow]:
    """Yield who is in the foreground of the terminal of a session's leader; nobody where it is no such leader."""
    if leader.session == leader.pid and leader.terminal and leader.foreground > 0:
        yield from (row for row in scan.rows.values() if row.group == leader.foreground)


def in_old_foreground_of(scan: ProcessScan, leader: ProcessRow) -> Iterator[ProcessRow]:
    """Yield who may have been in the foreground of a terminal that a session's leader has lost; nobody of others.

    The kernel tells neither whether there was one nor which group that was. It was one of the session, and who leaves
    for another session may take the number of the group along. Left out are who has the leader's own group and user,
    which are its workers, and its descendants of another user, which count in any case.
    """
    if leader.session != leader.pid or leader.terminal:
        return
    family = {pid for pid, _ in scan.descendants([leader.pid])}
    members = {row.pid for row in scan.rows.values() if row.session == leader.pid} - {leader.pid}
    followers = {pid for pid, _ in scan.descendants(members) if scan.rows[pid].group == scan.rows[pid].session}
    for pid in sorted(members | followers):
        row = scan.rows[pid]
        is_others = row.uids != leader.uids
        if (pid not in family) if is_others else (pid in members and row.group != leader.group):
            yield row


def in_orphaned_groups(scan: ProcessScan, ended: Collection[int]) -> Iterator[ProcessRow]:
    """Yield who is in a group with a stopped member that becomes an orphan when these processes end."""
    gone = frozenset(ended)
    stopped = {row.group for row in scan.rows.values() if row.is_stopped and row.pid not in gone}
    for group in (each for each in stopped if each > 0):
        members = scan.groups[group]
        keepers = [(row.pid, row.parent_pid) for row in members if _keeps(scan, row)]
        if keepers and all(pid in gone or parent in gone for pid, parent in keepers):
            yield from members


def _keeps(scan: ProcessScan, member: ProcessRow) -> bool:
    """Return whether a member's parent keeps its group from being an orphan."""
    parent = scan.rows.get(member.parent_pid)
    return (
        parent is not None
        and parent.pid != HOST_INIT
        and parent.group != member.group
        and parent.session == member.session
    )
