"""A thread for calls that may never return: one job at a time, and no second thread behind a stuck one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

Job = Callable[[], Any]


class Outcome:
    """What became of a job: its value, or the exception that it raised."""

    __slots__ = ("error", "value")

    def __init__(self, value: Any = None, error: BaseException | None = None) -> None:
        self.value = value
        self.error = error


class Worker:
    """Runs jobs in a daemon thread, which is started with the first and is never replaced.

    Everything but the job runs in the caller's thread. `notify` is called from the worker's thread after each job.
    """

    def __init__(self, name: str, notify: Callable[[], None]) -> None:
        self.name = name
        self._notify = notify
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._outcome: Outcome | None = None
        self._busy_since: float | None = None
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """A job is running, or its outcome has not been taken yet."""
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
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
            self._thread.start()
        self._jobs.put(job)
        return True

    def take(self) -> Outcome | None:
        """The outcome of the last job, once; None while it runs or if there was none."""
        outcome = self._outcome
        if outcome is not None:
            self._outcome = None
            self._busy_since = None
        return outcome

    def stop(self) -> None:
        """End the thread after its present job. A stuck one stays: it is a daemon and ends with the process."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                outcome = Outcome(value=job())
            except BaseException as error:  # noqa: BLE001  whatever it was, the loop must learn of it
                outcome = Outcome(error=error)
            del job
            self._outcome = outcome
            del outcome
            self._notify()
