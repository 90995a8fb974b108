"""Run a function in a forked child, where the host has the memory for one, and return its answer.

A child can take its time and leave marks: the app stands still only for the fork itself, some milliseconds. The rules
here were each paid for with a hang or a wrong answer; they are explained where they are kept.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import select
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from gpuagent_client.errors import Refused

# Measured on CPython 3.11 with torch 2.13: what a child dirties (copy on write) while it looks.
BASE_BYTES = 42 << 20
PER_OBJECT_BYTES = 100
PER_TENSOR_BYTES = 1024
# pymalloc's blocks are a bound on the objects, counted without touching them.
MARGIN = 2
NO_LIMIT_BYTES = 1 << 60


class Size(NamedTuple):
    """Number of objects and tensors that a snapshot has to go through."""

    objects: int
    tensors: int


def estimate_bytes(known: Size | None) -> int:
    """Return the bytes that a child will dirty, from the size of the snapshot before, or roughly."""
    size = known or Size(sys.getallocatedblocks(), 0)
    return BASE_BYTES + PER_OBJECT_BYTES * size.objects + PER_TENSOR_BYTES * size.tensors


def available_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the free memory of the host or of this cgroup, whichever is less; very much if neither can be read."""
    fields = dict(line.split(":", 1) for line in _lines(proc / "meminfo") if ":" in line)
    available = [int(fields["MemAvailable"].split()[0]) * 1024] if "MemAvailable" in fields else [NO_LIMIT_BYTES]
    for line in _lines(proc / "self" / "cgroup"):
        number, _, path = line.partition("::")
        if number == "0":  # version 2: one line, "0::/path"
            folder = cgroups / path.strip().lstrip("/")
            for level in (folder, *folder.parents):
                if level == cgroups.parent:
                    break
                available.extend(_left_in(level))
    return min(available)


def _left_in(folder: Path) -> Iterable[int]:
    """Return what one level of the hierarchy still allows; the page cache in it can be taken back."""
    limit, used = _lines(folder / "memory.max"), _lines(folder / "memory.current")
    if limit and used and limit[0].strip().isdigit():
        cached = sum(
            int(line.split()[1]) for line in _lines(folder / "memory.stat") if line.startswith("inactive_file ")
        )
        yield int(limit[0]) - int(used[0]) + cached


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []


def refuse_without_memory(known: Size | None, available: int) -> None:
    """Refuse where the child could bring the out-of-memory killer.

    Raises:
        Refused: less than twice the estimate is free.
    """
    needed = MARGIN * estimate_bytes(known)
    if available < needed:
        raise Refused(f"{available >> 20} MiB of host memory are free, and a census wants {needed >> 20} MiB")


def refuse_in_gunicorn_master(frames: Iterable[FrameType]) -> None:
    """Refuse in gunicorn's master: it waits for any child, and would take ours for a worker that died.

    Raises:
        Refused: one of these frames is the master's loop, and none the start of a worker.
    """
    arbiter = {frame.f_code.co_name for frame in frames if frame.f_code.co_filename.endswith(("gunicorn/arbiter.py",))}
    if arbiter and "spawn_worker" not in arbiter:
        raise Refused("this is gunicorn's master: ask one of its workers")


LENGTH_BYTES = 8
MAX_ANSWER_BYTES = 256 << 20
OK, FAILED = b"+", b"-"
_one_at_a_time = threading.Lock()
_forking_thread: int | None = None


class ChildAnswer(NamedTuple):
    """Answer of the child, and how long the app stood still for it."""

    data: bytes
    stall_seconds: float


class ThreadFrame(NamedTuple):
    """Frame of a function that a thread of the app was in."""

    thread_id: int
    frame: FrameType


ChildTask = Callable[[list[ThreadFrame]], bytes]


def is_census_fork() -> bool:
    """Return whether the fork going on is a census, made by this very thread: at-fork hooks then have nothing to do.

    os.fork() runs the hooks of the app. A fork below Python would skip them, but its child waits for the interpreter's
    lock forever.
    """
    return _forking_thread == threading.get_ident()


