"""Whether the kernel may have given a process number twice since some time.

The kernel gives out numbers in turn and begins anew only when it has come to the end (kernel/pid.c, `alloc_pid` with
`idr_alloc_cyclic`); out of turn only root can choose one (clone3(2) `set_tid`, `ns_last_pid`). So a number is given
again only after about as many forks as there are numbers, and the kernel counts all forks, threads included.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class PidMark(NamedTuple):
    """A moment in the life of the number space."""

    forks: int | None
    """The kernel's counter of forks; None where it could not be read."""
    numbers: int | None
    """The smallest `pid_max` known of the time up to then; None where none is known."""


SINCE_BOOT = PidMark(0, 4_194_304)
"""The boot, with as many numbers as there can be (`PID_MAX_LIMIT`): the present `pid_max` counts. Nobody has noted what
it was before; systemd sets it at boot, and by the kernel's own 32768 no list of a running node would be believed."""


class PidSpace:
    """Reads the kernel's counter of forks, and how many numbers there are."""

    def __init__(self, root: str = "/proc") -> None:
        """Take another `root` for tests."""
        self._root = Path(root)
        self._smallest: int | None = None

    def mark(self) -> PidMark:
        """Return the present moment."""
        return PidMark(self._forks(), self._numbers())

    def may_have_wrapped(self, since: PidMark) -> bool:
        """Return whether a number may have been given twice since then.

        The smallest number of numbers that is known of that time counts: while `pid_max` was smaller, they came round
        sooner. Half of them are left as a margin: those in use are skipped, and a fork that failed may have taken one.
        """
        now, numbers = self.mark()
        if now is None or numbers is None or since.forks is None or since.numbers is None or now < since.forks:
            return True
        return now - since.forks >= min(numbers, since.numbers) // 2

    def _forks(self) -> int | None:
        try:
            with (self._root / "stat").open("rb") as lines:
                return next((int(line.split()[1]) for line in lines if line.startswith(b"processes ")), None)
        except (OSError, ValueError, IndexError):
            return None

    def _numbers(self) -> int | None:
        """Return the smallest `pid_max` that was ever read; None where it cannot be read now."""
        try:
            now = int((self._root / "sys" / "kernel" / "pid_max").read_text("ascii"))
        except (OSError, ValueError):
            return None
        self._smallest = now if self._smallest is None else min(now, self._smallest)
        return self._smallest
