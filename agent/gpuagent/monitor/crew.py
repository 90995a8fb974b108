"""Threads for calls that may never return: one while all goes well, and one for each that is stuck.

A thread for each GPU would do as well, and cost twice as much: to wake eight threads, which then take the interpreter
from each other at every call into the driver, was 5.4 of 12 ms of CPU time a second with 8 GPUs; one thread that reads
them in turn takes 2.2 ms.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

Task = Callable[[], None]
"""Does one thing and raises nothing."""


class Crew:
    """Does tasks in the order in which they came, each once. Daemon threads: a stuck one ends with the process.

    `put`, `reinforce` and `stop` are for one thread. `notify` is called from a thread of the crew when nothing is left
    to begin: after the last task of several, and after one that was late.
    """

    def __init__(self, name: str, notify: Callable[[], None]) -> None:
        self._name = name
        self._notify = notify
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._idle = 0

    def put(self, task: Task) -> None:
        """Have it done. The first one starts a thread."""
        self._tasks.put(task)
        if not self._threads:
            self._start()

    def reinforce(self) -> None:
        """A thread for each task that has not been begun: whoever is before it may be stuck."""
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
                if self._idle and self._tasks.empty():  # reinforcements leave when one is enough again
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
