"""Real child processes, brought to a state that a test needs without waiting by the clock."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

ZOMBIE_LEADER = """
import ctypes, platform, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
print("ready", flush=True)
input()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)
"""
"""Ends its main thread alone: the process lives on in another one."""


V1 = Path("/sys/fs/cgroup/systemd")
UNIT = f"gpuagent-test-{os.getpid()}.service"


@contextmanager
def in_unit(program: str = ZOMBIE_LEADER) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process in a unit's cgroup of version 1, by default one that can end its first thread alone.

    Skips where there is no such hierarchy.
    """
    if os.geteuid() != 0 or not (V1 / "cgroup.procs").exists():
        pytest.skip("needs root and a cgroup hierarchy of version 1 with systemd's name")
    slice_existed, unit = (V1 / "system.slice").is_dir(), V1 / "system.slice" / UNIT
    unit.mkdir(parents=True)
    try:
        enter = f"open({str(unit / 'cgroup.procs')!r}, 'w').write('0')\n"
        with child(*python(enter + program)) as process:
            answer(process)
            yield process
    finally:
        while (unit / "cgroup.procs").read_bytes():  # a process that it has started is ended by the kernel just now
            os.sched_yield()
        unit.rmdir()
        if not slice_existed:
            with suppress(OSError):  # others have made their units there meanwhile
                unit.parent.rmdir()


def end_first_thread(process: subprocess.Popen[bytes]) -> int:
    """Have a `ZOMBIE_LEADER` end its first thread, and return its pid once the kernel says so."""
    say(process, b"go\n")
    while b") Z " not in Path(f"/proc/{process.pid}/stat").read_bytes():
        os.sched_yield()
    return process.pid


@contextmanager
def child(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program with pipes for its input and output; it is ended and reaped afterwards."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def running(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program that copies its input, such as `cat`, and wait until it does.

    A new process has its parent's name and no arguments for a moment: `Popen` returns within exec.
    """
    with child(*command) as process:
        say(process, b"ready\n")
        assert answer(process) == b"ready\n"
        yield process


def python(program: str) -> list[str]:
    """A command that runs a Python program."""
    return [sys.executable, "-c", program]


def answer(process: subprocess.Popen[bytes]) -> bytes:
    """Next line of the child's output: it says that the child has come so far."""
    assert process.stdout is not None
    return process.stdout.readline()


def say(process: subprocess.Popen[bytes], line: bytes) -> None:
    """Write a line to the child's input."""
    assert process.stdin is not None
    process.stdin.write(line)
    process.stdin.flush()


def end_without_reaping(process: subprocess.Popen[bytes]) -> None:
    """Make a zombie: the child ends, and its parent does not ask how."""
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
