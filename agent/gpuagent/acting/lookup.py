"""What /proc tells of GPU processes at the moment of a request by hand: what a person is shown, and what is acted on.

A snapshot follows what changes in a process at a slow rate. A person who asks is told what is so now.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol, TypeVar

from gpuagent.acting.digests import CommandDigests
from gpuagent.acting.handles import handle_inode, has_been_reaped
from gpuagent.acting.identities import Seen, read_identity
from gpuagent.acting.members import Reader, read_ties
from gpuagent.acting.process_scan import ProcessScan, UnseenProcesses
from gpuagent.acting.ties import TieFinder
from gpuagent.core.snapshot import ProcessInfo
from gpuagent.procfs.files import ProcFiles
from gpuagent.procfs.table import ProcessTable
from gpuagent_alerts.remedies.target import Identity, TiedProcess

T = TypeVar("T")
LOOK = "a look at /proc"
"""Name of the threads that read it."""
READ_SECONDS = 2.0
"""A read of /proc that takes longer hangs on a process's own locks: it is left alone, in a thread of its own."""


class FreshProcess(NamedTuple):
    """A process as it is now."""

    info: ProcessInfo
    identity: Identity
    """What is compared of it, read before `info`."""
    ends_with_it: tuple[TiedProcess, ...] | None = ()
    """Whom its end would end as well; None where that cannot be seen."""


class Lookup(Protocol):
    """Reads processes anew."""

    def look_up(self, pids: Iterable[int]) -> Mapping[int, FreshProcess | None]:
        """Return each; None for one that /proc does not know. One that cannot be read is left out. It may hang."""
        ...

    def follow_soon(self, pids: Iterable[int]) -> None:
        """Have the next snapshot tell what they are by then."""
        ...


class NoLookup:
    """Knows nothing beyond the snapshot."""

    def look_up(self, pids: Iterable[int]) -> Mapping[int, FreshProcess | None]:  # noqa: ARG002
        return {}

    def follow_soon(self, pids: Iterable[int]) -> None:
        """Do nothing."""


class TableLookup:
    """Reads by the table's own reader: what is shown and what is measured are read in one way."""

    def __init__(self, files: ProcFiles, table: ProcessTable, digests: CommandDigests) -> None:
        """Digests of command lines are by the same key as those of a process that is held, to be compared with them."""
        self._files = files
        self._table = table
        self._digests = digests

    def look_up(self, pids: Iterable[int]) -> Mapping[int, FreshProcess | None]:
        return look_up(self._files, self._table.reader, pids, self._digests)

    def follow_soon(self, pids: Iterable[int]) -> None:
        self._table.follow_soon(pids)


def look_up(
    files: ProcFiles, reader: Reader, pids: Iterable[int], digests: CommandDigests
) -> dict[int, FreshProcess | None]:
    """See `Lookup`."""
    found: dict[int, FreshProcess | None] = {}
    finder = TieFinder(files, reader.proven_container)
    scan: ProcessScan | None = None
    with contextlib.suppress(UnseenProcesses):
        scan = finder.scan()
    for pid in pids:
        try:
            identity, info, *_ = _read(files, reader, pid, digests)
        except (FileNotFoundError, ProcessLookupError):
            found[pid] = None
            continue
        except (OSError, ValueError):
            continue
        ties = None if scan is None else read_ties(files, reader, [pid], finder=finder, scan=scan)
        found[pid] = FreshProcess(info, identity, None if ties is None or ties.unseen else ties.processes)
    return found


def _read(files: ProcFiles, reader: Reader, pid: int, digests: CommandDigests) -> Seen:
    """Hold it, read it, and ask whether it still is: then what was read is of it alone. Raises as `read_identity`."""
    try:
        descriptor = os.pidfd_open(pid)
    except (OSError, OverflowError):  # a number beyond all pids, made up by a scenario; or no more descriptors
        return read_identity(files, reader, pid, 0, digests)
    try:
        found = read_identity(files, reader, pid, handle_inode(descriptor), digests)
        if has_been_reaped(descriptor):
            raise ProcessLookupError
        return found
    finally:
        os.close(descriptor)


async def in_time(read: Callable[[], T]) -> T:
    """Return what `read` does, in a thread of its own. Raises TimeoutError after `READ_SECONDS`, and as `read`."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(found: T | None, error: Exception | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(found)  # type: ignore[arg-type]

    def run() -> None:
        found, error = None, None
        try:
            found = read()
        except Exception as raised:  # noqa: BLE001  it is raised in the loop
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, found, error)

    threading.Thread(target=run, name=LOOK, daemon=True).start()
    async with asyncio.timeout(READ_SECONDS):  # not wait_for: until 3.12 that may swallow a cancellation
        return await answer
