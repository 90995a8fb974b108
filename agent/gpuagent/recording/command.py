"""The command that is run, and the signals of both: the command should not notice that it is recorded."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple, Self

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
        """The exit status, once it has ended."""
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
