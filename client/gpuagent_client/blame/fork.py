"""Run a function in a forked child, where the host has the memory for one, and return its answer.

A child can take its time and leave marks: the app stands still only for the fork itself. The rules
here were each paid for with a hang or a wrong answer; they are explained where they are kept.
"""

from __future__ import annotations

import contextlib
import dis
import gc
import os
import posix
import re
import signal
import struct
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import NamedTuple, Union

from gpuagent_client.blame.pause import fields_of, realtime_priority
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
    fields = fields_of(proc / "meminfo")
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


WAITING = frozenset({"wait", "wait3", "wait4"})


def refuse_in_supervisor(frames: Iterable[FrameType]) -> None:
    """Refuse in an app that waits for any of its children: it would see the end of one that it does not know.

    Raises:
        Refused: one of these frames is in os.wait().
    """
    for frame in frames:
        code = frame.f_code
        if "os" in code.co_names and WAITING.intersection(code.co_names) and _is_calling(frame, WAITING):
            raise Refused("the app waits for any of its children, and would take the census for one")


def _is_calling(frame: FrameType, names: frozenset[str]) -> bool:
    """Return whether the instruction that runs is a call of something that was loaded by one of these names."""
    last = ""
    for one in dis.get_instructions(frame.f_code):
        if one.offset > frame.f_lasti:
            break
        if one.opname in {"LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_NAME"}:
            last = str(one.argval)
    return last in names


MAX_PINNED_BYTES = 4 << 30


def refuse_pinned_memory(pinned_bytes: int | None) -> None:
    """Refuse where much memory is pinned for a GPU: the kernel copies such pages at once, and does not share them.

    Raises:
        Refused: it is more than 4 GiB.
    """
    if pinned_bytes is not None and pinned_bytes > MAX_PINNED_BYTES:
        raise Refused(
            f"{pinned_bytes >> 20} MiB of host memory are pinned for a GPU: a fork would copy them, which takes long"
        )


LENGTH_BYTES = 8
MAX_ANSWER_BYTES = 256 << 20
BEGUN, OK, FAILED, DONE = b"@", b"+", b"-", b"."
_one_at_a_time = threading.Lock()
_forking_thread: int | None = None


class ChildAnswer(NamedTuple):
    """Answer of the child, and how long the app stood still for it."""

    data: bytes
    stall_seconds: float
    complete: bool = True  # False: the best answer that it had when its time was over
    child_seconds: float = float("inf")  # when the child began, by the clock of time.perf_counter()


class ThreadFrame(NamedTuple):
    """Frame of a function that a thread of the app was in."""

    thread_id: int
    frame: FrameType


ChildWork = Union[bytes, Iterator[bytes]]
"""The answer, or several, each more complete than the one before."""
ChildTask = Callable[[list[ThreadFrame]], ChildWork]


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
    if not _one_at_a_time.acquire(blocking=False):
        raise Refused("a census is under way already")
    try:
        reading, writing = os.pipe()
        try:
            pid, started, stall = _fork_child(work, writing, seconds, own_threads)
        except BaseException as failure:  # also what gevent raises in a greenlet that is killed
            os.close(reading)
            if isinstance(failure, (Refused, GeneratorExit, KeyboardInterrupt, SystemExit)):
                raise
            raise Refused(f"no fork: {type(failure).__name__}: {failure}") from None
        finally:
            os.close(writing)
        answer = _receive(pid, reading, seconds, stall)
        # The first of both to run Python code again: this thread may have waited for the interpreter's lock, which is
        # no pause of the app, and the child for a processor.
        return answer._replace(stall_seconds=min(stall, max(0.0, answer.child_seconds - started)))
    finally:
        _one_at_a_time.release()


def _fork_child(
    work: ChildTask, writing: int, seconds: float, own_threads: tuple[int, ...]
) -> tuple[int, float, float]:
    """Fork, and return the child's pid, when it began and how long it took; the child itself never returns."""
    global _forking_thread  # noqa: PLW0603 - at-fork hooks have no argument to get it by
    # A child has only the thread that forked: it finds the frames of the others through these. Not their locals:
    # up to Python 3.12 reading f_locals leaves a dict on the frame, which keeps objects of the app alive.
    frames = running_frames((*own_threads, threading.get_ident()))
    try:
        refuse_in_gunicorn_master(one.frame for one in frames)
        refuse_in_supervisor(one.frame for one in frames)
        _forking_thread = threading.get_ident()
        with realtime_priority() as nice:
            started = time.perf_counter()
            pid = _fork()
            if pid == 0:
                _child_main(work, frames, writing, seconds, nice)
            return pid, started, time.perf_counter() - started
    finally:
        _forking_thread = None
        frames.clear()


