"""Processes with thousands of groups, whose status costs milliseconds to read: 200 of them hold up no decision."""

from __future__ import annotations

import pytest

from gpuagent.core.clock import ManualClock
from gpuagent_alerts.remedies.facts.process_scan import LargeStatuses, ProcessScan, UnseenProcesses
from tests.fakes.proc import FakeProc, stat_text

HOST = b"0 0 4294967295\n"
MANY_GROUPS = b"Groups:\t" + b" ".join(b"%d" % each for each in range(4000)) + b"\n"


def status(uid: int, groups: bytes = b"") -> bytes:
    """Text of /proc/PID/status."""
    return b"Name:\tx\nTracerPid:\t0\nUid:\t%d\t%d\t%d\t%d\n%sNSpid:\t7\n" % (uid, uid, uid, uid, groups)


class Machine:
    """Init, and one more process, of which it counts how often the status is read."""

    def __init__(self, groups: bytes, uid_map: bytes = b"0 100000 65536\n") -> None:
        self.proc = FakeProc()
        self.clock = ManualClock()
        self.large = LargeStatuses(self.clock.now)
        self.groups, self.uid_map = groups, uid_map
        self.proc.put(1, status=status(0))
        self.proc.files[1]["uid_map"] = HOST
        self.become(1001)

    def become(self, uid: int, start_ticks: int = 70) -> None:
        self.proc.put(7, stat=stat_text(7, start_ticks=start_ticks), status=status(uid, self.groups))
        self.proc.files[7]["uid_map"] = self.uid_map

    def look(self) -> tuple[set[int], int]:
        """Return the users of the process, and how many reads of its status that took."""
        self.proc.reads.clear()
        rows = ProcessScan(self.proc, lambda: [1, 7], self.large).rows
        return set(rows[7].uids), self.proc.reads.count((7, "status"))


def test_a_large_status_is_read_once_a_minute() -> None:
    """PROC-03: what it says is kept meanwhile, and not for another process with its number."""
    machine = Machine(MANY_GROUPS)
    assert machine.look() == ({1001}, 1)
    assert machine.look() == ({1001}, 0)
    machine.become(1002)
    assert machine.look() == ({1001}, 0)
    machine.clock.advance(60.0)
    assert machine.look() == ({1002}, 1)
    machine.become(1003, start_ticks=71)
    assert machine.look() == ({1003}, 1)


@pytest.mark.parametrize(
    ("groups", "uid_map"), [(b"", b"0 100000 65536\n"), (b"Groups:\t1 2 3\n", b"0 100000 65536\n"), (MANY_GROUPS, HOST)]
)
def test_any_other_is_read_at_each_look(groups: bytes, uid_map: bytes) -> None:
    """PROC-03: nothing is kept of an ordinary process, nor of one in the host's namespace, where root gives groups."""
    machine = Machine(groups, uid_map)
    assert machine.look() == ({1001}, 1)
    machine.become(1002)
    assert machine.look() == ({1002}, 1)


def test_who_takes_too_long_is_named() -> None:
    """PROC-03: where they end and begin faster than they are read, the refusal says whose they are."""
    machine = Machine(MANY_GROUPS)
    read = machine.proc.read

    def slowly(pid: int, name: str) -> bytes:
        machine.clock.advance(4.0 if (pid, name) == (7, "status") else 0.0)
        return read(pid, name)

    machine.proc.read = slowly  # type: ignore[method-assign]
    with pytest.raises(UnseenProcesses, match="processes of uid 1001 with thousands of groups"):
        machine.look()
