"""Runs a program so that nothing that it starts outlives it: run as a program itself, never imported by the agent.

`python -I -S subreaper.py AGENT_PID PROGRAM ARGUMENT...`. Whatever leaves its process group or session is adopted by
this process (PR_SET_CHILD_SUBREAPER) and ended with the rest: when the program has ended, on SIGTERM, and when the
agent has gone (PR_SET_PDEATHSIG). No cgroup and no systemd is needed.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

# linux/prctl.h
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

END_SECONDS = 5.0
"""Time that SIGKILL is given: a process that hangs in the kernel is left to it."""
_PAUSE_SECONDS = 0.02
CANNOT_CONTAIN = 126
_PARENT = b"PPid:"
_WATCHED = (signal.SIGCHLD, signal.SIGTERM)


def descendants(proc: str = "/proc", root: int | None = None) -> set[int]:
    """Return the pids of all processes below `root`, or this one, zombies among them.

    Nothing here reads `stat`: for that the kernel waits while a process is within execve(2), and a file system of its
    user may keep it there.
    """
    found: set[int] = set()
    waiting = [os.getpid() if root is None else root]
    read: Callable[[int], Sequence[int]]
    if Path(proc, str(waiting[0]), "task", str(waiting[0]), "children").exists():
        read = partial(_children, proc)
    else:
        read = _table(proc)
    while waiting:
        new = [pid for pid in read(waiting.pop()) if pid not in found]
        found.update(new)
        waiting += new
    return found


def _children(proc: str, pid: int) -> list[int]:
    """Return the children of all threads of a process. Of one whose children end meanwhile some may be missing."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"{proc}/{pid}/task"):  # noqa: PTH208  names are all it takes
            found += map(int, Path(proc, str(pid), "task", thread, "children").read_bytes().split())
    except OSError:  # it, or that thread, has ended: who is left has another parent by now
        pass
    return found


def _table(proc: str) -> Callable[[int], Sequence[int]]:
    """Read all processes, for a kernel without CONFIG_PROC_CHILDREN; return what tells the children of each."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir(proc):  # noqa: PTH208  as numbers, and in no order
        if entry.isdigit():
            try:
                status = Path(proc, entry, "status").read_bytes()
            except OSError:
                continue  # it has ended
            parents = [line[len(_PARENT) :] for line in status.split(b"\n") if line.startswith(_PARENT)]
            for parent in parents[:1]:
                children.setdefault(int(parent), []).append(int(entry))
    return lambda pid: children.get(pid, ())


def reap() -> dict[int, int]:
    """Collect the children that have ended; return their wait statuses by pid."""
    found: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        found[pid] = status


def end_all() -> None:
    """Send SIGKILL to all descendants until none is left: one may be born while another is killed."""
    deadline = time.monotonic() + END_SECONDS
    while (left := descendants()) and time.monotonic() < deadline:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        signal.sigtimedwait((signal.SIGCHLD,), _PAUSE_SECONDS)
        reap()


def main(agent_pid: int, command: list[str]) -> int:
    """Run it; return its exit status, or end by the signal that ended it."""
    libc = ctypes.CDLL(None, use_errno=True)
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)  # what is run empties its mask
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0 or libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM) != 0:
        print("what it starts cannot be contained", file=sys.stderr)  # noqa: T201
        return CANNOT_CONTAIN
    if os.getppid() != agent_pid:  # it ended before word of that was asked for
        return CANNOT_CONTAIN
    program = os.fork()
    if program == 0:
        os.setsid()  # a signal to its own process group is none to this process
        os.execv(command[0], command)  # noqa: S606
    os.close(0)
    os.open(os.devnull, os.O_RDONLY)
    status = None
    while status is None:
        if signal.sigwait(_WATCHED) == signal.SIGTERM:
            end_all()
            return CANNOT_CONTAIN
        status = reap().get(program)
    end_all()
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), -code)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
    return code


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
