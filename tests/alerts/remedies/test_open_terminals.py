"""Terminals by the device of an open file, and a look at open files that takes too long."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import count

import pytest

from gpuagent.procfs.files import RealProc
from gpuagent_alerts.remedies.facts.open_terminals import ANY, Device, LookTime, Slave, read_device, slave_of
from gpuagent_alerts.remedies.facts.process_scan import ProcessRow, UnseenProcesses
from gpuagent_alerts.remedies.facts.terminals import other_tables


def row(pid: int, uid: int) -> ProcessRow:
    """A process of this user."""
    return ProcessRow(pid, f"work{pid}", "S", 1, pid, pid, 0, -1, 1, frozenset({uid}), 0, (pid,))


def hidden() -> int:
    """What /dev/tty stands for is not told."""
    raise OSError


@pytest.mark.parametrize(
    ("device", "slave"),
    [
        (Device(136, 3, "0:24"), Slave(3, "0:24")),
        (Device(137, 1, "0:24"), Slave(2**20 + 1, "0:24")),
        (Device(5, 0, "0:6"), Slave(ANY, "")),
        (Device(5, 2, "0:6"), None),
        (Device(1, 3, "0:6"), None),
    ],
)
def test_which_terminal(device: Device, slave: Slave | None) -> None:
    """The device number tells the terminal; /dev/tty may be any where the kernel does not tell."""
    assert slave_of(device, hidden) == slave


@pytest.mark.parametrize(("device", "slave"), [(136 << 8 | 7, Slave(7, "")), (4 << 8 | 1, None)])
def test_what_dev_tty_stands_for(device: int, slave: Slave | None) -> None:
    """A file that was opened as /dev/tty is the terminal that it was opened for; a console is no pseudo-terminal."""
    assert slave_of(Device(5, 0, "0:6"), lambda: device) == slave


def test_a_device() -> None:
    """Of a character device the numbers are read; another file is none."""
    number = os.stat("/dev/null").st_rdev  # noqa: PTH116  the number is the fact
    found = read_device("/dev/null")
    assert found is not None
    assert found[:2] == (os.major(number), os.minor(number))
    assert read_device("/proc/self/stat") is None


def test_a_flood_of_open_files() -> None:
    """Where all open files take too long to look at, the refusal names the user who has them, and the pid."""
    seconds = count(step=2)
    flood = LookTime(lambda _: "900000 open files", lambda: float(next(seconds)))
    with pytest.raises(UnseenProcesses, match=r"of uid 7: pid 12 \(work12\) alone has 900000 open files"):
        list(flood.rows([row(12, 7), row(13, 7), row(14, 8)]))
    assert [each.pid for each in LookTime(lambda _: "", lambda: 0.0).rows([row(12, 7)])] == [12]


def test_a_process_that_takes_all_the_time() -> None:
    """The clock counts within a process too, and over all loops of one look; between looks nothing is raised."""
    now = [0.0]
    look = LookTime(lambda pid: f"{pid} threads", lambda: now[0])
    with look.one_look():
        for each in look.rows([row(12, 7), row(13, 8)]):
            now[0] += 0.1 if each.pid == 12 else 4.5
        now[0] += 60.0  # systemd answers late: that is nobody's files
        for _ in look.rows([row(12, 7)]):
            now[0] += 1.0
            with pytest.raises(UnseenProcesses, match=r"of uid 8: pid 13 \(work13\) alone has 13 threads"):
                look.check()
            now[0] = 0.0
    look.check()
    assert [each.pid for each in look.rows([row(12, 7)])] == [12]


def test_threads_with_files_of_their_own() -> None:
    """Each table of descriptors is found once, by the kernel's order, and not that of threads that share one."""
    program = """
import ctypes, threading
libc = ctypes.CDLL(None)
started, go_on = threading.Barrier(41), threading.Event()
def work(own):
    if own:
        libc.unshare(0x400)  # CLONE_FILES
    started.wait()
    go_on.wait()
for number in range(40):
    threading.Thread(target=work, args=(number % 2,), daemon=True).start()
started.wait()
print('ready', flush=True)
input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        seen = []
        found = list(other_tables(RealProc(), process.pid, lambda: seen.append(1)))
        process.kill()
    assert len(found) == len(set(found)) == 20
    assert len(seen) == 41
