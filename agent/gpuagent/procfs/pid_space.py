"""Whether the kernel may have given a process number twice since some time.

The kernel gives out numbers in turn and begins anew only when it has come to the end (kernel/pid.c, `alloc_pid` with
`idr_alloc_cyclic`); out of turn only root can choose one (clone3(2) `set_tid`, `ns_last_pid`). So a number is given
again only after about as many forks as there are numbers, and the kernel counts all forks, threads included.
"""

from __future__ import annotations

from pathlib import Path


class PidSpace:
    """Reads the kernel's counter of forks, and how many numbers there are."""

    def __init__(self, root: str = "/proc") -> None:
        """Take another `root` for tests."""
        self._root = Path(root)

    def forks(self) -> int | None:
        """Return how many processes and threads were made since the boot; None where that cannot be read."""
        try:
            with (self._root / "stat").open("rb") as lines:
                return next((int(line.split()[1]) for line in lines if line.startswith(b"processes ")), None)
        except (OSError, ValueError, IndexError):
            return None

    def may_have_wrapped(self, forks_then: int | None) -> bool:
        """Return whether a number may have been given twice since the counter was at `forks_then`.

        Half of the numbers are left as a margin: those in use are skipped, and a fork that failed may have taken one.
        """
        now = self.forks()
        if now is None or forks_then is None or now < forks_then:
            return True
        try:
            numbers = int((self._root / "sys" / "kernel" / "pid_max").read_text("ascii"))
        except (OSError, ValueError):
            return True
        return now - forks_then >= numbers // 2
