"""Read a process that the end of another one would end as well, or hang up."""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol

from gpuagent.acting.never_entries import NOTHING, NeverLook
from gpuagent.procfs.files import ProcFiles
from gpuagent.procfs.program_names import read_program
from gpuagent.procfs.reader import Record
from gpuagent.procfs.stat import parse_status
from gpuagent.procfs.thread_uids import read_uids
from gpuagent.reading import ProcessInfo
from gpuagent_alerts.remedies.target import NamespaceMember


class Reader(Protocol):
    """Reads a process in the way in which it was measured, and what says to whom it belongs."""

    def read(self, pid: int) -> Record: ...

    def proven_container(self, pid: int) -> str: ...


def read_member(
    files: ProcFiles,
    reader: Reader,
    pid: int,
    of: ProcessInfo,
    *,
    certain: bool = True,
    never: NeverLook = NOTHING,
) -> NamespaceMember:
    """Return what is judged of a process that ends together with `of`; `never` knows the operator's entries.

    It belongs with that where it is in the same container, if root has named that; without one, where all of its
    threads have its user. `certain` is False where it only may end with it. Raises OSError and ValueError as
    `Reader.read`.
    """
    info = reader.read(pid).info
    score = None
    with suppress(OSError, ValueError):
        score = int(files.read(pid, "oom_score_adj"))
    if container := of.container_id if "container" in of.proven_names else "":
        belongs = reader.proven_container(pid) == container
    else:
        belongs = set(read_uids(files, pid, parse_status(files.read(pid, "status")).uids)) == {of.uid}
    program = read_program(files, pid)
    return NamespaceMember(
        pid,
        info.id.start_ticks,
        tuple(dict.fromkeys((info.name, *program.names))),
        info.user or str(info.uid),
        belongs,
        certain,
        score,
        never.reason(program),
    )
