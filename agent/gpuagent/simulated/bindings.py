"""Processes of the story that are real: which pid each has, and whether it still runs."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterable

from gpuagent.simulated.process import Process
from gpuagent.simulated.story import Story


class Bindings:
    """Ties `bind:` keys to real pids and notices by pidfd when one has ended. Thread-safe."""

    def __init__(self, processes: Iterable[Process], story: Story) -> None:
        self._story = story
        self._lock = threading.Lock()
        self._by_key: dict[str, list[Process]] = {}
        for process in processes:
            if process.spec.bind:
                self._by_key.setdefault(process.spec.bind, []).append(process)
        self._watched: dict[str, int] = {}
        self._poll = select.poll()
        self.version = 0
        """Grows whenever a process has begun or ended."""

    def bind(self, key: str, pid: int) -> None:
        """The processes declared `bind: KEY` begin now, with this pid.

        Raises:
            KeyError: the scenario has no such process.
            ProcessLookupError: no such pid.
        """
        with self._lock:
            processes = self._of(key)
            descriptor = os.pidfd_open(pid)
            self._forget(key)
            self._watched[key] = descriptor
            self._poll.register(descriptor, select.POLLIN)
            for process in processes:
                process.begin(pid, self._story.now())
            self.version += 1

    def unbind(self, key: str) -> None:
        """The processes declared `bind: KEY` are gone, and their memory with them.

        Raises:
            KeyError: the scenario has no such process.
        """
        with self._lock:
            for process in self._of(key):
                process.end()
            self._forget(key)
            self.version += 1

    def look(self) -> None:
        """Notice those that have ended since the last look; a zombie has ended."""
        if not self._watched:
            return
        with self._lock:
            ended = {descriptor for descriptor, _ in self._poll.poll(0)}
            for key in [key for key, descriptor in self._watched.items() if descriptor in ended]:
                for process in self._by_key[key]:
                    process.die(self._story.now())
                self._forget(key)
                self.version += 1

    def close(self) -> None:
        """Give the descriptors back."""
        with self._lock:
            for key in list(self._watched):
                self._forget(key)

    def _of(self, key: str) -> list[Process]:
        if key not in self._by_key:
            known = ", ".join(sorted(self._by_key)) or "none"
            raise KeyError(f"the scenario has no process with bind: {key} (it has {known})")
        return self._by_key[key]

    def _forget(self, key: str) -> None:
        descriptor = self._watched.pop(key, None)
        if descriptor is not None:
            self._poll.unregister(descriptor)
            os.close(descriptor)
