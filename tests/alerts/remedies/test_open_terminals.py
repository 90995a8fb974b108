"""Terminals by the device of an open file, and a look at open files that takes too long."""

from __future__ import annotations

import os
from itertools import count

import pytest

from gpuagent_alerts.remedies.facts.open_terminals import ANY, Device, Slave, read_device, slave_of, within_time
from gpuagent_alerts.remedies.facts.process_scan import ProcessRow, UnseenProcesses


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
    seconds = count(step=1)
    with pytest.raises(UnseenProcesses, match=r"of uid 7: pid 12 \(work12\) alone has 900000 open"):
        list(within_time([row(12, 7), row(13, 7), row(14, 8)], lambda _: 900000, lambda: float(next(seconds))))
    assert [each.pid for each in within_time([row(12, 7)], lambda _: 900000, lambda: 0.0)] == [12]
