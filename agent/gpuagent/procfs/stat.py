"""Parsers of /proc/<pid>/stat and /proc/<pid>/status: bytes in, facts out.

The name of a process is chosen by the process: up to 15 bytes with spaces, parentheses, newlines or
bytes that are no UTF-8. `stat` shows it raw, so its end is the *last* parenthesis of the file;
`status` escapes newlines, so there one line is one fact. Field numbers are those of
proc_pid_stat(5).
"""

from __future__ import annotations

from typing import NamedTuple

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
    """Since boot, in 1/sysconf(_SC_CLK_TCK) seconds."""
    resident_pages: int
    image: tuple[bytes, ...]
    """Name, and where stack and arguments lie: random per exec, so a change tells of one without
    reading `cmdline`. () where the kernel hides it, which it does unless the reader may trace the
    process."""
    process_group: int = 0
    """0 where the kernel does not tell, as of one that is being reaped."""
    flags: int = 0
    """Those of the task, `PF_*` of include/linux/sched.h."""

    @property
    def exiting(self) -> bool:
        """Whether this thread has ended or begun to, others of the process may live."""
        return bool(self.flags & _PF_EXITING) or self.state in {"Z", "X"}


class Status(NamedTuple):
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


def parse_status(data: bytes) -> Status:
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
    return Status(uid, namespace_pids, uids)


def _numbers(value: bytes) -> tuple[int, ...]:
    words = value.split()
    return tuple(int(word) for word in words) if all(word.isdigit() for word in words) else ()
