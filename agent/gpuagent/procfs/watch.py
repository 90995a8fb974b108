"""Hears of the end of processes without asking each of them.

A pidfd is a handle on one process: it becomes readable when the process has ended, and never points
to another process that was given the same number later. All of them hang in one epoll object, so a
look at 512 processes is one system call. See pidfd_open(2), and epoll(7).
"""

from __future__ import annotations

import os
import resource
import select

HIGHEST_PID = 4_194_304
"""PID_MAX_LIMIT of 64-bit Linux: the kernel gives out no pid above it, a simulated node no pid
below."""


class PidfdWatcher:
    """One pidfd per process. Not for several threads."""

    def __init__(self, *, maximum: int | None = None) -> None:
        """Watch at most `maximum` processes.

        By default half of the descriptors that the agent may open: on a crowded node it must still
        be able to accept a connection.
        """
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._maximum = soft // 2 if maximum is None else maximum
        self._epoll = select.epoll()
        self._descriptors: dict[int, int] = {}
        self._pids: dict[int, int] = {}

    def add(self, pid: int) -> bool:
        """Begin to watch a process; False where that cannot be, and the caller has to look."""
        if pid in self._descriptors:
            return True
        if pid > HIGHEST_PID or len(self._descriptors) >= self._maximum:
            return False
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:  # gone, out of descriptors, or a kernel before 5.3
            return False
        try:
            self._epoll.register(descriptor, select.EPOLLIN)
        except OSError:  # fs.epoll.max_user_watches
            os.close(descriptor)
            return False
        self._descriptors[pid] = descriptor
        self._pids[descriptor] = pid
        return True

    def has_exited(self, pid: int) -> bool:
        """Return whether a watched process has ended, be it a zombie still; False if not watched."""
        descriptor = self._descriptors.get(pid)
        if descriptor is None:
            return False
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(0))

    def exited(self) -> set[int]:
        """Return all watched processes that have ended and were not removed since. Does not wait."""
        if not self._descriptors:
            return set()
        events = self._epoll.poll(0, len(self._descriptors))
        return {self._pids[descriptor] for descriptor, _ in events}

    def remove(self, pid: int) -> None:
        """End watching a process, watched or not."""
        descriptor = self._descriptors.pop(pid, None)
        if descriptor is not None:
            del self._pids[descriptor]
            # Closing alone does not do it while a child between fork and exec holds the same
            # descriptor.
            self._epoll.unregister(descriptor)
            os.close(descriptor)

    def close(self) -> None:
        """End watching all of them."""
        for pid in list(self._descriptors):
            self.remove(pid)
        self._epoll.close()
