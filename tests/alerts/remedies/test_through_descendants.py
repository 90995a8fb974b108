"""Who depends on a child that may end with its parent, by a signal that it has asked for (PR_SET_PDEATHSIG)."""

from __future__ import annotations

import os
import signal

import pytest

from gpuagent.procfs.files import RealProc
from gpuagent_alerts.remedies.facts.ties import read_ties
from tests.alerts.remedies.processes import reader
from tests.alerts.remedies.tied import ends, running

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be two users")
SERVES = """
def child():
    master, slave = open_pty()
    told, tell = os.pipe()
    if not os.fork():
        if not os.fork():  # its parent ends, so it descends from nobody here
            at_terminal(master, slave, BOB)()
            os.write(tell, b'%d' % os.getpid())
            live()
        os._exit(0)
    os.wait()
    os.close(slave)
    return int(os.read(told, 20))
"""
TRACES = """
outside = int(sys.argv[1])
def child():
    assert LIBC.ptrace(0x4206, outside, 0, 0x100000) == 0  # PTRACE_SEIZE, PTRACE_O_EXITKILL
    return outside
"""
ENDS_WITH_ITS_PARENT = """
told, tell = os.pipe()
def work():
    dependent = child()
    os.setresgid(ALICE, ALICE, ALICE)
    become(ALICE)
    assert LIBC.prctl(1, 9, 0, 0, 0) == 0  # PR_SET_PDEATHSIG
    os.write(tell, b'%d' % dependent)
started(work)
become(ALICE)
ready(int(os.read(told, 20)))
"""


@pytest.mark.parametrize(("how", "why"), [(SERVES, "whose other side"), (TRACES, "traced by pid")])
def test_who_depends_on_a_child(how: str, why: str) -> None:
    """KILL-03: another user's session or tracee that hangs on a child withholds: the child may end with its parent."""
    with (
        running("become(BOB)\nready()") as outside,
        running(how.replace("int(sys.argv[1])", str(outside.pid)) + ENDS_WITH_ITS_PARENT) as parent,
    ):
        ties = read_ties(RealProc(), reader(), [parent.pid])
        (tie,) = [each for each in ties.processes if each.pid == parent.others[0]]
        assert (tie.belongs, tie.certain) == (False, False)
        assert why in tie.why
        os.kill(parent.pid, signal.SIGKILL)
        assert ends(parent.others[0])
