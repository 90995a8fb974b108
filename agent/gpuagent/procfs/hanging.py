"""Know which processes hold up whoever reads their files in /proc, so that one thread waits for them and no other.

A user can have that: a process within execve(2) of which a file system in user space answers nothing holds the lock
under which `stat`, `wchan`, `exe`, `ns/*` and `fd/*` are read (`exec_update_lock`), and one within mmap(2) that of its
memory (`cmdline`). A read that has begun cannot be taken back. So each read is noted while it lasts, and whoever wants
another one of a process for which a thread has waited for a second is told that it hangs.

Whoever cannot wait has a thread read, by one of three calls: `read_all` for single files, where the caller waits, and
in the event loop `start_read` for single files and `read_with_timeout` for a look at many processes. All leave a thread
behind that hangs.
"""

from __future__ import annotations

import asyncio
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")
THREAD = "a read of /proc"
"""Name of the threads that read it."""
HANGS_AFTER_SECONDS = 1.0
MOST_HANGING = 16
"""Each has a thread of the agent's. Where there are more, nothing is read that looks at all processes."""
_MOST_LEFT_BEHIND = 64
"""Processes that hang a thread each; while there are so many no single file is read: the unit has 256 threads."""
_MOMENT_SECONDS = 0.02
"""Time after which another thread goes on with what one has left; where that was busy and not hanging, no harm."""
_HANG_CHECK_SECONDS = 0.25
_MOST_IDLE = 4
"""Threads that are kept; where more were needed at once, the others end."""
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


READS = HangingReads()
"""Those of the agent."""


class _Reader:
    """A thread that reads for others, one read at a time, and is kept for the next one where it has come through."""

    def __init__(self) -> None:
        self._reads: queue.SimpleQueue[tuple[Callable[[], None], Callable[[], None]]] = queue.SimpleQueue()
        thread = threading.Thread(target=self._run, name=THREAD, daemon=True)
        thread.start()
        self.ident = thread.ident or 0
        self.is_telling = False
        """It has come through, and has not told so yet."""

    def give(self, read: Callable[[], None], done: Callable[[], None]) -> None:
        """Have this read, which never raises, and `done` called after it."""
        self._reads.put((read, done))

    def _run(self) -> None:
        is_kept = True
        while is_kept:
            read, done = self._reads.get()
            read()
            is_kept = len(IDLE_READERS) < _MOST_IDLE
            self.is_telling = True
            if is_kept:
                IDLE_READERS.append(self)  # before it is told: whoever reads next finds it
            done()
            self.is_telling = False
            del read, done


IDLE_READERS: list[_Reader] = []
"""Readers that wait: to start a thread for each read costs six times as much as the read of a `stat`."""


def _start(read: Callable[[], None], done: Callable[[], None]) -> int:
    """Begin a read in another thread; return the ident of that."""
    try:
        reader = IDLE_READERS.pop()
    except IndexError:
        reader = _Reader()
    reader.give(read, done)
    return reader.ident


class _Batch(Generic[T]):
    """Reads that threads take one after the other, each of them once."""

    def __init__(self, reads: Sequence[Callable[[], T]]) -> None:
        self.outcomes: list[T | Exception] = [TimeoutError("a file of /proc is not read in time")] * len(reads)
        self.begun: dict[int, float] = {}
        """When each that is under way was begun, by its index."""
        self.is_over = False
        """Nobody waits any more: what was not begun is left."""
        self._waiting = iter(enumerate(reads))
        self._taken: list[int] = []
        self._through = threading.Lock()
        self._through.acquire()

    @property
    def left(self) -> int:
        """How many nobody has begun."""
        return len(self.outcomes) - len(self._taken)

    def read(self) -> None:
        """Take one after the other, until none is left. Several threads may, as each operation here is atomic."""
        for index, read in self._waiting:
            if self.is_over:
                return
            self.begun[index] = time.monotonic()
            self._taken.append(index)
            try:
                outcome: T | Exception = read()
            except Exception as error:  # noqa: BLE001  it is told to whoever waits
                outcome = error
            self.outcomes[index] = outcome
            del self.begun[index]

    def tell(self) -> None:
        """Wake who waits, if this thread was the last."""
        if not self.left and not self.begun:
            with suppress(RuntimeError):  # another thread has told it
                self._through.release()

    def wait(self, seconds: float) -> bool:
        """Return whether all of them have come through within so many seconds."""
        return self._through.acquire(timeout=seconds)

    def hangs(self, patience_seconds: float, most: int) -> bool:
        """Return whether each read that is left is under way, or as many as may be are, and have been for so long."""
        if self.left and len(self.begun) < most:
            return False
        now = time.monotonic()
        return all(now - since >= patience_seconds for since in tuple(self.begun.values()))


