"""The loop of a recording: look, write, wait, until the command or the process has ended or somebody stops it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from gpuagent.core.clock import Clock
from gpuagent.recording.family import Family
from gpuagent.recording.sources import Held, Reading, Source
from gpuagent.recording.trace import TraceFile, trace_name
from gpuagent.recording.track import Track

_SI_KERNEL = 0x80
"""`si_code` of a signal from the terminal (sigaction(2)): the command is in the foreground too and has had it."""
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_WAITED = (*_STOPPING, signal.SIGCHLD)
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


class Stop(NamedTuple):
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

    def wait(self, seconds: float) -> Stop | None:
        """Wait until a signal comes or so much time has passed; None is also a child that has changed."""
        info = signal.sigtimedwait(_WAITED, max(0.0, seconds))
        if info is None or info.si_signo == signal.SIGCHLD:
            return None
        return Stop(signal.Signals(info.si_signo), info.si_code == _SI_KERNEL)


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

    def pass_on(self, stop: Stop) -> None:
        """Hand over a signal that was meant for it."""
        if self.exit_status is None and not stop.from_terminal:
            os.kill(self.pid, stop.signal)  # not yet waited for, so the pid is still its own


_GONE_READINGS = 3
"""A process that /proc has never known (a simulated one) has ended when so many readings in a row do not have it."""


class Waiting(Protocol):
    """`Signals` is one."""

    def wait(self, seconds: float) -> Stop | None:
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

    def look(self) -> Reading:
        """Return one reading, written down and judged."""
        reading = self._source.read()
        at = self.seconds
        if reading.problem != self._problem:
            self._problem = reading.problem
            self._note(reading.problem or "the GPUs are read again")
        rows: list[tuple[str, Held | None]] = []
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
