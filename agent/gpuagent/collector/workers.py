"""Run calls that may never return in threads: one job at a time, and no second one behind a stuck one.

One thread does all jobs while all goes well, and each stuck job has one of its own. A thread for each GPU would do as
well, and cost twice as much: to wake eight threads, which then take the interpreter from each other at every call into
the driver, was 5.4 of 12 ms of CPU time a second with 8 GPUs; one thread that reads them in turn takes 2.2 ms.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any

Task = Callable[[], None]
"""A call that does one thing and raises nothing."""
Job = Callable[[], Any]


class ElasticThreadPool:
    """Run tasks in the order in which they came, each once. Daemon threads: a stuck one ends with the process.

    `submit`, `add_threads` and `stop` are for one thread. `notify` is called from a thread of the pool when nothing is
    left to begin: after the last task of several, and after one that was late.
    """

    def __init__(self, name: str, notify: Callable[[], None]) -> None:
        self._name = name
        self._notify = notify
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._idle = 0

    def submit(self, task: Task) -> None:
        """Have a task done. The first one starts a thread."""
        self._tasks.put(task)
        if not self._threads:
            self._start()

    def add_threads(self) -> None:
        """Start a thread for each task that has not been begun: the one before it may be stuck."""
        for _ in range(self._tasks.qsize()):
            self._start()

    def stop(self) -> None:
        """End each thread after its present task."""
        for _ in range(self._threads):
            self._tasks.put(None)

    def _start(self) -> None:
        with self._lock:
            self._threads += 1
        threading.Thread(target=self._work, name=self._name, daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._lock:
                if self._idle and self._tasks.empty():  # added threads leave when one is enough again
                    self._threads -= 1
                    return
                self._idle += 1
            task = self._tasks.get()
            with self._lock:
                self._idle -= 1
                if task is None:
                    self._threads -= 1
                    return
            task()
            del task  # it holds what it has made until the next one comes
            if self._tasks.empty():
                self._notify()


class JobOutcome:
    """What became of a job: its value, or the exception that it raised."""

    __slots__ = ("error", "value")

    def __init__(self, value: Any = None, error: BaseException | None = None) -> None:
        self.value = value
        self.error = error


class Worker:
    """Run one job at a time in `threads`. Everything but the job runs in the caller's thread."""

    def __init__(self, threads: ElasticThreadPool) -> None:
        self._threads = threads
        self._outcome: JobOutcome | None = None
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
        """Begin a job and return True; False, and nothing happens, if one is still there."""
        if self.busy:
            return False
        self._busy_since = time.monotonic()
        self._threads.submit(partial(self._do, job))
        return True

    def take_result(self) -> JobOutcome | None:
        """Return the outcome of the last job, once; None while it runs or if there was none."""
        outcome = self._outcome
        if outcome is not None:
            self._outcome = None
            self._busy_since = None
        return outcome

    def _do(self, job: Job) -> None:
        try:
            outcome = JobOutcome(value=job())
        except BaseException as error:  # noqa: BLE001  whatever it was, the loop must learn of it
            outcome = JobOutcome(error=error)
        self._outcome = outcome
