"""Read the signs that processes are one job.

Signs of one job are ranks that were counted, what one launcher started, and workers of one program. One parent, one
process group and one command line are no sign: a supervisor, a shell's loop or GNU parallel start what is unrelated. A
user may have written what is read here, as to the environment and the command line. So it joins only processes of one
user in one container, each of which shows the sign itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from gpuagent.core.identity import JobSign, SignKind
from gpuagent.procfs.files import LivingThread, ProcessStatus, ProcFiles, Stat, decode, parse_stat, parse_status
from gpuagent.procfs.programs import read_program

_LAUNCHERS = re.compile(
    r"torchrun|torch\.distributed\.(?:run|launch)|accelerate-launch|accelerate\.commands\.launch"
    r"|deepspeed\.launcher\.launch|mpirun|mpiexec(?:\.[a-z]+)?|orterun|orted|prterun|prted|hydra_pmi_proxy"
)
"""Programs and modules whose children are the ranks of one job, and nothing else."""
_ACCELERATE = "accelerate"
_SPAWNED = b"from multiprocessing.spawn import spawn_main; spawn_main("
_FORK_SERVER = b"from multiprocessing.forkserver import main; main("
_VARIABLES = (b"RANK", b"WORLD_SIZE", b"MASTER_ADDR", b"MASTER_PORT")
_RUN_ID = b"TORCHELASTIC_RUN_ID"
_MOST_DIGITS = 9


class _Parent(NamedTuple):
    stat: Stat
    arguments: list[bytes]
    names: tuple[str, ...]

    @property
    def key(self) -> str:
        return f"{self.stat.pid}:{self.stat.start_ticks}"


def read_job_signs(
    files: ProcFiles, stat: Stat, status: ProcessStatus, thread: LivingThread | None
) -> tuple[JobSign, ...]:
    """Return the signs of a process; () where it shows none, or they may not be read (the environment: CAP_SYS_PTRACE).

    Nothing is asked of a process in state D: its command line lies in memory that may be locked for ever.
    """
    if thread is None or thread.stat.state == "D" or status.uid is None:
        return ()
    parent = _read_parent(files, stat, status.uid)
    names = parent.names if parent is not None else ()
    try:
        arguments = _split(thread.read("cmdline"))
    except OSError:
        arguments = []
    found = tuple(_of_parent(stat, arguments, parent))
    try:
        rank = _of_environment(thread.read("environ"), names)
    except OSError:
        rank = None
    return found if rank is None else (*found, rank)


def _of_parent(stat: Stat, arguments: list[bytes], parent: _Parent | None) -> Iterator[JobSign]:
    if parent is None:
        return
    if any(_LAUNCHERS.fullmatch(each) for each in parent.names) or _launches_by_accelerate(parent):
        yield JobSign(SignKind.LAUNCHER, parent.key, parent_names=parent.names)
    if stat.process_group != parent.stat.process_group:
        return
    code = arguments[arguments.index(b"-c") + 1 :][:1] if b"-c" in arguments else []
    spawned = code and code[0].startswith(_SPAWNED) and _runs_python(parent)
    served = code and code[0].startswith(_FORK_SERVER) and parent.arguments == arguments
    if spawned or served:
        yield JobSign(SignKind.WORKERS, parent.key, parent_names=parent.names)
    # Where the stack and the arguments lie is random per exec: alike, the one is a fork of the other.
    elif len(stat.image) > 1 and stat.image[1:] == parent.stat.image[1:] and parent.arguments == arguments:
        yield JobSign(SignKind.FORK, parent.key, parent_names=parent.names)


def _of_environment(environment: bytes, parent_names: tuple[str, ...]) -> JobSign | None:
    """Return the rank that a launcher has given: by the environment at the start of the program."""
    variables = dict(each.split(b"=", 1) for each in environment.split(b"\0") if b"=" in each)
    rank, world, address, port = (variables.get(name, b"") for name in _VARIABLES)
    if not (all(map(_is_number, (rank, world, port))) and address) or int(rank) >= int(world):
        return None
    group = b"\0".join((address, port, world, variables.get(_RUN_ID, b"")))
    return JobSign(SignKind.RANK, decode(group), int(rank), parent_names)


def _is_number(text: bytes) -> bool:
    """Return whether it is a number, of no more digits than int() takes from anybody."""
    return text.isdigit() and len(text) <= _MOST_DIGITS


def _read_parent(files: ProcFiles, stat: Stat, uid: int) -> _Parent | None:
    """Return the parent, if it is of the same user and was there before; None for any other, and for init."""
    if stat.parent_pid <= 1:
        return None
    try:
        parent = parse_stat(files.read(stat.parent_pid, "stat"))
        if parent.start_ticks > stat.start_ticks or parent.state == "D" or parent.exiting:
            return None
        if parse_status(files.read(parent.pid, "status")).uid != uid:
            return None
        arguments = _split(files.read(parent.pid, "cmdline"))
        names = read_program(files, parent.pid).names
    except (OSError, ValueError):
        return None
    return _Parent(parent, arguments, tuple(dict.fromkeys(each for name in names for each in (name, _last(name)))))


def _launches_by_accelerate(parent: _Parent) -> bool:
    return _ACCELERATE in parent.names and b"launch" in parent.arguments


def _runs_python(parent: _Parent) -> bool:
    return bool(re.fullmatch(r"(?:python|pypy)[0-9.]*t?", _last(decode(parent.arguments[0]))))


def _split(line: bytes) -> list[bytes]:
    return line.removesuffix(b"\0").split(b"\0")


def _last(path: str) -> str:
    return path.rpartition("/")[2]
