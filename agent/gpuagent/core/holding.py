"""Who holds most of a memory that is full, in the same words on every surface."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gpuagent.core.snapshot import ProcessReading, ProcessState
from gpuagent.core.units import format_bytes

LARGE_SHARE = 1 / 3
STANDS_OUT = 1.2
"""Share of what is used, and ratio to the next holder, from which on a process is named as who fills a GPU."""
_MOST_NAMED = 2
"""Number of processes alike up to which each is named."""


class Holding(NamedTuple):
    """The process that holds most of a memory, or the several that do where none stands out."""

    used_bytes: int
    """The sum over all of them."""
    process: ProcessReading | None = None
    """The one that stands out; None of several."""
    text: str = ""
    """`60 processes`, `3 processes of 8.0 GiB at most`, or `serve (pid 7) and python3 (pid 9)`; "" of one."""


def find_holding(processes: Iterable[ProcessReading], used_bytes: int) -> Holding | None:
    """Return who holds most of a memory of which so much is used; None where nobody is known to, or none stands out.

    A process stands out with a third of what is used, and clearly more than the next one: one of twelve equal ones is
    not who fills the GPU. Such of which nothing but the pid is known do not count.
    """
    held: dict[int, int] = {}
    named: dict[int, ProcessReading] = {}
    for one in processes:
        is_known = one.info is not None or one.former is not None or one.state is ProcessState.DEAD
        if one.used_bytes and is_known:
            held[one.pid] = held.get(one.pid, 0) + one.used_bytes
            named.setdefault(one.pid, one)
    first, second = (*sorted(held, key=lambda pid: (-held[pid], pid)), None, None)[:2]
    if first is None:
        return None
    most = held[first]
    if most < LARGE_SHARE * used_bytes:
        return Holding(sum(held.values()), text=f"{len(held)} processes") if len(held) > 1 else None
    if second is not None and most < STANDS_OUT * held[second]:
        alike = [pid for pid in held if held[pid] > most / STANDS_OUT]
        names = " and ".join(name_with_pid(named[pid]) for pid in sorted(alike, key=lambda pid: (-held[pid], pid)))
        alike_words = f"{len(alike)} processes of {format_bytes(most)} at most"
        return Holding(sum(held[pid] for pid in alike), text=alike_words if len(alike) > _MOST_NAMED else names)
    return Holding(most, named[first])


def name_with_pid(process: ProcessReading) -> str:
    """Return the name and the pid of a process, its pid where it has no name."""
    known = process.info or process.former
    return f"{known.name} (pid {process.pid})" if known else f"pid {process.pid}"


def count_untold(processes: Iterable[ProcessReading]) -> int:
    """Return the number of processes of which the driver does not tell the memory: what nobody owns is likely theirs.

    A virtual GPU, WSL and some containers list processes and tell the memory of none.
    """
    return len({one.pid for one in processes if one.used_bytes is None and one.state is not ProcessState.DEAD})


def unowned_memory(processes: Iterable[ProcessReading]) -> str:
    """Return what memory of none of these, which are all processes there, is called."""
    return "memory of unknown processes" if count_untold(processes) else "memory of no process"


def held_by_nobody(processes: Iterable[ProcessReading]) -> str:
    """Return the end of a sentence on such memory that is held."""
    if untold := count_untold(processes):
        return f"of it unassigned: the driver does not tell the memory of {untold} process{'es' if untold > 1 else ''}"
    return "of it held by no process that the driver lists"


def untold_advice(processes: Iterable[ProcessReading]) -> str:
    """Return where memory of none of these is likely; "" where the driver tells the memory of all."""
    untold = count_untold(processes)
    whose = f"{untold} process{'es' if untold > 1 else ''}"
    return f"The driver does not tell the memory of {whose}: it is likely there." if untold else ""


def is_nobodys(nobodys_bytes: int, processes: Iterable[ProcessReading], used_bytes: int) -> bool:
    """Return whether most of it, and a third at least, is held by no process that the driver lists."""
    held: dict[int, int] = {}
    for one in processes:
        held[one.pid] = held.get(one.pid, 0) + (one.used_bytes or 0)
    return nobodys_bytes > max(held.values(), default=0) and nobodys_bytes >= LARGE_SHARE * used_bytes


def ending_advice(process: ProcessReading) -> str:
    """Return the command that gives its memory back: of a service that is started again, else of the process.

    The command shows who it is and who ends with it, and asks. "" of a process that has ended.
    """
    info = process.info
    if info is None:
        return ""
    is_of_system = info.unit.endswith(".service") and "/" not in info.unit  # no rule restarts a user's own
    if is_of_system and not (info.slurm_job or info.pod_uid or info.container_id):
        return f"`gpuagent kill {process.pid} --restart-unit` restarts {info.unit} and frees the memory."
    return f"`gpuagent kill {process.pid}` ends {info.name} and frees the memory."
