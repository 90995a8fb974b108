"""What others lose with a process without being named: devices that it serves, and the console that it leads."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from gpuagent.procfs.files import RealProc
from gpuagent_alerts.remedies.facts.process_scan import ProcessScan, UnseenProcesses
from gpuagent_alerts.remedies.facts.served_devices import against_end
from gpuagent_alerts.remedies.facts.terminals import OpenFiles, PtyMasters
from gpuagent_alerts.remedies.facts.ties import TieFinder
from tests.alerts.remedies.tied import running
from tests.fakes.proc import FakeProc, stat_text

CONSOLE, PTY = 4 << 8 | 20, 136 << 8 | 3


class Descriptors(OpenFiles):
    """The same links for everybody, or none that may be seen."""

    def __init__(self, *links: str, hidden: bool = False, mounts: str = "") -> None:
        super().__init__()
        self.mounted = mounts
        self.links = links
        self.hidden = hidden

    def list(self, pid: int, folder: str) -> list[int]:
        if self.hidden:
            raise PermissionError
        return list(range(len(self.links)))

    def path(self, pid: int, folder: str, descriptor: int) -> str:
        return self.links[descriptor]

    def info(self, pid: int, folder: str, descriptor: int) -> bytes:
        return b""

    def mounts(self, pid: int, folder: str) -> bytes:
        return self.mounted.encode()


def node(terminal: int = 0, session: int = 1) -> FakeProc:
    """Pid 10, whose parent is pid 9, and the first process."""
    proc = FakeProc()
    status = b"Name:\tx\nUid:\t0\t0\t0\t0\nNSpid:\t%d\nTracerPid:\t0\n"
    for pid, parent in ((1, 0), (9, 1), (10, 9)):
        fields = stat_text(pid, parent_pid=parent, terminal=terminal if pid == 10 else 0).split()
        fields[5] = b"%d" % (session if pid == 10 else 1)
        proc.put(pid, b" ".join(fields) + b"\n", status=status % pid, cgroup=b"0::/\n", loginuid=b"0", sessionid=b"0")
    return proc


def finder(*links: str, terminal: int = 0, session: int = 1, hidden: bool = False, mounts: str = "") -> TieFinder:
    """Of pid 10, which has these descriptors and this terminal, and whose parent is pid 9."""
    proc = node(terminal, session)
    return TieFinder(proc, pids=lambda: [1, 9, 10], open_files=Descriptors(*links, hidden=hidden, mounts=mounts))


@pytest.mark.parametrize(
    ("path", "withheld"),
    [
        ("anon_inode:seccomp notify", True),
        ("anon_inode:[userfaultfd]", True),
        ("anon_inode:[eventfd]", False),
        ("/dev/cuse", True),
        ("/dev/watchdog", True),
        ("/dev/watchdog0", True),
        ("/dev/net/tun", True),
        ("/dev/ublkc3", True),
        ("/dev/nbd0", True),
        ("/dev/cuse (deleted)", True),
        ("/dev/nvidia0", False),
        ("/dev/nvidia-uvm", False),
        ("/dev/null", False),
        ("/home/alice/dev/fuse", False),
        ("socket:[1]", False),
    ],
)
def test_a_device_that_others_use(path: str, *, withheld: bool) -> None:
    """KILL-03: whoever uses what it serves cannot be named; where its files cannot be seen, nothing is known of it."""
    assert not finder(path, hidden=True).find([10])
    if not withheld:
        assert not finder("/dev/null", path).find([10])
        return
    with pytest.raises(UnseenProcesses, match=f"has {re.escape(path)}"):
        finder("/dev/null", path).find([10])


class FirstIsGone(Descriptors):
    """The open files of pid 9, which is looked at first, have gone."""

    def list(self, pid: int, folder: str) -> list[int]:
        if pid == 9:
            raise ProcessLookupError
        return super().list(pid, folder)


def test_who_ends_meanwhile_hides_nobody() -> None:
    """KILL-03: one of the family that ends during the look leaves the others to be looked at."""
    proc = node()
    masters = PtyMasters(proc, FirstIsGone("/dev/cuse"))
    assert "pid 10 has /dev/cuse" in against_end(ProcessScan(proc, lambda: [1, 9, 10]), masters, {9, 10})


@pytest.mark.parametrize(
    ("terminal", "session", "withheld"),
    [(CONSOLE, 10, True), (CONSOLE, 1, False), (PTY, 10, False), (0, 10, False)],
)
def test_the_leader_at_a_console(terminal: int, session: int, *, withheld: bool) -> None:
    """KILL-03: the kernel hangs a console up for everybody when the leader of its session ends."""
    found = finder(terminal=terminal, session=session)
    if not withheld:
        assert not found.find([10])
        return
    for pid in (9, 10):  # a child may end with its parent
        with pytest.raises(UnseenProcesses, match="pid 10 leads the session on terminal 4:20"):
            found.find([pid])


FUSE = "40 30 0:50 / /mnt rw,nosuid - {kind} server rw,user_id={owner},group_id=0{more}"


@pytest.mark.parametrize(
    ("mounts", "withheld"),
    [
        (FUSE.format(kind="fuse.sshfs", owner=0, more=",allow_other"), True),
        (FUSE.format(kind="fuseblk", owner=0, more=",default_permissions,allow_other"), True),
        (FUSE.format(kind="fuse", owner=0, more=""), False),  # of an AppImage
        (FUSE.format(kind="fuse", owner=1001, more=",allow_other"), False),  # another user's
        (FUSE.format(kind="ext4", owner=0, more=",allow_other"), False),
        ("", False),
    ],
)
def test_a_file_system_in_user_space(mounts: str, *, withheld: bool) -> None:
    """KILL-03: what others may use withholds; a mount for its own user alone is its own work."""
    found = finder("/dev/fuse", mounts=mounts)
    if not withheld:
        assert not found.find([10])
        return
    with pytest.raises(UnseenProcesses, match="pid 10 has /dev/fuse open"):
        found.find([10])


SERVES = """
server = os.open('/dev/fuse', os.O_RDWR)
LIBC.unshare(0x20000)  # CLONE_NEWNS
LIBC.mount(b'none', b'/', None, 0x44000, None)  # MS_REC | MS_PRIVATE
options = b'fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other' % server
ready(*(() if LIBC.mount(b'test', b'/mnt', b'fuse', 0, options) else (os.getpid(),)))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_real_file_system_in_user_space() -> None:
    """A process that serves a mount which others may use."""
    if not Path("/dev/fuse").exists():
        pytest.skip("this machine has no /dev/fuse")
    with running(SERVES) as server:
        if not server.others:
            pytest.skip("this machine does not let root mount a file system in user space")
        with pytest.raises(UnseenProcesses, match=f"pid {server.pid} has /dev/fuse open"):
            TieFinder(RealProc()).find([server.pid])
