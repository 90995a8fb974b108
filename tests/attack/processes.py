"""Real processes of made-up users: holders of GPU memory, innocents, and strangers that bear a number of before."""

from __future__ import annotations

import ctypes
import itertools
import os
import pwd
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NoReturn, Protocol

PATIENCE_SECONDS = 45.0
_CLONE3 = 435
"""The same on every architecture (include/uapi/asm-generic/unistd.h)."""
_SLEEP = "/bin/sleep"
_FOR_EVER = "1000000"


def made_up_uids(first: int = 6501) -> Iterator[int]:
    """Yield user ids that no account of this machine has."""
    for uid in itertools.count(first):
        try:
            pwd.getpwuid(uid)
        except KeyError:
            yield uid


class Starter(Protocol):
    """What started a process, and reaps it."""

    pid: int
    stdin: IO[bytes] | None
    stdout: IO[bytes] | None

    def kill(self) -> None: ...

    def wait(self) -> int: ...


class _CloneArguments(ctypes.Structure):
    """`struct clone_args` of clone(2), as of Linux 5.5."""

    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in ("flags", "pidfd", "child_tid", "parent_tid", "exit_signal", "stack", "stack_size", "tls",
                     "set_tid", "set_tid_size")
    )  # fmt: skip


class Cloned:
    """A child with a chosen number, as clone3(2) gives it to root.

    Writing ns_last_pid and forking does the same, and races with every other process that starts on this machine.
    """

    stdin: IO[bytes] | None = None
    stdout: IO[bytes] | None = None

    def __init__(self, pid: int, uid: int, words: Sequence[str]) -> None:
        wanted = (ctypes.c_int32 * 1)(pid)
        arguments = _CloneArguments(exit_signal=signal.SIGCHLD, set_tid=ctypes.addressof(wanted), set_tid_size=1)
        # Holding the interpreter's lock: the child has it too then, and no other thread.
        found = ctypes.PyDLL(None, use_errno=True).syscall(
            _CLONE3, ctypes.byref(arguments), ctypes.c_size_t(ctypes.sizeof(arguments))
        )
        if found == 0:
            _become_and_run(uid, words)
        if found < 0:
            raise OSError(ctypes.get_errno(), f"pid {pid} cannot be given to a process")
        self.pid = pid

    def kill(self) -> None:
        """End it, if it has not been reaped."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Reap it once."""
        if not self.pid:
            return 0
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return status


def _become_and_run(uid: int, words: Sequence[str]) -> NoReturn:
    """In the child: become the program, and never come back."""
    try:
        if uid:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        os.execv(words[0], list(words))
    finally:
        os._exit(127)


class Living:
    """A process with a pidfd: what becomes of its number is another matter."""

    def __init__(self, process: Starter, pid: int | None = None) -> None:
        """`pid` is that of the one that is meant, where `process` only started it."""
        self.starter = process
        self.pid = process.pid if pid is None else pid
        self._descriptor = os.pidfd_open(self.pid)

    @property
    def has_ended(self) -> bool:
        """Whether all of its threads have ended, be it reaped or not."""
        return self.ends_within(0)

    def ends_within(self, seconds: float = PATIENCE_SECONDS) -> bool:
        """Wait for its end; return whether it came."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def say(self) -> None:
        """Send it a line on its standard input."""
        assert self.starter.stdin is not None
        self.starter.stdin.write(b"\n")
        self.starter.stdin.flush()

    def end(self) -> None:
        """End it and reap it, so that its number is free."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
        assert self.ends_within()
        self.starter.kill()
        self.starter.wait()

    def close(self) -> None:
        """End it and let go of it."""
        self.end()
        for pipe in (self.starter.stdin, self.starter.stdout):
            if pipe is not None:
                pipe.close()
        os.close(self._descriptor)


