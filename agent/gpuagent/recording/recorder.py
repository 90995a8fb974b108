"""The loop of a recording: read, write, wait, until the command or the process has ended or somebody stops it.

`Family` says which processes belong to it. The trace is CSV as `gpuagent replay` reads it, whole up to the last reading
whatever happens.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Protocol, Self, TextIO

from gpuagent.core.clock import Clock
from gpuagent.procfs.files import ProcFiles, Stat, parse_stat
from gpuagent.recording.sources import GpuSample, MemorySample, Source
from gpuagent.recording.track import Track

_PR_SET_CHILD_SUBREAPER = 36
_MOST_GENERATIONS = 256


class Family:
    """The processes `roots` and their descendants.

    Only processes that hold GPU memory are asked for, and there are few: each is followed up through its parents, which
    is far less to read than all of /proc. One that has been seen stays in the family when its parents have ended.
    """

    def __init__(self, files: ProcFiles, roots: Collection[int]) -> None:
        self._files = files
        self._roots = frozenset(roots)
        self._known: dict[int, int] = {}
        for pid in self._roots:
            stat = self._stat(pid)
            if stat is not None:
                self._known[pid] = stat.start_ticks

    def has(self, pid: int) -> bool:
        """Return whether this process belongs to it.

        A pid that was given to another process in the meantime does not.
        """
        stat = self._stat(pid)
        if stat is None:  # it has just ended, or is a simulated one
            return pid in self._roots and pid not in self._known
        member = self._descends(stat)
        if member:
            self._known[pid] = stat.start_ticks
        return member

    def lives(self, root: int) -> bool | None:
        """Return whether this root still runs; None if /proc has never known it."""
        if root not in self._known:
            return None
        stat = self._stat(root)
        if stat is None or stat.start_ticks != self._known[root]:
            return False
        return stat.state not in {"Z", "X"} or stat.threads > 1

    def _descends(self, stat: Stat | None) -> bool:
        """Return whether it or one of its parents is known."""
        for _ in range(_MOST_GENERATIONS):
            if stat is None:
                return False
            if self._known.get(stat.pid) == stat.start_ticks:
                return True
            stat = self._stat(stat.parent_pid)
        return False

    def _stat(self, pid: int) -> Stat | None:
        try:
            return parse_stat(self._files.read(pid, "stat"))
        except (OSError, ValueError):
            return None


def adopt_orphans() -> None:
    """Have descendants whose parents end become children of this process, not of init, so that they are still found.

    prctl(2), PR_SET_CHILD_SUBREAPER; where it is not to be had, an orphan that was never seen is lost.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


HEADER = "time_seconds,used_bytes,free_bytes,allocated_bytes,reserved_bytes,process"


class TraceFile:
    """A row for each process and reading. A disk that is full ends the file, and nothing else. A context manager."""

    def __init__(self, file: TextIO) -> None:
        """Begin it. Raises OSError."""
        self._file = file
        self.problem = ""
        """Why the file ends before the recording does."""
        self._file.write(HEADER + "\n")
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._file.close()
        except OSError as failure:
            self.problem = self.problem or failure.strerror or str(failure)

    def write(self, time_seconds: float, rows: list[tuple[str, MemorySample | None]]) -> None:
        """Write the rows of one reading: a process's name, and its memory or None where it could not be read."""
        if self.problem:
            return
        lines = []
        for name, held in rows:
            cells = held[-5:] if held else (None,) * 5  # used, free, total, allocated, reserved
            used, free, _, allocated, reserved = ("" if cell is None else str(cell) for cell in cells)
            lines.append(f"{time_seconds:.3f},{used},{free},{allocated},{reserved},{name}\n")
        try:
            self._file.write("".join(lines))
            self._file.flush()
        except OSError as error:
            self.problem = error.strerror or str(error)


def create_trace(path: Path, *, replace: bool = False) -> TraceFile:
    """Return a new file, or one in the place of another.

    Raises FileExistsError unless it may be replaced, other OSErrors.
    """
    file = path.open("w" if replace else "x", encoding="utf-8", newline="")
    try:
        return TraceFile(file)
    except OSError:
        with suppress(OSError):
            file.close()  # tries to write again
        raise


def trace_name(held: MemorySample, *, first_gpu: int) -> str:
    """Return `name:pid`, with the GPU where it is not the process's first, fit for a file of CSV."""
    name = "".join(letter if letter.isprintable() and letter not in ',"' else "_" for letter in held.name) or "process"
    return f"{name}:{held.pid}" if held.gpu == first_gpu else f"{name}:{held.pid}/gpu{held.gpu}"


_SI_KERNEL = 0x80
"""`si_code` of a signal from the terminal (sigaction(2)): the command is in the foreground too and has had it."""
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_WAITED = (*_STOPPING, signal.SIGCHLD)
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


class StopSignal(NamedTuple):
    """A signal that asks for the end."""

    signal: signal.Signals
    from_terminal: bool


