"""What others lose with a process without being named: devices that it serves, and the console that it leads."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from gpuagent.procfs.files import RealProc
from gpuagent_alerts.remedies.facts.open_terminals import Device
from gpuagent_alerts.remedies.facts.process_scan import ProcessScan, UnseenProcesses
from gpuagent_alerts.remedies.facts.served_devices import ServedDevices, against_end, fuse_connections
from gpuagent_alerts.remedies.facts.terminals import OpenFiles, PtyMasters
from gpuagent_alerts.remedies.facts.ties import TieFinder
from tests.alerts.remedies.tied import running
from tests.fakes.proc import FakeProc, stat_text

CONSOLE, PTY = 4 << 8 | 20, 136 << 8 | 3


NODES = {
    "/dev/fuse": Device(10, 229, "0:6"),
    "/srv/jail/dev/fuse": Device(10, 229, "0:6"),
    "/home/alice/zz": Device(10, 203, "0:50"),  # a bind mount of the node
    "/dev/cuse": Device(10, 203, "0:6"),
    "/dev/watchdog": Device(10, 130, "0:6"),
    "/dev/net/tun": Device(10, 200, "0:6"),
    "/dev/nbd0": Device(43, 0, "0:6", is_block=True),
    "/dev/nvidia0": Device(195, 0, "0:6"),
    "/dev/null": Device(1, 3, "0:6"),
    "/dev/tty43": Device(43, 0, "0:6"),
}
"""What is open by which name; anything else is no device."""


class Descriptors(OpenFiles):
    """The same links for everybody, or none that may be seen."""

    def __init__(self, *links: str, hidden: bool = False, mounts: str = "", info: str = "") -> None:
        super().__init__()
        self.told = info
        self.mounted = mounts
        self.links = links
        self.hidden = hidden

    def list(self, pid: int, folder: str) -> list[int]:
        if self.hidden:
            raise PermissionError
        return list(range(len(self.links)))

    def path(self, pid: int, folder: str, descriptor: int) -> str:
        return self.links[descriptor]

    def device(self, pid: int, folder: str, descriptor: int) -> Device | None:
        return NODES.get(self.links[descriptor].removesuffix(" (deleted)"))

    def info(self, pid: int, folder: str, descriptor: int) -> bytes:
        return self.told.encode()

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


def finder(*links: str, terminal: int = 0, session: int = 1, hidden: bool = False) -> TieFinder:
    """Of pid 10, which has these descriptors and this terminal, and whose parent is pid 9."""
    proc = node(terminal, session)
    return TieFinder(proc, pids=lambda: [1, 9, 10], open_files=Descriptors(*links, hidden=hidden))


@pytest.mark.parametrize(
    ("path", "withheld"),
    [
        ("anon_inode:seccomp notify", True),
        ("anon_inode:[userfaultfd]", True),
        ("anon_inode:[eventfd]", False),
        ("/dev/cuse", True),
        ("/dev/watchdog", True),
        ("/dev/net/tun", True),
        ("/home/alice/zz", True),
        ("/dev/tty43", False),
        ("/dev/nbd0", True),
        ("/dev/cuse (deleted)", True),
        ("/dev/nvidia0", False),
        ("/dev/nvidia-uvm", False),
        ("/dev/null", False),
        ("/home/alice/dev/fuse", False),
        ("/home/alice/anon_inode:[userfaultfd]", False),
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


DEVICES = "Character devices:\n 10 misc\n243 ublk-char\n249 watchdog\n\nBlock devices:\n244 uio\n"
MISC = " 57 ublk-control\n235 autofs\n229 fuse\n"


@pytest.mark.parametrize(
    ("device", "name"),
    [
        (Device(249, 0, ""), "watchdog"),
        (Device(243, 3, ""), "ublk-char"),
        (Device(10, 57, ""), "ublk-control"),
        (Device(10, 229, ""), "fuse"),
        (Device(10, 235, ""), ""),
        (Device(244, 0, ""), ""),
        (Device(243, 3, "", is_block=True), ""),
    ],
)
def test_numbers_that_a_boot_gives_out(tmp_path: Path, device: Device, name: str) -> None:
    """The kernel says which driver has a number; those of block devices are others."""
    (tmp_path / "devices").write_text(DEVICES)
    (tmp_path / "misc").write_text(MISC)
    assert ServedDevices(str(tmp_path)).name(device) == name


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


FUSE = "40 30 0:{number} / /mnt rw,nosuid - {kind} server rw,user_id={owner},group_id=0{more}\n"
OWN = FUSE.format(number=50, kind="fuse", owner=0, more="")  # of an AppImage
SHARED = FUSE.format(number=51, kind="fuse.sshfs", owner=0, more=",allow_other")


@pytest.mark.parametrize(
    ("told", "mounts", "owners", "withheld"),
    [
        (50, OWN, {}, False),
        (50, OWN, {50: 0}, False),
        (50, OWN + SHARED, {50: 0, 51: 0}, False),
        (51, OWN + SHARED, {50: 0, 51: 0}, True),
        (50, OWN, {50: 1001}, True),  # its mount says another user than the kernel
        (50, FUSE.format(number=50, kind="fuse", owner=1001, more=""), {}, True),  # given up the rights of root
        (50, FUSE.format(number=50, kind="fuse", owner=1001, more=""), {50: 0}, False),  # by a user namespace
        (50, FUSE.format(number=50, kind="ext4", owner=0, more=""), {}, True),
        (50, "", {50: 0}, True),  # taken away while it is used
        (50, OWN + FUSE.format(number=50, kind="fuse", owner=0, more=",allow_other"), {}, True),
        (None, OWN, {50: 0}, False),
        (None, OWN, {}, True),  # perhaps there are further ones
        (None, OWN, {50: 0, 51: 0}, True),  # one that is not seen
        (None, OWN + SHARED, {50: 0, 51: 0}, True),
        (None, "", {}, True),
    ],
)
def test_a_file_system_in_user_space(told: int | None, mounts: str, owners: dict[int, int], *, withheld: bool) -> None:
    """KILL-03: it withholds, but where its mount is seen to be for its own user alone."""
    proc = node()
    info = "" if told is None else f"fuse_connection:\t{told}\n"
    for path in ("/dev/fuse", "/srv/jail/dev/fuse"):
        masters = PtyMasters(proc, Descriptors(path, mounts=mounts, info=info))
        why = against_end(ProcessScan(proc, lambda: [1, 9, 10]), masters, {10}, lambda: owners)
        assert bool(why) is withheld
        assert f"pid 10 has {path} " in (why or f"pid 10 has {path} ")


def test_whose_a_connection_is(tmp_path: Path) -> None:
    """The kernel's list says whose each file system is; without one, nothing is known."""
    (tmp_path / "50").mkdir()
    assert fuse_connections(str(tmp_path)) == {50: os.geteuid()}
    assert fuse_connections(str(tmp_path / "none")) == {}