def _fork() -> int:
    """Fork as os.fork() does, without the warning of Python 3.12 and newer in a process with threads.

    Below the module os: gevent and others replace what is in there, and would take the child for one of theirs.

    They warn of locks that are held in the child for ever: that is what it is ended for after its time. The filter
    stays, as taking it away again would take along what another thread of the app has changed in between.
    """
    message = r"This process .*is multi-threaded, use of fork\(\)"
    warnings.filterwarnings("ignore", message, DeprecationWarning, re.escape(__name__))
    return posix.fork()


def running_frames(own_threads: tuple[int, ...]) -> list[ThreadFrame]:
    """Return all frames of all threads but these."""
    found = []
    for thread_id, innermost in sys._current_frames().items():  # noqa: SLF001 - documented, for debuggers
        frame: FrameType | None = innermost if thread_id not in own_threads else None
        while frame is not None:
            found.append(ThreadFrame(thread_id, frame))
            frame = frame.f_back
    return found


def _child_main(work: ChildTask, frames: list[ThreadFrame], writing: int, seconds: float, nice: int | None) -> None:
    """Run the child. Never return, print nothing, run no exit handlers, and be killed on a lock that nobody holds."""
    code = 1
    try:
        begun = time.perf_counter()
        _ignore_signals(seconds)  # before anything that takes a while: the app's handlers must not run here
        _send(writing, BEGUN, struct.pack("<d", begun))
        if nice is not None:  # real-time priority has taken it away
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, 0, nice)
        # The peer of an inherited connection would not see it end before this child does.
        for number in os.listdir("/proc/self/fd"):  # noqa: PTH208 - not up to SC_OPEN_MAX, which may be a thousand million
            if int(number) != writing:
                with contextlib.suppress(OSError):  # the listing's own, closed by now
                    os.close(int(number))
        gc.disable()
        gc.unfreeze()  # what a preloading server froze is hidden from the collector, and from us
        try:
            answer = work(frames)
            for data in (answer,) if isinstance(answer, bytes) else answer:
                _send(writing, OK, data)
            _send(writing, DONE, b"")
        except Refused as refusal:
            _send(writing, FAILED, str(refusal).encode())
        except BaseException as failure:  # noqa: BLE001 - its text may hold data of the app, its type does not
            _send(writing, FAILED, f"the census failed: {type(failure).__name__}{_own_line(failure)}".encode())
        code = 0
    finally:
        os._exit(code)


def _send(writing: int, verdict: bytes, data: bytes) -> None:
    message = memoryview(verdict + len(data).to_bytes(LENGTH_BYTES, "little") + data)
    while message:
        message = message[posix.write(writing, message) :]


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


def _receive(pid: int, reading: int, seconds: float, stall_seconds: float) -> ChildAnswer:
    """Return the child's last whole answer, or raise a refusal; the child has ended afterwards in any case.

    The wait is a sleep between reads, which gevent turns into a turn for others: a wait in poll() would stop them all.
    """
    received = bytearray()
    until = time.monotonic() + seconds
    ended = False
    status = None
    pause = SHORTEST_PAUSE
    try:
        os.set_blocking(reading, False)
        while not ended and len(received) <= MAX_ANSWER_BYTES and time.monotonic() < until:
            try:
                data = posix.read(reading, 1 << 20)
            except BlockingIOError:
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            received += data
            ended = not data
    finally:
        posix.close(reading)
        if not ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):  # the app waits for any child, and was first
            _, status = posix.waitpid(pid, 0)
    return _read_answer(bytes(received), seconds, stall_seconds, _why_ended(status, ended=ended))


SHORTEST_PAUSE = 0.001
LONGEST_PAUSE = 0.05


def _why_ended(status: int | None, *, ended: bool) -> str:
    """Return how the child ended, in words."""
    if not ended:
        return "stopped"
    if status is not None and os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGALRM:
            return "stopped"
        return f"ended by {signal.Signals(number).name if number in set(signal.Signals) else number}"
    return ""


def _read_answer(message: bytes, seconds: float, stall_seconds: float, why: str) -> ChildAnswer:
    head = 1 + LENGTH_BYTES
    best: bytes | None = None
    failure = ""
    begun = float("inf")
    while len(message) >= head:
        length = int.from_bytes(message[1:head], "little")
        if len(message) < head + length:
            break
        verdict, data = message[:1], message[head : head + length]
        message = message[head + length :]
        if verdict == DONE and best is not None:
            return ChildAnswer(best, stall_seconds, child_seconds=begun)
        if verdict == BEGUN:
            (begun,) = struct.unpack("<d", data)
        elif verdict == FAILED:
            failure = data.decode()
        else:
            best = data
    if best is not None:
        return ChildAnswer(best, stall_seconds, complete=False, child_seconds=begun)
    if failure:
        raise Refused(failure)
    if why == "stopped":
        raise Refused(f"the census was stopped: no answer in {seconds:g} s")
    raise Refused(f"the census ended without an answer{f': {why}' if why else ''}")
