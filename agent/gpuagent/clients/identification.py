"""Read who a connected process is, without waiting for it in the event loop.

A process within execve(2) of which a file system in user space answers nothing holds up whoever reads its `stat`: see
`gpuagent.procfs.hanging`. So a hello is judged in a thread, few at a time for a user. A thread that hangs keeps its
place: that user's apps alone are refused until it comes back.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from functools import partial

from gpuagent.clients.wire import Peer, RefusedPeer
from gpuagent.core.snapshot import ProcessInfo
from gpuagent.procfs.files import ProcFiles, parse_status
from gpuagent.procfs.hanging import HANGS_AFTER_SECONDS, describe, start_read
from gpuagent.procfs.reader import ProcessReader

MOST_OF_USER = 2
"""Reads at the same time for one user. All others wait in turn."""
MOST_READS = 32
"""The same for all users: the unit has 256 threads."""
_Answer = tuple[ProcessInfo, tuple[int, ...], float]
"""The process, its pid in each of its namespaces, and the CPU time that it took."""


class _Reads:
    """The turn of a user's processes, and since when each read goes on, by its number and the clock of the loop."""

    def __init__(self) -> None:
        self.turn = asyncio.Semaphore(MOST_OF_USER)
        self.since: dict[int, float] = {}
        self.waiting = 0


class PeerIdentifier:
    """For one event loop, whose thread calls all methods."""

    def __init__(
        self,
        reader: ProcessReader,
        files: ProcFiles,
        spend: Callable[[float], None],
        *,
        patience_seconds: float = HANGS_AFTER_SECONDS,
    ) -> None:
        """`spend` is told the CPU seconds of each look; one hangs after `patience_seconds`."""
        self._reader = reader
        self._files = files
        self._spend = spend
        self._patience_seconds = patience_seconds
        self._turn = asyncio.Semaphore(MOST_READS)
        self._users: dict[str, _Reads] = {}
        self._numbers = itertools.count()

    async def identify(self, peer: Peer, claimed_pid: int, user: str) -> ProcessInfo:
        """Return the process behind a peer, after it has said which pid it thinks it has.

        Raises:
            RefusedPeer: it claims another's pid, is gone, or it or another process of the user hangs.
        """
        reads = self._users.setdefault(user, _Reads())
        reads.waiting += 1
        number = next(self._numbers)
        reading = asyncio.create_task(self._read(number, peer.pid, reads))
        reading.add_done_callback(partial(self._forget, user, reads))
        try:
            while not reading.done():
                await asyncio.wait([reading], timeout=self._patience_seconds)
                if not reading.done() and (why := self._why_none(number, peer.pid, user, reads)):
                    raise RefusedPeer("hanging", why)
        finally:
            if number not in reads.since:
                reading.cancel()
        try:
            info, own_pids, seconds = reading.result()
        except (OSError, ValueError):
            raise RefusedPeer("gone", "/proc does not know it") from None
        self._spend(seconds)
        if claimed_pid != own_pids[-1]:
            raise RefusedPeer("pid", f"pid {peer.pid} says that it is {claimed_pid}, and calls itself {own_pids[-1]}")
        return info

    def _why_none(self, number: int, pid: int, user: str, reads: _Reads) -> str:
        """Return why there will be no answer soon; "" where there may be one."""
        before = asyncio.get_running_loop().time() - self._patience_seconds
        if number in reads.since:
            return describe(pid) if reads.since[number] <= before else ""
        of_user = list(reads.since.values())
        everybody = [since for each in self._users.values() for since in each.since.values()]
        if len(of_user) >= MOST_OF_USER and max(of_user) <= before:
            return f"processes of {user} hang in the kernel: end those first"
        if len(everybody) >= MOST_READS and max(everybody) <= before:
            return "processes of many users hang in the kernel: end those first"
        return ""

    async def _read(self, number: int, pid: int, reads: _Reads) -> _Answer:
        async with reads.turn, self._turn:
            reads.since[number] = asyncio.get_running_loop().time()
            try:
                return await start_read(partial(self._look, pid))
            finally:
                del reads.since[number]

    def _forget(self, user: str, reads: _Reads, reading: asyncio.Task[_Answer]) -> None:
        if not reading.cancelled():
            reading.exception()  # it may be that nobody waits for it any more
        reads.waiting -= 1
        if not reads.waiting:
            del self._users[user]

    def _look(self, pid: int) -> _Answer:
        before = time.thread_time()
        info = self._reader.read(pid).info
        own_pids = parse_status(self._files.read(pid, "status")).namespace_pids or (pid,)
        return info, own_pids, time.thread_time() - before