SERVES = """
server = os.open('/dev/fuse', os.O_RDWR)
LIBC.unshare(0x20000)  # CLONE_NEWNS
LIBC.mount(b'none', b'/', None, 0x44000, None)  # MS_REC | MS_PRIVATE
options = b'fd=%d,rootmode=40000,user_id={owner},group_id=0{more}' % server
mounted = LIBC.mount(b'test', b'/mnt', b'fuse', 0, options) == 0
{then}
ready(*((os.getpid(),) if mounted else ()))
"""
BY_ANOTHER_NAME = """
LIBC.mount(b'/dev/fuse', b'/etc/passwd', None, 0x1000, None)  # MS_BIND
other = os.open('/etc/passwd', os.O_RDWR)
fcntl.ioctl(other, 0x8004e500, server.to_bytes(4, 'little'))  # FUSE_DEV_IOC_CLONE
os.close(server)
"""
IN_FLIGHT = """
import socket
ours, theirs = socket.socketpair()
socket.send_fds(ours, [b'.'], [server])
os.close(server)
"""
TAKEN_AWAY = "held = os.open('/mnt', os.O_PATH); LIBC.umount2(b'/mnt', 2)  # MNT_DETACH"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
@pytest.mark.parametrize(
    ("owner", "more", "then", "withheld"),
    [
        (0, ",allow_other", "", "has /dev/fuse open"),
        (0, "", "", ""),
        (1001, "", "", "has /dev/fuse open"),
        (0, "", TAKEN_AWAY, "has /dev/fuse open"),
        (0, ",allow_other", TAKEN_AWAY, "has /dev/fuse open"),
        (0, ",allow_other", BY_ANOTHER_NAME, r"has /etc/passwd \(/dev/fuse\) open"),
        (0, ",allow_other", IN_FLIGHT, "may have /dev/fuse open where it is in no list"),
    ],
)
def test_a_real_file_system_in_user_space(owner: int, more: str, then: str, withheld: str) -> None:
    """KILL-03: who serves a mount: for itself, for others, of one that was taken away, by another name, or unseen."""
    if not Path("/dev/fuse").exists():
        pytest.skip("this machine has no /dev/fuse")
    with running(SERVES.format(owner=owner, more=more, then=then)) as server:
        if not server.others:
            pytest.skip("this machine does not let root mount a file system in user space")
        if not withheld:
            told = any(b"fuse_connection" in each.read_bytes() for each in Path(f"/proc/{server.pid}/fdinfo").iterdir())
            if not told:
                pytest.skip("this kernel does not tell which mount it serves")
            assert not TieFinder(RealProc()).find([server.pid])
            return
        with pytest.raises(UnseenProcesses, match=f"pid {server.pid} {withheld}"):
            TieFinder(RealProc()).find([server.pid])