class Signals:
    """Signals that wait to be fetched, instead of interrupting a reading. A context manager."""

    def __enter__(self) -> Self:
        self.mask_before = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while signal.sigtimedwait(_WAITED, 0) is not None:
            pass  # what came when it was over would end this process after its report
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask_before)

    def wait(self, seconds: float) -> StopSignal | None:
        """Wait until a signal comes or so much time has passed; None is also a child that has changed."""
        info = signal.sigtimedwait(_WAITED, max(0.0, seconds))
        if info is None or info.si_signo == signal.SIGCHLD:
            return None
        return StopSignal(signal.Signals(info.si_signo), info.si_code == _SI_KERNEL)


class Command:
    """A running command, in the same terminal and process group as this one."""

    def __init__(self, words: Sequence[str], signals: Signals) -> None:
        """Start it. Raises OSError."""
        self.pid = os.posix_spawnp(
            words[0], list(words), os.environ, setsigmask=signals.mask_before, setsigdef=_IGNORED_BY_PYTHON
        )
        self.exit_status: int | None = None
        """As a shell has it: 128 and the signal's number for one that was killed. None while it runs."""

    def look(self) -> int | None:
        """Return the exit status, once it has ended."""
        if self.exit_status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                self.exit_status = code if code >= 0 else 128 - code
        return self.exit_status

    def pass_on(self, stop: StopSignal) -> None:
        """Hand over a signal that was meant for it."""
        if self.exit_status is None and not stop.from_terminal:
            os.kill(self.pid, stop.signal)  # not yet waited for, so the pid is still its own


_GONE_READINGS = 3
"""A process that /proc has never known (a simulated one) has ended when so many readings in a row do not have it."""


class Waiting(Protocol):
    """`Signals` is one."""

    def wait(self, seconds: float) -> StopSignal | None:
        """Wait for a signal, for so long at most."""
        ...


class Recorder:
    """Owns the tracks; `seconds` is how long it has run."""

    def __init__(
        self, source: Source, family: Family, file: TraceFile, clock: Clock, note: Callable[[str], None]
    ) -> None:
        self._source = source
        self._family = family
        self._file = file
        self._clock = clock
        self._note = note
        self._begin = clock.now()
        self._wall = clock.wall()
        self._gpus: dict[int, int] = {}
        self._problem = ""
        self.by_key: dict[tuple[int, int], Track] = {}
        self.tracks: list[Track] = []

    @property
    def seconds(self) -> float:
        return self._clock.now() - self._begin

    def run_command(self, command: Command, signals: Waiting, interval_seconds: float) -> int:
        """Record until the command has ended; return its exit status. Signals are passed on to it."""
        while (status := command.look()) is None:
            self.look()
            due = self._clock.now() + interval_seconds
            while command.look() is None and (left := due - self._clock.now()) > 0:
                stop = signals.wait(left)
                if stop is not None:
                    command.pass_on(stop)
        self._end(ended_itself=True)
        return status

    def run_process(self, pid: int, signals: Waiting, interval_seconds: float) -> None:
        """Record until the process has ended, or a signal asks for the end."""
        absent = 0
        while True:
            reading = self.look()
            lives = self._family.lives(pid)
            if lives is None:
                listed = reading.unread is None or any(held.pid == pid for held in reading.held)
                absent = 0 if listed else absent + 1
            if lives is False or absent >= _GONE_READINGS:
                self._end(ended_itself=True)
                return
            due = self._clock.now() + interval_seconds
            while (left := due - self._clock.now()) > 0:
                if signals.wait(left) is not None:
                    self._end(ended_itself=False)
                    return

    def look(self) -> GpuSample:
        """Return one reading, written down and judged."""
        reading = self._source.read()
        at = self.seconds
        if reading.problem != self._problem:
            self._problem = reading.problem
            self._note(reading.problem or "the GPUs are read again")
        rows: list[tuple[str, MemorySample | None]] = []
        seen = set()
        for held in reading.held:
            if not self._family.has(held.pid):
                continue
            key = (held.pid, held.gpu)
            seen.add(key)
            track = self.by_key.get(key)
            if track is None:
                name = trace_name(held, first_gpu=self._gpus.setdefault(held.pid, held.gpu))
                track = self.by_key[key] = Track(name, held.gpu)
                self.tracks.append(track)
            track.add(at, held)
            rows.append((track.name, held))
        for key in self.by_key.keys() - seen:
            track = self.by_key[key]
            if reading.unread is None or key[1] in reading.unread:
                track.add(at, None)
                rows.append((track.name, None))
            else:  # it has ended, or let go of this GPU
                track.end(ended_itself=True)
                del self.by_key[key]
        had_problem = bool(self._file.problem)
        self._file.write(self._wall + at, rows)
        if self._file.problem and not had_problem:
            self._note(f"the file cannot be written any more: {self._file.problem}")
        return reading

    def _end(self, *, ended_itself: bool) -> None:
        for track in self.by_key.values():
            track.end(ended_itself=ended_itself)
