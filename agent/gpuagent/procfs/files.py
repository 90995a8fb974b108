"""Read and parse the files that /proc has of a process.

The name of a process is chosen by the process: up to 15 bytes with spaces, parentheses, newlines or bytes that are not
UTF-8. `stat` shows it raw, so its end is the *last* parenthesis of the file; `status` escapes newlines, so there one
line is one fact. Field numbers are those of proc_pid_stat(5).

A task that exits (PF_EXITING) lets go of memory, program, root directory and, with cgroups of version 1, of its place:
`/proc/PID/cgroup` says "/" then (proc_cgroup_show(), kernel/cgroup/cgroup.c). While other threads of the process live
it has all of these still, under /proc/PID/task/TID. What was read in vain, or of a thread that has begun to exit
meanwhile, is no fact.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from gpuagent.procfs.hanging import READS

_CUT = "..."
_LONGEST_CHARACTER_BYTES = 4
_FOREIGN_BYTE = 0xDC00  # plus a byte that is no UTF-8: PEP 383, "surrogateescape"


def decode(data: bytes) -> str:
    r"""Decode UTF-8; `printable` turns a byte that is none into an escape such as \xff."""
    return data.decode("utf-8", "surrogateescape")


def printable(text: str, limit_bytes: int) -> str:
    r"""Escape what cannot be printed and cut the result to `limit_bytes` of UTF-8.

    Control characters, line breaks and the marks that turn the direction of writing become \n,
    \x1b, \u202e. A cut is shown by three dots and splits no character and no escape. `limit_bytes`
    is 3 or more.
    """
    if len(text) * _LONGEST_CHARACTER_BYTES <= limit_bytes and text.isprintable():
        return text
    kept: list[str] = []
    length = fitting = 0
    for character in text:
        piece = character if character.isprintable() else _escape(character)
        length += len(piece.encode())
        if length > limit_bytes:
            return "".join(kept[:fitting]) + _CUT
        kept.append(piece)
        if length <= limit_bytes - len(_CUT):
            fitting = len(kept)
    return "".join(kept)


def _escape(character: str) -> str:
    if _FOREIGN_BYTE <= ord(character) < _FOREIGN_BYTE + 256:
        return f"\\x{ord(character) - _FOREIGN_BYTE:02x}"
    return character.encode("unicode_escape").decode("ascii")


_FIRST_FIELD = 3  # the first field after the name
_PARENT, _GROUP, _FLAGS, _THREADS, _START, _RESIDENT = 4, 5, 9, 20, 22, 24
_PF_EXITING = 0x4  # include/linux/sched.h
_IMAGE_FIELDS = (28, 48, 49)  # startstack, arg_start, arg_end


class Stat(NamedTuple):
    """Part of /proc/<pid>/stat."""

    pid: int
    name: bytes
    state: str
    parent_pid: int
    threads: int
    """A zombie with more than one thread has lost its main thread only: it lives and holds its
    memory."""
    start_ticks: int
    """Start time since boot, in 1/sysconf(_SC_CLK_TCK) seconds."""
    resident_pages: int
    image: tuple[bytes, ...]
    """Name, and where stack and arguments lie: random per exec, so a change tells of one without
    reading `cmdline`. () where the kernel hides it, which it does unless the reader may trace the
    process."""
    process_group: int = 0
    """0 where the kernel does not report it, as of one that is being reaped."""
    flags: int = 0
    """The flags of the task, `PF_*` of include/linux/sched.h."""

    @property
    def exiting(self) -> bool:
        """Whether this thread has ended or begun to, others of the process may live."""
        return bool(self.flags & _PF_EXITING) or self.state in {"Z", "X"}


class ProcessStatus(NamedTuple):
    """Part of /proc/<pid>/status."""

    uid: int | None
    """Real user id."""
    namespace_pids: tuple[int, ...]
    """The pid in each namespace from /proc's own inwards: more than one number is a child
    namespace."""
    uids: tuple[int, ...] = ()
    """Real, effective, saved and file system user id; () where the line is missing or odd."""


def parse_stat(data: bytes) -> Stat:
    """Parse /proc/<pid>/stat.

    Raises ValueError where it is not one.
    """
    opening, closing = data.find(b" ("), data.rfind(b") ")
    fields = data[closing + 2 :].split()
    if opening < 0 or closing <= opening or len(fields) <= _RESIDENT - _FIRST_FIELD:
        message = f"not a stat file of a process: {data[:80]!r}"
        raise ValueError(message)
    name = data[opening + 2 : closing]
    image = [fields[n - _FIRST_FIELD] for n in _IMAGE_FIELDS if n - _FIRST_FIELD < len(fields)]
    return Stat(
        pid=int(data[:opening]),
        name=name,
        state=fields[0].decode("ascii"),
        parent_pid=int(fields[_PARENT - _FIRST_FIELD]),
        threads=int(fields[_THREADS - _FIRST_FIELD]),
        start_ticks=int(fields[_START - _FIRST_FIELD]),
        resident_pages=max(0, int(fields[_RESIDENT - _FIRST_FIELD])),
        image=(name, *image) if any(int(address) for address in image) else (),
        process_group=max(0, int(fields[_GROUP - _FIRST_FIELD])),
        flags=int(fields[_FLAGS - _FIRST_FIELD]),
    )


def parse_status(data: bytes) -> ProcessStatus:
    """Parse /proc/<pid>/status; a line that is missing or odd leaves its fact unknown."""
    uid: int | None = None
    namespace_pids: tuple[int, ...] = ()
    uids: tuple[int, ...] = ()
    for line in data.split(b"\n"):
        key, _, value = line.partition(b":")
        if key == b"Uid" and uid is None:
            uids = _numbers(value)
            uid = next(iter(uids), None)
        elif key == b"NSpid" and not namespace_pids:
            namespace_pids = _numbers(value)
    return ProcessStatus(uid, namespace_pids, uids)


def parse_parent(data: bytes) -> int:
    """Return the parent in /proc/<pid>/status, which no process can hold up as it can `stat`; 0 where it is unknown."""
    for line in data.split(b"\n"):
        if line.startswith(b"PPid:"):
            return next(iter(_numbers(line.removeprefix(b"PPid:"))), 0)
    return 0


def _numbers(value: bytes) -> tuple[int, ...]:
    words = value.split()
    return tuple(int(word) for word in words) if all(word.isdigit() for word in words) else ()


READ_LIMIT_BYTES = 16 * 1024
"""Longest text taken from one file. Only a command line can be longer (up to megabytes), and 256
bytes of it are shown; a cgroup file of version 1 in nested containers reaches 5 KiB."""
STATUS_LIMIT_BYTES = 1024 * 1024
"""The same of `status`: what is needed stands behind the supplementary groups, of which the kernel
allows 65,536 (NGROUPS_MAX), each of up to ten digits and a space: 704 KiB."""
MOUNTS_LIMIT_BYTES = 16 * 1024 * 1024
"""The same of `mountinfo`: some 150 bytes a mount, of which a node of Kubernetes has a thousand. A user may add a
thousand FUSE file systems (mount_max of fuse.conf), of 4 KiB each where their paths are long."""
_LIMITS_BYTES = {"status": STATUS_LIMIT_BYTES, "mountinfo": MOUNTS_LIMIT_BYTES}


class ProcFiles(Protocol):
    """The files of processes by pid. A simulated node answers for pids that no kernel gives out.

    `read` and `link` raise HangingProcess where another thread waits for the same process in vain.
    Every method but `exists` raises FileNotFoundError or ProcessLookupError (ENOENT, ESRCH: the
    process has gone, the kernel uses both) and PermissionError (hidepid, or a file of another
    user's process).
    """

    def read(self, pid: int, name: str) -> bytes:
        """Return the text of /proc/<pid>/<name>, bounded. Raises OSError (EFBIG) for mounts beyond the bound."""
        ...

    def link(self, pid: int, name: str) -> str:
        """Return the target of the symbolic link /proc/<pid>/<name>, such as "ns/pid" or "exe"."""
        ...

    def owner(self, pid: int) -> int:
        """Return the real user id of the process."""
        ...

    def exists(self, pid: int) -> bool:
        """Return whether /proc lists the pid; a zombie is listed."""
        ...

    def threads(self, pid: int) -> list[int]:
        """Return the numbers of its threads, as /proc/<pid>/task lists them."""
        ...


class RealProc:
    """The kernel's /proc, or a tree of the same shape at `root`."""

    def __init__(self, root: str = "/proc") -> None:
        self._root = root

    def read(self, pid: int, name: str) -> bytes:
        """Read without Python's file objects: these cost more than the system calls."""
        with READS.reading(pid, name):
            descriptor = os.open(f"{self._root}/{pid}/{name}", os.O_RDONLY)
            try:
                limit = _LIMITS_BYTES.get(name.rpartition("/")[2], READ_LIMIT_BYTES)
                data = chunk = os.read(descriptor, READ_LIMIT_BYTES)
                if name.endswith(
                    "stat"
                ):  # one line, which the kernel gives in one piece: no need to ask whether there is more
                    return data
                while chunk and len(data) < limit:
                    chunk = os.read(descriptor, limit - len(data))
                    data += chunk
                if len(data) >= limit and name.endswith("mountinfo"):
                    # The mount on top is the last: a part of them tells something else than all of them.
                    raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), name)
                return data
            finally:
                os.close(descriptor)

    def link(self, pid: int, name: str) -> str:
        """Read a link; those under ns/ and `exe` ask for the right to trace the process."""
        with READS.reading(pid, name):
            return str(Path(self._root, str(pid), name).readlink())

    def owner(self, pid: int) -> int:
        """Take `Uid:` of status: the folder of a process that may not be dumped shows root.

        See proc_pid(5), "The files inside each /proc/pid directory are normally owned by ...".
        """
        uid = parse_status(self.read(pid, "status")).uid
        if uid is None:
            message = f"{self._root}/{pid}/status has no Uid line"
            raise PermissionError(message)
        return uid

    def exists(self, pid: int) -> bool:
        """Look for the folder; with hidepid=2 the processes of others are not seen here."""
        return Path(self._root, str(pid)).is_dir()

    def threads(self, pid: int) -> list[int]:
        """List the folder, which needs no right of its own."""
        return [int(name) for name in os.listdir(f"{self._root}/{pid}/task")]  # noqa: PTH208  names are all it takes


