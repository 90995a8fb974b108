"""Which terminals a process has open, by the device of each open file: what a file is called is up to those who mount.

A terminal may be open by a name of a bind mount (`/dev/console` of a container), in the table of one thread alone, or
as `/dev/tty`, which the kernel turns into the controlling terminal of that moment: a process keeps it when it leaves
the session. statx(2) is asked without a word to the file system (AT_STATX_DONT_SYNC), which may be one in user space
that never answers. What `/dev/tty` stands for is told by the terminal itself (TIOCGDEV) through a copy of the
descriptor (pidfd_getfd(2)); such a file is a device of the kernel's own.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import stat
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from gpuagent_alerts.remedies.facts.process_scan import ProcessRow, UnseenProcesses

ANY = -1
"""Number of a terminal that is not told which one it is."""
_SLAVE_MAJOR = 136
"""UNIX98_PTY_SLAVE_MAJOR, include/uapi/linux/major.h."""
_SLAVE_MAJORS = range(_SLAVE_MAJOR, _SLAVE_MAJOR + 8)
_DEV_TTY = (5, 0)
_AT_STATX_DONT_SYNC, _STATX_TYPE = 0x4000, 0x1
_PIDFD_GETFD = 438
"""The same on all architectures, as every call since Linux 5.1."""
_TIOCGDEV = 0x80045432
_LIBC = ctypes.CDLL(None, use_errno=True)
_MOST_SECONDS = 5.0
"""For the open files of all processes, within the few seconds that a look at them has."""


class Device(NamedTuple):
    """A device that is open."""

    major: int
    minor: int
    file_system: str
    """Device number of the file system that its node is in, as mountinfo has it."""
    is_block: bool = False
    """Whether it is a block device, whose numbers are others than those of the character devices."""


class Slave(NamedTuple):
    """A pseudo-terminal that is open."""

    number: int
    """N of `/dev/pts/N`; ANY where it is not told."""
    file_system: str
    """Device number of its devpts; "" where it is not told."""


def read_device(path: str) -> Device | None:
    """Return the device that a path leads to; None for another file. Raises OSError."""
    buffer = ctypes.create_string_buffer(256)
    if _LIBC.statx(-100, os.fsencode(path), _AT_STATX_DONT_SYNC, _STATX_TYPE, buffer):  # AT_FDCWD
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    (mode,) = struct.unpack_from("=H", buffer, 28)
    if not (stat.S_ISCHR(mode) or stat.S_ISBLK(mode)):
        return None
    major, minor, above, below = struct.unpack_from("=4I", buffer, 128)
    return Device(major, minor, f"{above}:{below}", stat.S_ISBLK(mode))


def copy_descriptor(pid: int, descriptor: int) -> int:
    """Return a descriptor of the agent's own for what another process has open (pidfd_getfd(2)). Raises OSError."""
    handle = os.pidfd_open(pid)
    try:
        copy = int(_LIBC.syscall(_PIDFD_GETFD, handle, descriptor, 0))
        if copy < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(handle)
    return copy


def terminal_of(pid: int, descriptor: int) -> int:
    """Return the device number of the terminal that a descriptor stands for. Raises OSError."""
    copy = copy_descriptor(pid, descriptor)
    try:
        return int.from_bytes(fcntl.ioctl(copy, _TIOCGDEV, b"\0" * 4), "little")
    finally:
        os.close(copy)


def slave_of(device: Device, controlling: Callable[[], int]) -> Slave | None:
    """Return the pseudo-terminal that a device is; None for another. `controlling` tells what /dev/tty stands for."""
    if device.is_block:
        return None
    if device.major in _SLAVE_MAJORS:
        return Slave((device.major - _SLAVE_MAJOR << 20) + device.minor, device.file_system)
    if (device.major, device.minor) != _DEV_TTY:
        return None
    try:
        number = controlling()
    except OSError:
        return Slave(ANY, "")
    is_slave = os.major(number) in _SLAVE_MAJORS
    return Slave((os.major(number) - _SLAVE_MAJOR << 20) + os.minor(number), "") if is_slave else None


class LookTime(threading.local):
    """The time that looks at the open files of processes take, in each thread by itself.

    Whoever looks at a row of `rows` calls `check` now and then: the files of a single process may take too long.
    """

    def __init__(self, size: Callable[[int], str], clock: Callable[[], float] = time.monotonic) -> None:
        """`size` returns how much of a process there is to look at, in words; it may raise OSError."""
        self._size = size
        self._clock = clock
        self._is_one = False
        self._row: ProcessRow | None = None
        self._row_begun = self._spent = 0.0
        self._of_user: dict[int, float] = {}
        self._slowest: dict[int, tuple[float, ProcessRow]] = {}

    @contextmanager
    def one_look(self) -> Iterator[None]:
        """Count what is looked at meanwhile as one look."""
        self._begin()
        self._is_one = True
        try:
            yield
        finally:
            self._is_one = False

    def _begin(self) -> None:
        self._spent, self._of_user, self._slowest = 0.0, defaultdict(float), {}

    def rows(self, rows: Iterable[ProcessRow]) -> Iterator[ProcessRow]:
        """Yield each process, and measure how long whoever asks takes to look at it.

        Raises UnseenProcesses where all take too long, with the user whose processes took most of it.
        """
        if not self._is_one:
            self._begin()
        try:
            for row in rows:
                self._row, self._row_begun = row, self._clock()
                yield row
                self.check()
                self._account(row)
        finally:
            self._row = None

    def check(self) -> None:
        """Raise UnseenProcesses where rows have taken too long, this one until now among them.

        What else a look waits for, such as systemd, is nobody's files.
        """
        if self._row is not None and self._spent + self._clock() - self._row_begun > _MOST_SECONDS:
            self._account(self._row)
            raise UnseenProcesses(self._reason())

    def _account(self, row: ProcessRow) -> None:
        uid, took = min(row.uids), self._clock() - self._row_begun
        self._spent += took
        self._of_user[uid] += took
        if uid not in self._slowest or took > self._slowest[uid][0]:
            self._slowest[uid] = took, row

    def _reason(self) -> str:
        uid = max(self._of_user, key=lambda each: self._of_user[each])
        one = self._slowest[uid][1]
        try:
            size = self._size(one.pid)
        except OSError:
            size = "very many open files"
        return (
            f"a look at the open files of all processes takes too long, most of it at those of uid {uid}: pid"
            f" {one.pid} ({one.name}) alone has {size}; that user's processes have to end first"
        )
