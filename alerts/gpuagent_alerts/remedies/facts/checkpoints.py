"""Whether a process was restored from a checkpoint, or is being checkpointed at this moment.

To end a live process whose CUDA state `cuda-checkpoint` has restored hung whole machines
(https://github.com/NVIDIA/cuda-checkpoint/issues/53); while it is suspended, its end is safe. The driver does not tell,
so what CRIU leaves behind has to: it forks what it restores and gives it its old program by prctl(PR_SET_MM), without
an exec. The kernel keeps a flag on each task that was forked and has executed nothing since (PF_FORKNOEXEC), which
only an exec clears. An ordinary fork has it too, and runs the program of its parent; what CRIU restores does not.

A process without an exec whose parent runs another program is restored, or its own parent has ended and another has
taken it over (a daemon). The first process of a pid namespace is never taken over. Elsewhere the two look alike: where
CRIU is installed, it may have been restored.

A process that was suspended and resumed in place, by `cuda-checkpoint` alone, keeps no trace in /proc.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

from gpuagent.procfs.credentials import has_host_uids
from gpuagent.procfs.files import ProcFiles, Stat, parse_stat, parse_status
from gpuagent_alerts.remedies.facts.process_scan import list_pids
from gpuagent_alerts.remedies.safeguards.refusals import RESTORED_WAY_OUT

_NEVER_EXECUTED = 0x40  # PF_FORKNOEXEC, include/linux/sched.h
_CRIU = "criu"
_ROOT = 0
_TOOLS = frozenset({_CRIU, "cuda-checkpoint"})
_CRIU_FILES = tuple(Path(folder, _CRIU) for folder in ("/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"))
_TEXT_SIZE = re.compile(rb"^VmExe:\s*(\d+)", re.MULTILINE)
_CAPABLE = re.compile(rb"^CapEff:\s*([0-9a-f]{1,16})$", re.MULTILINE)
_CHECKPOINTS = 1 << 19 | 1 << 40
"""CAP_SYS_PTRACE and CAP_CHECKPOINT_RESTORE: CRIU 3.17 and later runs with these as another user than root."""
_TRACER = re.compile(rb"^TracerPid:\s*(\d+)", re.MULTILINE)
_DEEPEST = 64
"""Generations above a process that are looked at."""


def criu_is_installed() -> bool:
    """Return whether this machine has CRIU where packages and `make install` put it."""
    return any(file.exists() for file in _CRIU_FILES)


def find_restore(files: ProcFiles, stat: Stat, has_criu: Callable[[], bool] = criu_is_installed) -> str:
    """Return why a process was, or may have been, restored from a checkpoint; "" where nothing says so.

    `stat` is that of its first thread. Raises FileNotFoundError or ProcessLookupError where it has gone.
    """
    child = stat
    for parent in _ancestors(files, stat):
        if not child.flags & _NEVER_EXECUTED:
            return ""
        if parent is not None and _is_called(files, parent, {_CRIU}):
            return f"CRIU (pid {parent.pid}) has restored it from a checkpoint"
        if parent is None or not _same_program(files, child, parent):
            break
        child = parent
    else:
        return ""
    if _is_namespace_init(files, child.pid):
        return "its container was restored from a checkpoint: the first process in it has executed no program"
    if has_criu():
        return "CRIU may have restored it from a checkpoint: it has executed no program, and its parent runs another"
    return ""


def find_certain_restore(files: ProcFiles, stat: Stat) -> str:
    """Return as `find_restore`, and "" where it only may have been restored, with the way out."""
    found = find_restore(files, stat, lambda: False)
    return f"{found}: {RESTORED_WAY_OUT}" if found else ""


def find_checkpointing(files: ProcFiles, stat: Stat, pids: Callable[[], Iterable[int]] = list_pids) -> str:
    """Return which program checkpoints or restores a process at this moment; "" where none is seen to.

    That is CRIU or cuda-checkpoint with the pid of the process, or of one above it, among its arguments, or as the
    tracer of the process, and of a user who may do so. Raises FileNotFoundError or ProcessLookupError (it has gone).
    """
    status = files.read(stat.pid, "status")
    tracer = _TRACER.search(status)
    meant = {str(each.pid) for each in (stat, *_ancestors(files, stat)) if each is not None and each.pid > 1}
    for pid in pids():
        try:
            name = files.read(pid, "comm").removesuffix(b"\n").decode("ascii", "replace")
            if name not in _TOOLS:
                continue
            traces = tracer is not None and int(tracer[1]) == pid
            if not traces and not _may_checkpoint(files, pid, stat.pid, parse_status(status).uids):
                continue
            arguments = files.read(pid, "cmdline").decode("utf-8", "replace").replace("=", "\0").split("\0")
        except (OSError, ValueError):
            continue
        if traces or meant.intersection(arguments[1:]):
            return f"{name} (pid {pid}) checkpoints or restores it at this moment"
    return ""


def _may_checkpoint(files: ProcFiles, tool: int, pid: int, uids: Collection[int]) -> bool:
    """Return whether a program's user may checkpoint a process: root, its own user, or one whose ids it maps.

    Anybody may call a program so. Others may with a capability of the host, which they have from root. In a user
    namespace of its own a process may have other ids than who runs its container. Raises OSError for the program.
    """
    status = files.read(tool, "status")
    its = set(parse_status(status).uids)
    if _ROOT in its or not uids or not its.isdisjoint(uids):
        return True
    capable = _CAPABLE.search(status)
    if capable is not None and int(capable[1], 16) & _CHECKPOINTS and has_host_uids(files, tool):
        return True
    if has_host_uids(files, pid):
        return False
    try:
        lines = [list(map(int, line.split())) for line in files.read(pid, "uid_map").splitlines()]
    except (OSError, ValueError):
        return True
    return any(uid in range(first, first + count) for uid in its for _, first, count in lines)


def _ancestors(files: ProcFiles, stat: Stat) -> Iterator[Stat | None]:
    """Yield those above a process, the nearest first; None at last, where there is no parent or it cannot be read."""
    for _ in range(_DEEPEST):
        if stat.parent_pid <= 0:
            break
        try:
            stat = parse_stat(files.read(stat.parent_pid, "stat"))
        except (OSError, ValueError):
            break
        yield stat
    yield None


def _same_program(files: ProcFiles, one: Stat, other: Stat) -> bool:
    """Return whether both run one program: by the file, or by the size of its code where links may not be read."""
    programs = _program(files, one.pid), _program(files, other.pid)
    if all(programs):
        return programs[0] == programs[1]
    sizes = _text_size(files, one.pid), _text_size(files, other.pid)
    return bool(sizes[0]) and sizes[0] == sizes[1]


def _program(files: ProcFiles, pid: int) -> str:
    try:
        return files.link(pid, "exe").removesuffix(" (deleted)")
    except OSError:
        return ""


def _text_size(files: ProcFiles, pid: int) -> bytes:
    try:
        found = _TEXT_SIZE.search(files.read(pid, "status"))
    except OSError:
        return b""
    return found[1] if found is not None else b""


def _is_called(files: ProcFiles, stat: Stat, names: set[str]) -> bool:
    return bool(names & {stat.name.decode("utf-8", "replace"), Path(_program(files, stat.pid)).name})


def _is_namespace_init(files: ProcFiles, pid: int) -> bool:
    numbers = parse_status(files.read(pid, "status")).namespace_pids
    return len(numbers) > 1 and numbers[-1] == 1
