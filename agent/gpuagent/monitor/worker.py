"""One thing that is done by calls that may never return: one job at a time, and no second one behind a stuck one."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

Job = Callable[[], Any]


class Threads(Protocol):
    """Who does the work; `gpuagent.monitor.crew.Crew` does."""

    def put(self, task: Callable[[], None]) -> None:
        """Have it done in another thread."""
        ...


class Outcome:
    """What became of a job: its value, or the exception that it raised."""

    __slots__ = ("error", "value")

    def __init__(self, value: Any = None, error: BaseException | None = None) -> None:
        self.value = value
        self.error = error


class Worker:
    """Has jobs done by `threads`. Everything but the job runs in the caller's thread."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._outcome: Outcome | None = None
        self._busy_since: float | None = None

    @property
    def busy(self) -> bool:
        """A job waits or is running, or its outcome has not been taken yet."""
        return self._busy_since is not None

    @property
    def busy_seconds(self) -> float:
        """For how long the present job has been running, in the machine's time; 0 if there is none."""
        since = self._busy_since
        return 0.0 if since is None or self._outcome is not None else time.monotonic() - since

    @property
    def finished(self) -> bool:
        """An outcome waits to be taken."""
        return self._outcome is not None

    def start(self, job: Job) -> bool:
        """Begin a job; False, and nothing happens, if one is still there."""
        if self.busy:
            return False
        self._busy_since = time.monotonic()
        self._threads.put(partial(self._do, job))
        return True

    def take(self) -> Outcome | None:
        """The outcome of the last job, once; None while it runs or if there was none."""
        outcome = self._outcome
        if outcome is not None:
            self._outcome = None
            self._busy_since = None
        return outcome

    def _do(self, job: Job) -> None:
        try:
            outcome = Outcome(value=job())
        except BaseException as error:  # noqa: BLE001  whatever it was, the loop must learn of it
            outcome = Outcome(error=error)
        self._outcome = outcome
