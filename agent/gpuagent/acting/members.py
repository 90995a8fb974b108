"""Read whom the end of processes would end or hang up as well, as a decision and a person need it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Protocol

from gpuagent.acting.never_entries import NOTHING, NeverLook
from gpuagent.acting.own_work import read_place
from gpuagent.acting.process_scan import ProcessRow, ProcessScan, UnseenProcesses
from gpuagent.acting.ties import Tie, TieFinder
from gpuagent.procfs.files import ProcFiles
from gpuagent.procfs.program_names import read_program
from gpuagent.procfs.reader import Record
from gpuagent.procfs.stat import parse_status
from gpuagent.procfs.thread_uids import read_uids
from gpuagent.reading import ProcessInfo
from gpuagent_alerts.remedies.target import MAX_TIED, TiedProcess, Ties

_ROOT = 0
_GONE = (FileNotFoundError, ProcessLookupError)


class Reader(Protocol):
    """Reads a process in the way in which it was measured, and what says to whom it belongs."""

    def read(self, pid: int) -> Record: ...

    def proven_container(self, pid: int) -> str: ...


def read_ties(
    files: ProcFiles,
    reader: Reader,
    pids: Collection[int],
    *,
    finder: TieFinder | None = None,
    scan: ProcessScan | None = None,
    never: NeverLook = NOTHING,
) -> Ties:
    """Return everybody who ends, is hung up or is stopped for good together with these processes.

    `never` knows the operator's entries of the never-list. It ends with the first beyond `MAX_TIED`. It may block.
    """
    looks = finder or TieFinder(files, reader.proven_container)
    found: list[TiedProcess] = []
    try:
        ties = looks.find(pids, scan)
        of = list(_existing(reader, pids)) if ties else []
        for pid in sorted(ties):
            try:
                member = _read_tied(files, reader, ties[pid], of, never)
            except _GONE:
                continue
            if member.start_ticks == ties[pid].row.start_ticks:
                found.append(member)
            if len(found) > MAX_TIED:
                break
    except UnseenProcesses as error:
        return Ties(unseen=str(error))
    except (OSError, ValueError) as error:
        return Ties(unseen=f"a process that depends on it cannot be read: {error}")
    return Ties(tuple(found))


def _existing(reader: Reader, pids: Collection[int]) -> Sequence[ProcessInfo]:
    found = []
    for pid in pids:
        with suppress(*_GONE):
            found.append(reader.read(pid).info)
    return found


def _read_tied(files: ProcFiles, reader: Reader, tie: Tie, of: Sequence[ProcessInfo], never: NeverLook) -> TiedProcess:
    """Return what is judged of a process that is tied to these. Raises OSError and ValueError as `Reader.read`."""
    pid = tie.row.pid
    info = reader.read(pid).info
    score = None
    with suppress(OSError, ValueError):
        score = int(files.read(pid, "oom_score_adj"))
    belongs = tie.may_be_own and any(
        is_own_work(files, reader, pid, each) and not _is_anothers_session(reader, tie.row, each) for each in of
    )
    program = read_program(files, pid)
    return TiedProcess(
        pid,
        info.id.start_ticks,
        tuple(dict.fromkeys((info.name, *program.names))),
        info.user or str(info.uid),
        belongs,
        tie.certain,
        score,
        tie.why,
        never.reason(files, pid, program),
    )


def _is_anothers_session(reader: Reader, row: ProcessRow, of: ProcessInfo) -> bool:
    """Return whether it was started into a container from outside, as by `docker exec`, for a person or another user.

    What the container itself has started is its own, as which users ever.
    """
    container = of.container_id if "container" in of.proven_names else ""
    entered = bool(container) and reader.proven_container(row.parent_pid) != container
    return entered and (row.terminal != 0 or not row.uids <= {of.uid, _ROOT})


def is_own_work(files: ProcFiles, reader: Reader, pid: int, of: ProcessInfo) -> bool:
    """Return whether it is in the same container, if root has named that.

    Without one, whether all of its threads have the same user, and it has the same cgroups and login.
    """
    if container := of.container_id if "container" in of.proven_names else "":
        return reader.proven_container(pid) == container
    if set(read_uids(files, pid, parse_status(files.read(pid, "status")).uids)) != {of.uid}:
        return False
    return not read_place(files, of.id.pid).difference(read_place(files, pid))
