"""What /proc and a pidfd tell of GPU processes at the moment of a request by hand.

A snapshot follows what changes in a process at a slow rate. A person who asks is told what is so now, and that is what
is acted on.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterable, Mapping
from functools import cache
from typing import NamedTuple

from gpuagent.core.snapshot import ProcessInfo
from gpuagent.procfs.files import ProcFiles
from gpuagent.procfs.table import ProcessTable
from gpuagent_alerts.remedies.execution.unit_ends import UnitEnds
from gpuagent_alerts.remedies.facts.command_digests import CommandDigests
from gpuagent_alerts.remedies.facts.job_starters import SupervisorUnits
from gpuagent_alerts.remedies.facts.own_work import ProcessInfoReader
from gpuagent_alerts.remedies.facts.process_facts import IdentityReading, read_identity
from gpuagent_alerts.remedies.facts.process_scan import ProcessScan, UnseenProcesses
from gpuagent_alerts.remedies.facts.ties import read_ties, read_ties_of_unit
from gpuagent_alerts.remedies.facts.unit_ties import SystemdTieFinder
from gpuagent_alerts.remedies.target import Identity, TiedProcess, Ties

LOOK_SECONDS = 10.0
"""Time for a look at every process: ten thousand are read in one to three seconds."""


class FreshProcess(NamedTuple):
    """A process as it is now."""

    info: ProcessInfo
    identity: Identity
    """What is compared of it, read before `info`."""
    ends_with_it: tuple[TiedProcess, ...] | None = ()
    """Whom its end would end as well; None where that cannot be seen."""
    unit: str = ""
    """The service that may fail with it; "" for none, for its main process, and where that cannot be seen."""
    ends_with_unit: tuple[TiedProcess, ...] = ()
    """Who ends where that service does, itself and `ends_with_it` among them."""


class ProcessLookup:
    """Reads processes anew; this one knows nothing beyond the snapshot."""

    def look_up(self, pids: Iterable[int]) -> Mapping[int, FreshProcess | None]:  # noqa: ARG002
        """Return each; None for one that /proc does not know. One that cannot be read is left out. It may hang."""
        return {}

    def follow_soon(self, pids: Iterable[int]) -> None:
        """Have the next snapshot tell what they are by then."""


class TableLookup(ProcessLookup):
    """Reads by the table's own reader: what is shown and what is measured are read in one way."""

    def __init__(
        self, files: ProcFiles, table: ProcessTable, digests: CommandDigests, supervisors: SupervisorUnits | None = None
    ) -> None:
        """Digests of command lines are by the same key as those of a process that is held, to be compared with them."""
        self._files = files
        self._table = table
        self._digests = digests
        self._supervisors = supervisors

    def look_up(self, pids: Iterable[int]) -> Mapping[int, FreshProcess | None]:
        return look_up(self._files, self._table.reader, pids, self._digests, self._supervisors)

    def follow_soon(self, pids: Iterable[int]) -> None:
        self._table.follow_soon(pids)


def look_up(
    files: ProcFiles,
    reader: ProcessInfoReader,
    pids: Iterable[int],
    digests: CommandDigests,
    supervisors: SupervisorUnits | None = None,
) -> dict[int, FreshProcess | None]:
    """See `ProcessLookup`."""
    found: dict[int, FreshProcess | None] = {}
    finder = SystemdTieFinder(files, reader.proven_container, ends=cache(UnitEnds), supervisors=supervisors)
    units: dict[str, Ties] = {}
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
        process = FreshProcess(info, identity, None if ties is None or ties.unseen else ties.processes)
        found[pid] = process if scan is None else _with_unit(process, files, reader, finder, scan, units)
    return found


def _with_unit(
    process: FreshProcess,
    files: ProcFiles,
    reader: ProcessInfoReader,
    finder: SystemdTieFinder,
    scan: ProcessScan,
    known: dict[str, Ties],
) -> FreshProcess:
    """Add the service that may fail with it, where it can be seen who ends with that; each is read once."""
    try:
        beside = finder.beside_in_units([process.info.id.pid], scan)
    except UnseenProcesses:
        return process
    for unit, rows in beside.items():
        if unit not in known:
            known[unit] = read_ties_of_unit(files, reader, unit, rows, finder, scan)
        if not known[unit].unseen:
            return process._replace(unit=unit, ends_with_unit=known[unit].processes)
    return process


def _read(files: ProcFiles, reader: ProcessInfoReader, pid: int, digests: CommandDigests) -> IdentityReading:
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


def handle_inode(descriptor: int) -> int:
    """Return what is unique per process where the kernel has pidfs (Linux 6.9), 0 where it has not."""
    found = os.fstat(descriptor)
    return found.st_ino if found.st_ino > 2**32 or _has_pidfs() else 0


def has_ended(descriptor: int) -> bool:
    """Return whether all threads have ended, also while nobody has reaped the process: a pidfd is readable then."""
    poll = select.poll()  # not select.select, which refuses descriptors from 1024 on
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def has_been_reaped(descriptor: int) -> bool:
    """Return whether its number is free. Signal 0 works on a zombie, whose pid is still its own."""
    try:
        signal.pidfd_send_signal(descriptor, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return has_ended(descriptor)
    return False


def _has_pidfs() -> bool:
    """Return whether two processes have two inodes. Before pidfs all pidfds shared one of anon_inodefs."""
    own, parent = os.pidfd_open(os.getpid()), os.pidfd_open(os.getppid() or 1)
    try:
        return os.fstat(own).st_ino != os.fstat(parent).st_ino
    finally:
        os.close(own)
        os.close(parent)