def run_in_child(work: ChildTask, seconds: float, own_threads: tuple[int, ...] = ()) -> ChildAnswer:
    """Run `work` in a child that has at most this long; `own_threads` are left out of the frames.

    Raises:
        Refused: a census is under way, this is no process to fork, or the child did not answer.
    """
    global _forking_thread  # noqa: PLW0603 - at-fork hooks have no argument to get it by
    if not _one_at_a_time.acquire(blocking=False):
        raise Refused("a census is under way already")
    try:
        reading, writing = os.pipe()
        started = time.perf_counter()
        # A child has only the thread that forked: it finds the frames of the others through these. Not their locals:
        # up to Python 3.12 reading f_locals leaves a dict on the frame, which keeps objects of the app alive.
        frames = running_frames((*own_threads, threading.get_ident()))
        try:
            refuse_in_gunicorn_master(one.frame for one in frames)
            _forking_thread = threading.get_ident()
            pid = _fork()
            if pid == 0:
                _child_main(work, frames, writing, seconds)
        except (OSError, Refused) as failure:  # no memory, no more processes
            os.close(reading)
            os.close(writing)
            raise failure if isinstance(failure, Refused) else Refused(f"no fork: {failure}") from None
        finally:
            _forking_thread = None
            frames.clear()
        stall = time.perf_counter() - started
        os.close(writing)
        return ChildAnswer(_receive(pid, reading, seconds), stall)
    finally:
        _one_at_a_time.release()


def _fork() -> int:
    """Fork as os.fork() does, without the warning of Python 3.12 and newer in a process with threads.

    They warn of locks that are held in the child for ever: that is what it is ended for after its time. The filter
    stays, as taking it away again would take along what another thread of the app has changed in between.
    """
    message = r"This process .*is multi-threaded, use of fork\(\)"
    warnings.filterwarnings("ignore", message, DeprecationWarning, re.escape(__name__))
    return os.fork()


def running_frames(own_threads: tuple[int, ...]) -> list[ThreadFrame]:
    """Return all frames of all threads but these."""
    found = []
    for thread_id, innermost in sys._current_frames().items():  # noqa: SLF001 - documented, for debuggers
        frame: FrameType | None = innermost if thread_id not in own_threads else None
        while frame is not None:
            found.append(ThreadFrame(thread_id, frame))
            frame = frame.f_back
    return found


def _child_main(work: ChildTask, frames: list[ThreadFrame], writing: int, seconds: float) -> None:
    """Run the child. Never return, print nothing, run no exit handlers, and be killed on a lock that nobody holds."""
    code = 1
    try:
        _ignore_signals(seconds)
        # The peer of an inherited connection would not see it end before this child does.
        for number in os.listdir("/proc/self/fd"):  # noqa: PTH208 - not up to SC_OPEN_MAX, which may be a thousand million
            if int(number) != writing:
                with contextlib.suppress(OSError):  # the listing's own, closed by now
                    os.close(int(number))
        gc.disable()
        gc.unfreeze()  # what a preloading server froze is hidden from the collector, and from us
        try:
            verdict, data = OK, work(frames)
        except Refused as refusal:
            verdict, data = FAILED, str(refusal).encode()
        except BaseException as failure:  # noqa: BLE001 - its text may hold data of the app, its type does not
            verdict, data = FAILED, f"the census failed: {type(failure).__name__}{_own_line(failure)}".encode()
        message = memoryview(verdict + len(data).to_bytes(LENGTH_BYTES, "little") + data)
        while message:
            message = message[os.write(writing, message) :]
        code = 0
    finally:
        os._exit(code)


def _own_line(failure: BaseException) -> str:
    """Return the line of ours that failed, for a report that can be acted on."""
    trace = failure.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f" at {os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}" if trace else ""  # noqa: PTH119


def _ignore_signals(seconds: float) -> None:
    """Ignore signals: one to the process group must not run the app's handlers twice, nor wake its event loop."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM, signal.SIGTERM, signal.SIGINT])
    signal.alarm(max(1, round(seconds)))


def _receive(pid: int, reading: int, seconds: float) -> bytes:
    """Return the child's whole message, or raise a refusal; the child has ended afterwards in any case."""
    received = bytearray()
    until = time.monotonic() + seconds
    ended = False
    try:
        poll = select.poll()
        poll.register(reading, select.POLLIN)
        while not ended and len(received) <= MAX_ANSWER_BYTES:
            left = until - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                break
            data = os.read(reading, 1 << 20)
            received += data
            ended = not data
    finally:
        os.close(reading)
        if not ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):  # the app waits for any child, and was first
            os.waitpid(pid, 0)
    return _read_answer(bytes(received), seconds, ended=ended)


def _read_answer(message: bytes, seconds: float, *, ended: bool) -> bytes:
    head = 1 + LENGTH_BYTES
    if len(message) < head or len(message) - head != int.from_bytes(message[1:head], "little"):
        raise Refused(
            "the census ended without an answer" if ended else f"the census was stopped: no answer in {seconds:g} s"
        )
    if message[:1] == FAILED:
        raise Refused(message[head:].decode())
    return message[head:]
