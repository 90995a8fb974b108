"""What a thread pool rings when nothing is left to begin."""

from __future__ import annotations

import threading

TIMEOUT = 20


class Bell:
    """Counts, so that no ring is missed."""

    def __init__(self) -> None:
        self._rung = threading.Semaphore(0)

    def __call__(self) -> None:
        self._rung.release()

    def wait(self) -> None:
        """Until it rings."""
        assert self._rung.acquire(timeout=TIMEOUT)

    @property
    def is_silent(self) -> bool:
        """It has not rung since."""
        return not self._rung.acquire(blocking=False)