def read_all(
    reads: Sequence[Callable[[], T]], patience_seconds: float = HANGS_AFTER_SECONDS
) -> Sequence[T | Exception]:
    """Return what each of these short reads does, or what it has raised: TimeoutError for one that hangs.

    One other thread does them all, so that the caller pays for one hand-over. Where it hangs for a moment, a further
    one goes on with the rest. So all that hang are waited for at the same time, and each has a thread of its own, as
    long as there are not too many: what is not begun then counts as what hangs.
    """
    batch = _Batch(reads)
    most = min(MOST_HANGING, _MOST_LEFT_BEHIND - len(READS.processes()))
    if not reads or most <= 0:
        return tuple(batch.outcomes)
    _start(batch.read, batch.tell)
    seen: list[int] = []
    while not batch.wait(min(_MOMENT_SECONDS, patience_seconds)) and not batch.hangs(patience_seconds, most):
        under_way = list(batch.begun)
        if batch.left and under_way and under_way == seen and len(under_way) < most:
            _start(batch.read, batch.tell)
        seen = under_way
    batch.is_over = True
    return tuple(batch.outcomes)


def read_within(seconds: float, read: Callable[[], T]) -> T:
    """Return what a short read does, in another thread. Raises TimeoutError, an OSError, and as `read`."""
    (outcome,) = read_all([read], seconds)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


async def read_with_timeout(read: Callable[[], T], seconds: float, reads: HangingReads = READS) -> T:
    """Return what `read` does, in a thread of its own. Raises TimeoutError after so many seconds, and as `read`.

    Where the thread waits for a process that hangs, it is left behind, and `read` is called once more in another one:
    files of that process raise HangingProcess then. So there is one thread for each process that hangs, of
    `MOST_HANGING` at most: TimeoutError is raised at once where there are more.
    """
    if len(reads.processes()) >= MOST_HANGING:
        raise TimeoutError(reads.reason())
    answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    thread = _answer(read, answer)
    async with asyncio.timeout(seconds):  # not wait_for: until 3.12 that may swallow a cancellation
        while len(reads.processes()) < MOST_HANGING:
            await asyncio.wait([answer], timeout=_HANG_CHECK_SECONDS)
            if answer.done():
                return answer.result()
            if reads.hangs(thread):
                thread = _answer(read, answer)
    raise TimeoutError(reads.reason())


def start_read(read: Callable[[], T]) -> asyncio.Future[T]:
    """Begin a read in another thread, which is left behind where it hangs; the caller bounds how many are."""
    answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    _answer(read, answer)
    return answer


def _answer(read: Callable[[], T], answer: asyncio.Future[T]) -> int:
    """Begin a read in another thread; return its ident. What comes first is the answer."""
    loop = answer.get_loop()
    found: list[T] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            found.append(read())
        except Exception as error:  # noqa: BLE001  it is raised in the loop
            errors.append(error)

    def settle() -> None:
        if answer.done():
            return
        if errors:
            answer.set_exception(errors[0])
        else:
            answer.set_result(found[0])

    def tell() -> None:
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle)

    return _start(run, tell)
