"""Render the text of /proc for processes that do not exist, when asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Protocol

from gpuagent_simulator.functions import ScenarioClock
from gpuagent_simulator.process import Process

FIRST_NEWCOMER_PID = 2**30
"""Pids of the entries by which a growing process list grows."""
HOST_PID_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO (include/linux/proc_ns.h): the namespace that all made-up processes live in."""

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_OF_THE_HOST = frozenset({"uid_map", "mountinfo"})
"""Made-up processes run on the host itself: what these files say of its init holds for them."""
_COMM_BYTES = 15  # TASK_COMM_LEN without its end (include/linux/sched.h)
_STATES = {
    "R": "R (running)",
    "S": "S (sleeping)",
    "D": "D (disk sleep)",
    "Z": "Z (zombie)",
    "T": "T (stopped)",
    "t": "t (tracing stop)",
    "I": "I (idle)",
}


class FallbackProc(Protocol):
    """What reads the real /proc, for every pid that is not made up."""

    def read(self, pid: int, name: str) -> bytes: ...

    def link(self, pid: int, name: str) -> str: ...

    def owner(self, pid: int) -> int: ...

    def exists(self, pid: int) -> bool: ...

    def threads(self, pid: int) -> list[int]: ...


class SimulatedProc:
    """/proc with the story's processes in it; everything else comes from `fallback`.

    `boot_time_seconds` is unix time: start times are ticks since then, as in /proc/<pid>/stat.
    """

    def __init__(
        self, processes: Iterable[Process], story: ScenarioClock, fallback: FallbackProc | None = None
    ) -> None:
        self._story = story
        self._fallback = fallback
        self._by_pid: dict[int, Process] = {}
        for process in processes:
            if not process.spec.bind:
                self._by_pid.setdefault(process.pid, process)
        self._users = {process.uid: process.user for process in self._by_pid.values()}
        self.boot_time_seconds = story.clock.wall() - story.clock.now()

    def read(self, pid: int, name: str) -> bytes:
        """Return a file of /proc/<pid>.

        Raises:
            FileNotFoundError: no such process, or no such file.
        """
        if not self._owns(pid):
            return self._real(pid).read(pid, name)
        process = self._living(pid)
        if name in _OF_THE_HOST:
            return self._real(1).read(1, name)
        renderers: dict[str, Callable[[Process], bytes]] = {
            "stat": self._stat,
            "status": self._status,
            "statm": self._statm,
            "comm": _comm,
            "cmdline": _cmdline,
            "cgroup": _cgroup,
        }
        if name not in renderers:
            raise FileNotFoundError(2, "No such file", f"/proc/{pid}/{name}")
        return renderers[name](process)

    def link(self, pid: int, name: str) -> str:
        """Return a symbolic link of /proc/<pid>: `ns/pid` and `exe`.

        Raises:
            FileNotFoundError: no such process, or no such link.
        """
        if not self._owns(pid):
            return self._real(pid).link(pid, name)
        process = self._living(pid)
        if name == "ns/pid":
            return HOST_PID_NAMESPACE
        if name == "exe":
            return os.fsdecode(process.command[0])
        raise FileNotFoundError(2, "No such link", f"/proc/{pid}/{name}")

    def owner(self, pid: int) -> int:
        """Return the uid that a process runs as.

        Raises:
            FileNotFoundError: no such process.
        """
        if not self._owns(pid):
            return self._real(pid).owner(pid)
        return self._living(pid).uid

    def exists(self, pid: int) -> bool:
        """Return True while /proc has a folder for it."""
        if not self._owns(pid):
            return self._fallback is not None and self._fallback.exists(pid)
        try:
            self._living(pid)
        except FileNotFoundError:
            return False
        return True

    def threads(self, pid: int) -> list[int]:
        """Return the numbers of its threads: a process of the story has one.

        Raises:
            FileNotFoundError: no such process.
        """
        if not self._owns(pid):
            return self._real(pid).threads(pid)
        return [self._living(pid).pid]

    def user_name(self, uid: int) -> str | None:
        """Return the name of a made-up user; None for others."""
        return self._users.get(uid)

    # ---- whose pid it is -------------------------------------------------------------------------

    def _owns(self, pid: int) -> bool:
        return pid in self._by_pid or pid >= FIRST_NEWCOMER_PID

    def _real(self, pid: int) -> FallbackProc:
        if self._fallback is None:
            raise FileNotFoundError(2, "No such process", f"/proc/{pid}")
        return self._fallback

    def _living(self, pid: int) -> Process:
        process = self._by_pid.get(pid)
        if process is None or not process.lives(self._story.now()):
            raise FileNotFoundError(2, "No such process", f"/proc/{pid}")
        return process

    # ---- the files -------------------------------------------------------------------------------

    def _start_ticks(self, process: Process) -> int:
        """Return the clock ticks since boot; a process cannot be older than the machine."""
        started = self._story.start + process.begins - process.spec.age
        return max(1, round(started * _TICKS))

    def _pages(self, process: Process) -> int:
        return process.resident_bytes(self._story.now()) // _PAGE_BYTES

    def _stat(self, process: Process) -> bytes:
        """Return 52 fields (proc(5)); the 22nd is the start, the 24th the resident pages.

        Stack and arguments (28, 48, 49) lie at one address for ever, which says that there was no exec. The rest
        says nothing.
        """
        pages = self._pages(process)
        before = "0 " * 17
        after = "0 0 0 4096 " + "0 " * 19 + "8192 8448 0 0 "
        head = b"%d (%b) " % (process.pid, process.name[:_COMM_BYTES])
        text = (
            f"{process.spec.state} 1 {before}{self._start_ticks(process)} {pages * 2 * _PAGE_BYTES} {pages} {after}0\n"
        )
        return head + text.encode()

    def _status(self, process: Process) -> bytes:
        uids = "\t".join([str(process.uid)] * 4)
        text = (
            f"Umask:\t0022\nState:\t{_STATES[process.spec.state]}\nTgid:\t{process.pid}\nNgid:\t0\n"
            f"Pid:\t{process.pid}\nPPid:\t1\nTracerPid:\t0\nUid:\t{uids}\nGid:\t{uids}\n"
            f"NStgid:\t{process.pid}\nNSpid:\t{process.pid}\n"
            f"VmRSS:\t{process.resident_bytes(self._story.now()) // 1024:8d} kB\nThreads:\t1\n"
        )
        return b"Name:\t" + process.name[:_COMM_BYTES] + b"\n" + text.encode()

    def _statm(self, process: Process) -> bytes:
        pages = self._pages(process)
        return f"{pages * 2} {pages} 0 0 0 {pages} 0\n".encode()


def _comm(process: Process) -> bytes:
    return process.name[:_COMM_BYTES] + b"\n"


def _cmdline(process: Process) -> bytes:
    """Empty for a zombie: its memory is gone."""
    if process.spec.state == "Z":
        return b""
    return b"".join(word + b"\0" for word in process.command)


def _cgroup(process: Process) -> bytes:
    """Return the path as one of cgroup v2.

    What already looks like the file (`4:memory:/docker/...`) is taken as it is.
    """
    text = process.cgroup
    if text.startswith("/"):
        text = f"0::{text}"
    return text.strip().encode() + b"\n"