T = TypeVar("T")
_GONE = (FileNotFoundError, ProcessLookupError)
_ATTEMPTS = 5
"""Each is lost only to a thread that ends just then."""


class LivingThread(NamedTuple):
    """The proc directory of a thread that has not begun to exit: the process's own, while its first thread has not."""

    files: ProcFiles
    pid: int
    folder: str
    """"" or "task/TID/"."""
    stat: Stat
    """Stat of this thread. Identity and name of the process are those of its first thread."""

    def read(self, name: str) -> bytes:
        """Return the text of a file of the process. Raises as `ProcFiles.read`."""
        return self.files.read(self.pid, self.folder + name)

    def link(self, name: str) -> str:
        """Return the target of a link of the process. Raises as `ProcFiles.link`."""
        return self.files.link(self.pid, self.folder + name)


def living_thread(files: ProcFiles, stat: Stat) -> LivingThread | None:
    """Return where /proc reports the process that has this `stat`; None where none of its threads is seen to live."""
    if not stat.exiting:
        return LivingThread(files, stat.pid, "", stat)
    if stat.threads <= 1:
        return None
    try:
        threads = files.threads(stat.pid)
    except OSError:
        return None
    for thread in sorted(threads):
        folder = f"task/{thread}/"
        try:
            found = parse_stat(files.read(stat.pid, f"{folder}stat"))
        except (OSError, ValueError):
            continue
        if not found.exiting:
            return LivingThread(files, stat.pid, folder, found)
    return None


def read_living(files: ProcFiles, stat: Stat, take: Callable[[LivingThread], T]) -> T | None:
    """Return what `take` reads of a thread that lived before and after; None where no such thread is seen.

    Raises as `take` does, but for a thread that has ended while others may live: then it is asked of another. Raises
    FileNotFoundError or ProcessLookupError where the process has gone.
    """
    for _ in range(_ATTEMPTS):
        thread = living_thread(files, stat)
        if thread is None:
            return None
        try:
            found = take(thread)
            after = parse_stat(thread.read("stat"))
        except _GONE:
            if not thread.folder:
                raise
        else:
            if not after.exiting and after.start_ticks == thread.stat.start_ticks:
                return found
        stat = parse_stat(files.read(stat.pid, "stat"))
    return None
