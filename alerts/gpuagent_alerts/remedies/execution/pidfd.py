"""A process pinned by a pidfd. The one module that sends signals.

The order is that of systemd's `pidref_verify`: open the pidfd, read /proc, ask the pidfd whether the process still is.
If it is, what was read was of it and of no other that was given the number.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from gpuagent.core.background import in_daemon_thread
from gpuagent.procfs.files import ProcFiles
from gpuagent.procfs.hanging import read_with_timeout
from gpuagent.procfs.table import HIGHEST_PID
from gpuagent_alerts.remedies.facts.command_digests import CommandDigests
from gpuagent_alerts.remedies.facts.fresh_lookup import LOOK_SECONDS, handle_inode, has_been_reaped, has_ended
from gpuagent_alerts.remedies.facts.never_entries import NeverListEntries
from gpuagent_alerts.remedies.facts.own_work import ProcessInfoReader
from gpuagent_alerts.remedies.facts.process_facts import read_facts, stuck_thread
from gpuagent_alerts.remedies.facts.timeout_reasons import why_slow
from gpuagent_alerts.remedies.observation import NotPermitted, ProcessEnded
from gpuagent_alerts.remedies.target import Facts, Target


class PidfdProcess:
    """Handle of a process: the pidfd is opened at once, and everything later goes through it."""

    def __init__(
        self,
        target: Target,
        files: ProcFiles,
        reader: ProcessInfoReader,
        digests: CommandDigests | None = None,
        never: NeverListEntries | None = None,
    ) -> None:
        """Hold the process that has the target's pid now; whether it is the target is for the facts to tell.

        Raises:
            ProcessEnded: no process has this pid.
            NotPermitted: the pid is no real one, or no pidfd can be had.
        """
        self._pid = target.pid
        self._files = files
        self._reader = reader
        self._digests = digests or CommandDigests()
        self._never = never or NeverListEntries()
        if target.pid == 1:
            raise NotPermitted("it is the first process of the system, which is never ended")
        if not 1 < target.pid <= HIGHEST_PID:
            raise NotPermitted(f"pid {target.pid} is none that the kernel gives out: a scenario has made it up")
        try:
            self._descriptor = os.pidfd_open(target.pid)
        except OSError as error:
            if error.errno == errno.ESRCH:
                raise ProcessEnded from None
            raise NotPermitted(f"no pidfd: {error.strerror}") from None
        self._closed = False

    async def facts(self) -> Facts:
        """See `gpuagent_alerts.remedies.observation.ProcessHandle`."""
        facts: Facts | Exception
        try:
            facts = await read_with_timeout(self._read, LOOK_SECONDS)  # whether another one checkpoints it: it asks all
        except TimeoutError:
            reason = await in_daemon_thread(partial(why_slow, LOOK_SECONDS), "slow look")
            raise NotPermitted(reason) from None
        except Exception as error:  # noqa: BLE001  it is judged below
            facts = error
        if has_been_reaped(self._descriptor) or isinstance(facts, FileNotFoundError | ProcessLookupError):
            raise ProcessEnded
        if isinstance(facts, Exception):
            raise NotPermitted(f"/proc cannot be read: {facts}")
        return facts

    def _read(self) -> Facts:
        inode, never = handle_inode(self._descriptor), self._never.snapshot()
        found = read_facts(self._files, self._reader, self._pid, inode, self._digests, never)
        if found.threads > 1 and found.state == "Z":
            found = replace(found, wait_channel=stuck_thread(self._pid) or found.wait_channel)
        return found

    def send(self, number: int) -> None:
        """See `gpuagent_alerts.remedies.observation.ProcessHandle`."""
        try:
            signal.pidfd_send_signal(self._descriptor, number)
        except ProcessLookupError:
            raise ProcessEnded from None
        except PermissionError as error:
            raise NotPermitted(error.strerror or "EPERM") from None

    def has_ended(self) -> bool:
        """See `gpuagent_alerts.remedies.observation.ProcessHandle`."""
        return has_ended(self._descriptor)

    def close(self) -> None:
        """Close the pidfd. A second call does nothing."""
        if not self._closed:
            self._closed = True
            os.close(self._descriptor)


def ancestors(files: ProcFiles, pid: int, parent_of: Callable[[int], int]) -> frozenset[int]:
    """Return the process itself and all above it."""
    found: set[int] = set()
    while pid > 0 and pid not in found and files.exists(pid):
        found.add(pid)
        pid = parent_of(pid)
    return frozenset(found | {1})
