"""Know which processes hold up whoever reads their files in /proc, so that one thread waits for them and no other.

A user can have that: a process within execve(2) of which a file system in user space answers nothing holds the lock
under which `stat`, `wchan`, `exe`, `ns/*` and `fd/*` are read (`exec_update_lock`), and one within mmap(2) that of its
memory (`cmdline`). A read that has begun cannot be taken back. So each read is noted while it lasts, and whoever wants
another one of a process for which a thread has waited for a second is told that it hangs.
"""

from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
HANGS_AFTER_SECONDS = 1.0
MOST_HANGING = 16
"""Each has a thread of the agent's. Where there are more, nothing is read that looks at all processes."""
_PROMPT = frozenset({"status", "cgroup", "loginuid", "sessionid", "comm", "oom_score_adj", "mountinfo", "uid_map"})
"""Files that are read under no lock that a process can hold for long."""

_UID = re.compile(rb"^Uid:\t(\d+)", re.MULTILINE)


class HangingProcess(OSError):
    """A file of a process is not read, as another thread waits for one in vain."""

    def __init__(self, pid: int) -> None:
        """Say which process hangs, whose it is, and how it is ended."""
        super().__init__(describe(pid))
        self.pid = pid


class HangingReads:
    """The reads of /proc that are under way in this process, by thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reads: dict[int, tuple[int, float]] = {}

    @contextmanager
    def reading(self, pid: int, name: str) -> Iterator[None]:
        """Note a read of a process's file while it lasts. Raises HangingProcess where another one waits in vain."""
        if name.rpartition("/")[2] in _PROMPT:
            yield
            return
        thread, now = threading.get_ident(), self._clock()
        for other, (held, since) in tuple(self._reads.items()):
            if held == pid and other != thread and now - since >= HANGS_AFTER_SECONDS:
                raise HangingProcess(pid)
        self._reads[thread] = pid, now
        try:
            yield
        finally:
            self._reads.pop(thread, None)

    def hangs(self, thread: int) -> int:
        """Return the process for which a thread has waited too long; 0 where it does not wait."""
        pid, since = self._reads.get(thread, (0, 0.0))
        return pid if pid and self._clock() - since >= HANGS_AFTER_SECONDS else 0

    def processes(self) -> list[int]:
        """Return the processes for which threads have waited too long."""
        return sorted({pid for thread in tuple(self._reads) if (pid := self.hangs(thread))})

    def reason(self) -> str:
        """Return which process hangs and what to do, in words; "" where none does."""
        found = self.processes()
        if not found:
            return ""
        more = f"; {len(found) - 1} others hang too" if len(found) > 1 else ""
        return describe(found[0]) + more


def describe(pid: int, root: str = "/proc") -> str:
    """Return which process hangs in the kernel, of which user, and how to go on.

    SIGKILL alone may not end it: what serves the file system for which it waits has to end too.
    """
    try:
        found = _UID.search(Path(root, str(pid), "status").read_bytes())
    except OSError:
        found = None
    owner = f"uid {int(found[1])}" if found else "a user that is not known"
    return (
        f"pid {pid} of {owner} hangs in the kernel, and what /proc has of it cannot be read; end it first"
        f" (kill -9 {pid}), and what serves the file system for which it waits, which is mostly that user's as well"
    )


class _Reader:
    """A thread that reads for others, one at a time. One that hangs is left behind, and ends when its read does."""

    def __init__(self) -> None:
        self._reads: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="a read of /proc", daemon=True).start()

    def give(self, read: Callable[[], None] | None) -> None:
        """Have this read, which never raises; None ends the thread."""
        self._reads.put(read)

    def _run(self) -> None:
        while (read := self._reads.get()) is not None:
            read()


_IDLE: list[_Reader] = []
"""Readers that wait: to start a thread for each read costs six times as much as the read of a `stat`."""


def read_within(seconds: float, read: Callable[[], T]) -> T:
    """Return what a short read does, in another thread. Raises TimeoutError, an OSError, and as `read`."""
    found: list[T] = []
    errors: list[Exception] = []
    done = threading.Lock()
    done.acquire()

    def run() -> None:
        try:
            found.append(read())
        except Exception as error:  # noqa: BLE001  it is raised by whoever waits
            errors.append(error)
        finally:
            done.release()

    try:
        reader = _IDLE.pop()
    except IndexError:
        reader = _Reader()
    reader.give(run)
    if not done.acquire(timeout=seconds):
        reader.give(None)
        raise TimeoutError("a file of /proc is not read in time")
    _IDLE.append(reader)
    if errors:
        raise errors[0]
    return found[0]


READS = HangingReads()
"""Those of the agent."""
