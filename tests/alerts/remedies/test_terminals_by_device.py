"""Who works on a terminal that no name tells, and whose word counts for its other side: with real terminals."""

from __future__ import annotations

import os

import pytest

from gpuagent.procfs.files import RealProc
from gpuagent_alerts.remedies.facts.terminals import pty_number
from tests.alerts.remedies.tied import BOB, BY_DEVPTS, SERVES_A_TERMINAL, running, told

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be two users")
KEEPS_DEV_TTY = """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    os.dup2(os.open('/dev/tty', os.O_RDWR), 0)
    os.close(slave)
    if os.fork():
        os._exit(0)
    os.setsid()
"""
ON_A_BIND_MOUNT = """
    assert LIBC.unshare(0x00020000) == 0  # CLONE_NEWNS
    assert os.system('mount --make-rprivate / && mount --bind %s /dev/full' % os.ttyname(slave)) == 0
    os.setsid()
    os.dup2(os.open('/dev/full', os.O_RDWR | os.O_NOCTTY), 0)
    os.close(slave)
"""
IN_A_THREAD = """
    def keep():
        assert LIBC.unshare(0x400) == 0  # CLONE_FILES
        apart.set()
        reads()
    os.setsid()
    apart = threading.Event()
    threading.Thread(target=keep, daemon=True).start()
    apart.wait()
    os.dup2(os.open('/dev/null', os.O_RDONLY), 0)
    os.close(slave)
"""
SEES_ANOTHER_DEVPTS = """
    assert LIBC.unshare(0x00020000) == 0  # CLONE_NEWNS
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    os.close(slave)
    assert os.system('mount --make-rprivate / && umount -l /dev/pts && mount -t devpts -o newinstance x /dev/pts') == 0
"""


@pytest.mark.parametrize("how", [KEEPS_DEV_TTY, ON_A_BIND_MOUNT, IN_A_THREAD, SEES_ANOTHER_DEVPTS])
def test_a_terminal_that_no_name_tells(how: str) -> None:
    """KILL-03: what a terminal is told by is its device, in the table of any thread, by whatever name."""
    code = """
master, slave = open_pty()
told, tell = os.pipe()
def reads():
    os.read(slave, 1)
def works():
    os.close(master)
{how}
    become(BOB)
    os.write(tell, b'%d' % os.getpid())
    while True:
        signal.pause()
if not os.fork():
    works()
other = int(os.read(told, 20))
os.close(slave)
become(ALICE)
ready(other)
"""
    with running(code.replace("{how}", how)) as server:
        assert (server.others[0], False) in [each[:2] for each in told(server.pid)]
        assert any("whose other side" in why for pid, _, why in told(server.pid) if pid == server.others[0])


def test_another_side_in_mounts_of_another_user() -> None:
    """KILL-03: who has mounts of a user namespace of his own is not believed to hold a terminal's other side."""
    forged = """
become({mallory})
assert LIBC.prctl(4, 1, 0, 0, 0) == 0  # PR_SET_DUMPABLE, to write the maps
assert LIBC.unshare(0x10000000 | 0x20000) == 0  # CLONE_NEWUSER, CLONE_NEWNS
open('/proc/self/setgroups', 'w').write('deny')
open('/proc/self/uid_map', 'w').write('0 {mallory} 1')
open('/proc/self/gid_map', 'w').write('0 {mallory} 1')
assert LIBC.mount(b'none', b'/', None, 0x44000, None) == 0
assert LIBC.mount(b'devpts', b'/dev/pts', b'devpts', 0, b'newinstance,ptmxmode=0666,mode=0666') == 0
held = []
while True:
    held.append(os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY))
    if int.from_bytes(fcntl.ioctl(held[-1], 0x80045430, bytes(4)), 'little') == {number}:
        break
assert LIBC.umount2(b'/dev/pts', 2) == 0
ready()
"""
    with running(SERVES_A_TERMINAL.format(open=BY_DEVPTS, uid=BOB)) as server:
        number = pty_number(_terminal(server.others[0]))
        with running(forged.format(mallory=4003, number=number)):
            assert [pid for pid, _, _ in told(server.pid)] == [server.others[0]]


def _terminal(pid: int) -> int:
    return int(RealProc().read(pid, "stat").rpartition(b") ")[2].split()[4])
