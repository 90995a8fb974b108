"""Real processes that depend on others: terminals served, jobs stopped, children traced, work of other users begun."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from gpuagent.procfs.files import RealProc
from gpuagent_alerts.remedies.facts.ties import read_ties
from tests.alerts.remedies.processes import reader

ALICE, BOB = 4001, 4002
BY_DEVPTS = "open_pty"
_PATIENCE_SECONDS = 30.0

_TOOLS = f"""
import ctypes, fcntl, os, platform, pty, signal, sys, termios, threading

LIBC = ctypes.CDLL(None, use_errno=True)

def become(uid):
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)

def started(work):
    '''A child that has said that it is ready.'''
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        os.close(told)
        work()
        os.write(tell, b'.')
        os.close(tell)
        live()
    os.close(tell)
    assert os.read(told, 1), 'it was not ready'
    os.close(told)
    return child

def at_terminal(master, slave, uid):
    '''Lead a session on a terminal.'''
    def work():
        os.close(master)
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        become(uid)
    return work

def open_pty():
    '''By the node of devpts itself: the kernel then tells which devpts it is.'''
    master = os.open('/dev/pts/ptmx', os.O_RDWR | os.O_NOCTTY)
    fcntl.ioctl(master, 0x40045431, b'\\0' * 4)  # TIOCSPTLCK
    number = int.from_bytes(fcntl.ioctl(master, 0x80045430, b'\\0' * 4), 'little')  # TIOCGPTN
    return master, os.open('/dev/pts/%d' % number, os.O_RDWR | os.O_NOCTTY)

def live():
    '''Until the test lets go.'''
    try:
        os.read(0, 1)
    finally:
        os._exit(0)

def ready(*pids):
    print('ready', *pids, flush=True)
    live()

ALICE, BOB = {ALICE}, {BOB}
"""


class Told(NamedTuple):
    """A process, and the pids that it has told."""

    pid: int
    others: Sequence[int]


@contextmanager
def running(code: str, *before: str) -> Iterator[Told]:
    """Run a program with these tools, in a session of its own. It and all that it starts end with the test."""
    process = subprocess.Popen(
        [*before, sys.executable, "-c", _TOOLS + code],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    held: list[int] = []
    try:
        word, *numbers = process.stdout.readline().split()
        assert word == "ready"
        others = [int(each) for each in numbers]
        held = [os.pidfd_open(each) for each in others]
        yield Told(process.pid, others)
    finally:
        process.stdin.close()
        for descriptor in held:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            os.close(descriptor)
        process.kill()
        process.wait()
        process.stdout.close()


SERVES_A_TERMINAL = """
master, slave = {open}()
ours = started(at_terminal(master, slave, {uid}))
os.close(slave)
become(ALICE)
ready(ours)
"""
"""As tmux, sshd, script and a notebook server do."""
STOPS_A_JOB = """
def work():
    os.setpgid(0, 0)
    become({uid})
job = started(work)
os.kill(job, signal.SIGSTOP)
os.waitpid(job, os.WUNTRACED)
become(ALICE)
ready(job)
"""
"""It leads a session without a terminal, and could alone continue what it has stopped."""
TRACES = """
other = started(lambda: become({uid}))
def attach():
    assert LIBC.ptrace(0x4206, other, 0, 0x100000) == 0  # PTRACE_SEIZE, PTRACE_O_EXITKILL
{how}
become(ALICE)
ready(other)
"""
BY_ITSELF = "attach()"
BY_A_THREAD = """
traced = threading.Event()
threading.Thread(target=lambda: (attach(), traced.set(), live()), daemon=True).start()
traced.wait()
"""
BEGINS_WORK = """
other = started(lambda: become({uid}))
become(ALICE)
ready(other)
"""
LENDS_A_THREAD = """
changed = threading.Event()
number = {'x86_64': 117, 'aarch64': 147}[platform.machine()]  # setresuid; the C library changes the ids of all threads
def serve():
    assert LIBC.syscall(number, BOB, BOB, BOB) == 0
    changed.set()
    live()
def work():
    threading.Thread(target=serve, daemon=True).start()
    changed.wait()
    assert LIBC.syscall(number, ALICE, ALICE, ALICE) == 0
other = started(work)
become(ALICE)
ready(other)
"""
"""A child of its own user by the first thread, of which another thread is somebody else's, as in file servers."""


def told(*pids: int) -> list[tuple[int, bool, str]]:
    """Whom the end of these reaches: pid, whether it is their own work, and why."""
    ties = read_ties(RealProc(), reader(), pids)
    assert ties.unseen == ""
    return [(each.pid, each.belongs, each.why) for each in ties.processes]


def ends(pid: int) -> bool:
    """Wait for the end of a process; return whether it came."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], _PATIENCE_SECONDS)[0])
    finally:
        os.close(descriptor)