class Crowd:
    """Starts processes and ends all of them at last."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._living: list[Living] = []

    def start(self, uid: int = 0, *, name: str = "sleep", cgroup: Path | None = None) -> Living:
        """Start a process that sleeps, of this user, with this name (`comm`), moved to a cgroup by root."""
        return self._add(subprocess.Popen([self._program(name), _FOR_EVER], **_identity(uid)), cgroup)

    def python(
        self,
        code: str,
        uid: int = 0,
        *,
        cgroup: Path | None = None,
        before: Sequence[str] = (),
        words: Sequence[str] = (),
    ) -> Living:
        """Start Python code that prints `ready` when it is; `before` are words of a program that starts it.

        It becomes the user itself: the interpreter and its modules may lie where no other user can read them.
        """
        process = subprocess.Popen(
            [*before, sys.executable, "-I", "-c", become(uid) + code, *words],
            stdout=subprocess.PIPE, stdin=subprocess.PIPE,
        )  # fmt: skip
        return self._ready(process, cgroup)

    def run(self, command: Sequence[str], uid: int = 0, *, environment: Mapping[str, str] | None = None) -> Living:
        """Start a program of this user that prints `ready` when it is."""
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, env=environment, **_identity(uid)
        )
        return self._ready(process, None)

    def worker(self, command: Sequence[str]) -> Living:
        """Start a program as root, and return the process that it starts and that prints its own pid."""
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE)
        self._add(process, None)
        assert process.stdout is not None
        living = Living(process, int(process.stdout.readline()))
        self._living.insert(0, living)  # it ends after its parent, as children do
        return living

    def child_of(self, parent: Living, cgroup: Path | None = None) -> Living:
        """Return the one child that a process has, moved to a cgroup."""
        (living,) = self.children_of(parent)
        if cgroup is not None:
            (cgroup / "cgroup.procs").write_text(str(living.pid), encoding="ascii")
        return living

    def children_of(self, parent: Living) -> list[Living]:
        """Return all children that a process has, the first one first."""
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text(encoding="ascii").split()
        found = [Living(parent.starter, int(child)) for child in children]
        self._living[:0] = found  # they end after their parent, which reaps them or leaves them to init
        return found

    def given(self, pid: int, uid: int = 0) -> Living:
        """Start a process that is given this number. It has to be free: whoever had it has been reaped."""
        return self._add(Cloned(pid, uid, [_SLEEP, _FOR_EVER]), None)

    def adopt(self, process: Starter) -> Living:
        """Take over a process that a test has started."""
        return self._add(process, None)

    def close(self) -> None:
        """End all."""
        while self._living:
            self._living.pop().close()

    def _ready(self, process: subprocess.Popen[bytes], cgroup: Path | None) -> Living:
        living = self._add(process, cgroup)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return living

    def _add(self, process: Starter, cgroup: Path | None) -> Living:
        living = Living(process)
        self._living.append(living)
        if cgroup is not None:
            (cgroup / "cgroup.procs").write_text(str(living.pid), encoding="ascii")
        return living

    def _program(self, name: str) -> str:
        """Return a path with this name: `comm` is the last part of what was executed."""
        if name == "sleep":
            return _SLEEP
        link = self._folder / name
        if not link.exists():
            link.symlink_to(_SLEEP)
        return str(link)


def become(uid: int) -> str:
    """Return Python code that loads what code of a test needs, and gives up root for an ordinary user."""
    load = "import ctypes, fcntl, json, os, pty, signal, socket, subprocess, sys, termios\n"
    drop = f"os.setgroups([]); os.setresgid({uid}, {uid}, {uid}); os.setresuid({uid}, {uid}, {uid})\n"
    return load + drop if uid else load


def _identity(uid: int) -> dict[str, Any]:
    return {"user": uid, "group": uid, "extra_groups": []} if uid else {}


def as_user(uid: int, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a program as an ordinary user."""
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS, user=uid,
                          group=uid, extra_groups=[])  # fmt: skip


def a_tick_later() -> None:
    """Wait until the kernel counts the next tick: start times are whole ticks (proc_pid_stat(5), field 22)."""
    ticks = os.sysconf("SC_CLK_TCK")
    now = int(time.clock_gettime(time.CLOCK_BOOTTIME) * ticks)
    while int(time.clock_gettime(time.CLOCK_BOOTTIME) * ticks) <= now:
        time.sleep(0.5 / ticks)
