"""Who works on a terminal whose other side is in no list of open files: unread in a socket, or registered."""

from __future__ import annotations

import os
import signal

import pytest

from gpuagent.procfs.files import RealProc
from gpuagent_alerts.remedies.facts.terminals import OpenFiles
from gpuagent_alerts.remedies.facts.ties import TieFinder, read_ties
from tests.alerts.remedies.processes import reader
from tests.alerts.remedies.tied import (
    BOB,
    BY_DEVPTS,
    SERVES_A_TERMINAL,
    ends,
    running,
    told,
)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be two users")
IN_FLIGHT = """
import array, socket
master, slave = open_pty()
other = started(at_terminal(master, slave, BOB))
os.close(slave)
one, two = socket.socketpair()
{how}
become(ALICE)
ready(other)
"""
SEND = "one.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [{what}]))])"


@pytest.mark.parametrize(
    "how",
    [
        SEND.format(what="master") + "; os.close(master)",
        # In a socket that lies in another one, and in a connection that nobody has accepted.
        SEND.format(what="master") + """
three, four = socket.socketpair()
three.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [two.fileno()]))])
os.close(master); two.close()""",
        """
listens = socket.socket(socket.AF_UNIX)
listens.bind('')
listens.listen(1)
calls = socket.socket(socket.AF_UNIX)
calls.connect(listens.getsockname())
calls.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [master]))])
calls.close(); os.close(master)""",
    ],
    ids=["unread", "nested", "unaccepted"],
)  # fmt: skip
def test_a_terminal_whose_other_side_lies_in_a_socket(how: str) -> None:
    """KILL-03: the other side may lie unread in a socket of the target: who works on such a terminal may be hung up."""
    with running(IN_FLIGHT.format(how=how)) as server:
        ties = read_ties(RealProc(), reader(), [server.pid])
        (tie,) = [each for each in ties.processes if each.pid == server.others[0]]
        assert (tie.belongs, tie.certain) == (False, False)
        assert f"it may lie unread in a socket of pid {server.pid}" in tie.why
        os.kill(server.pid, signal.SIGKILL)
        assert ends(server.others[0])


@pytest.mark.parametrize("how", ["pass", SEND.format(what="one.fileno()")], ids=["empty", "another file"])
def test_a_terminal_whose_other_side_somebody_has(how: str) -> None:
    """A socket, be another file unread in it, ties nobody on a terminal whose other side an unrelated process has."""
    with (
        running(SERVES_A_TERMINAL.format(open=BY_DEVPTS, uid=BOB)) as serves,
        running(f"import array, socket\none, two = socket.socketpair()\n{how}\nbecome(ALICE)\nready()") as alone,
    ):
        assert serves.others[0] not in [pid for pid, _, _ in told(alone.pid)]


def test_a_terminal_that_was_hung_up() -> None:
    """Nobody has the other side of one whose node devpts has lost: who survived that is tied to nobody's sockets."""
    survives = f"""
signal.signal(signal.SIGHUP, signal.SIG_IGN)
master, slave = open_pty()
other = started(lambda: (os.close(master), os.setsid(), become({BOB})))
os.close(master)
ready(other)
"""
    in_flight = SEND.format(what="one.fileno()")
    alone = f"import array, socket\none, two = socket.socketpair()\n{in_flight}\nbecome(ALICE)\nready()"
    with running(survives) as survivor, running(alone) as target:
        assert survivor.others[0] not in [pid for pid, _, _ in told(target.pid)]


class Untold(OpenFiles):
    """A kernel before 5.11, which does not tell how many files lie in a socket."""

    def info(self, pid: int, folder: str, descriptor: int) -> bytes:
        found = super().info(pid, folder, descriptor)
        return b"".join(line for line in found.splitlines(keepends=True) if not line.startswith(b"scm_fds"))

    def tells_of_sockets(self) -> bool:
        return False


@pytest.mark.parametrize(
    ("kind", "tied"), [("socket.socketpair()", True), ("(socket.socket(), socket.socket())", False)]
)
def test_where_the_kernel_does_not_tell_of_sockets(kind: str, tied: bool) -> None:
    """Any socket of AF_UNIX may have the other side in it then, among hundreds; one of the internet cannot."""
    flight = IN_FLIGHT.format(how=SEND.format(what="master") + "; os.close(master)")
    finder = TieFinder(RealProc(), open_files=Untold())
    with (
        running(flight) as server,
        running("import socket\nkept = [socket.socketpair() for _ in range(450)]\nready()"),
        running(f"import socket\none, two = {kind}\nbecome(ALICE)\nready()") as alone,
    ):
        ties = read_ties(RealProc(), reader(), [alone.pid], finder=finder)
        assert ties.unseen == ""
        assert (server.others[0] in [each.pid for each in ties.processes]) is tied


class Ring(OpenFiles):
    """One process has an io_uring as well, with so many files registered."""

    def __init__(self, pid: int, told: bytes) -> None:
        super().__init__()
        self._pid = pid
        self._told = told

    def list(self, pid: int, folder: str) -> list[int]:
        return [*super().list(pid, folder), *([9999] if pid == self._pid else [])]

    def path(self, pid: int, folder: str, descriptor: int) -> str:
        return "anon_inode:[io_uring]" if descriptor == 9999 else super().path(pid, folder, descriptor)

    def info(self, pid: int, folder: str, descriptor: int) -> bytes:
        return self._told if descriptor == 9999 else super().info(pid, folder, descriptor)


@pytest.mark.parametrize(
    ("told_of_it", "tied"),
    [
        (b"UserFiles:\t1\n", True),
        (b"UserFiles:\t0\nPollList:\n", False),
        (b"UserFiles:\t0\nPollList:\n  op=6, task_works=0\n", True),
        (b"", True),
    ],
)
def test_a_terminal_whose_other_side_may_be_registered(told_of_it: bytes, tied: bool) -> None:
    """Files that are registered with an io_uring are in nobody's list either; not told is not none."""
    with (
        running(IN_FLIGHT.format(how=SEND.format(what="master") + "; os.close(master)")) as server,
        running("become(ALICE)\nready()") as alone,
    ):
        finder = TieFinder(RealProc(), open_files=Ring(alone.pid, told_of_it))
        ties = read_ties(RealProc(), reader(), [alone.pid], finder=finder)
        assert ties.unseen == ""
        assert (server.others[0] in [each.pid for each in ties.processes]) is tied
