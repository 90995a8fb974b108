"""A process held by a pidfd. The one module that sends signals.

The order is that of systemd's `pidref_verify`: open the pidfd, read /proc, ask the pidfd whether the process still is.
If it is, what was read was of it and of no other that was given the number.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import signal
import threading
from collections.abc import Callable
from dataclasses import replace

from gpuagent.acting.facts import Reader, read_facts, stuck_thread
from gpuagent.procfs.files import ProcFiles
from gpuagent.procfs.watch import HIGHEST_PID
from gpuagent_alerts.remedies.target import Facts, Target
from gpuagent_alerts.remedies.world import Gone, NotPermitted

READ_SECONDS = 2.0
"""A read of /proc that takes longer hangs on the process's own locks: it is left alone, in a thread of its own."""


class HeldProcess:
    """Opened at once; everything later goes through the pidfd."""

    def __init__(self, target: Target, files: ProcFiles, reader: Reader) -> None:
        """Hold the process that has the target's pid now; whether it is the target is for the facts to tell.

        Raises:
            Gone: no process has this pid.
            NotPermitted: the pid is no real one, or no pidfd can be had.
        """
        self._pid = target.pid
        self._files = files
        self._reader = reader
        if not 1 < target.pid <= HIGHEST_PID:
            raise NotPermitted(f"pid {target.pid} is none that the kernel gives out: a scenario has made it up")
        try:
            self._descriptor = os.pidfd_open(target.pid)
        except OSError as error:
            if error.errno == errno.ESRCH:
                raise Gone from None
            raise NotPermitted(f"no pidfd: {error.strerror}") from None
        self._closed = False

    async def facts(self) -> Facts:
        """See `gpuagent_alerts.remedies.world.Held`."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Facts | Exception] = loop.create_future()

        def settle(found: Facts | Exception) -> None:
            if not answer.done():
                answer.set_result(found)

        def read() -> None:
            found: Facts | Exception
            try:
                found = read_facts(self._files, self._reader, self._pid, self._inode())
                if found.threads > 1 and found.state == "Z":
                    found = replace(found, wait_channel=stuck_thread(self._pid) or found.wait_channel)
            except Exception as error:  # noqa: BLE001  it is judged below, in the loop
                found = error
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(settle, found)

        threading.Thread(target=read, name=f"facts of {self._pid}", daemon=True).start()
        try:
            async with asyncio.timeout(READ_SECONDS):  # not wait_for: until 3.12 that may swallow a cancellation
                facts = await answer
        except TimeoutError:
            raise NotPermitted("/proc does not answer: it hangs in the kernel") from None
        if self._has_been_reaped() or isinstance(facts, FileNotFoundError | ProcessLookupError):
            raise Gone
        if isinstance(facts, Exception):
            raise NotPermitted(f"/proc cannot be read: {facts}")
        return facts

    def send(self, number: int) -> None:
        """See `gpuagent_alerts.remedies.world.Held`."""
        try:
            signal.pidfd_send_signal(self._descriptor, number)
        except ProcessLookupError:
            raise Gone from None
        except PermissionError as error:
            raise NotPermitted(error.strerror or "EPERM") from None

    def has_ended(self) -> bool:
        """A pidfd becomes readable when all threads have ended, also while nobody has reaped the process."""
        poll = select.poll()  # not select.select, which refuses descriptors from 1024 on
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Let go of it. Twice is no fault."""
        if not self._closed:
            self._closed = True
            os.close(self._descriptor)

    def _inode(self) -> int:
        """Unique per process where the kernel has pidfs (Linux 6.9), one for all where it has not."""
        found = os.fstat(self._descriptor)
        return found.st_ino if found.st_ino > 2**32 or _has_pidfs() else 0

    def _has_been_reaped(self) -> bool:
        """Signal 0 works on a zombie, whose pid is still its own."""
        try:
            signal.pidfd_send_signal(self._descriptor, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return self.has_ended()
        return False


def _has_pidfs() -> bool:
    """Whether two processes have two inodes. Before pidfs all pidfds shared one of anon_inodefs."""
    own, parent = os.pidfd_open(os.getpid()), os.pidfd_open(os.getppid() or 1)
    try:
        return os.fstat(own).st_ino != os.fstat(parent).st_ino
    finally:
        os.close(own)
        os.close(parent)


def ancestors(files: ProcFiles, pid: int, parent_of: Callable[[int], int]) -> frozenset[int]:
    """The process itself and all above it."""
    found: set[int] = set()
    while pid > 0 and pid not in found and files.exists(pid):
        found.add(pid)
        pid = parent_of(pid)
    return frozenset(found | {1})
