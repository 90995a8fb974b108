"""The table where /proc tells less than all."""

from __future__ import annotations

import pytest

from tests.agent.procfs.tables import known, table_of
from tests.fakes.proc import FakeProc, FakeWatcher


def test_commands_are_not_read_where_they_are_not_wanted() -> None:
    """`processes.command: false` does not even open the file."""
    proc = FakeProc()
    proc.put(7, cmdline=b"python3\0a.py")

    assert known(table_of(proc, command=False).resolve([7])[7]).command == ""
    assert (7, "cmdline") not in proc.reads


def test_denied_files_leave_facts_empty() -> None:
    """PROC-11: a file that may not be read costs its fact, not the process."""
    denied = PermissionError()
    proc = FakeProc()
    proc.put(7, status=denied, cmdline=denied, cgroup=denied, ns_pid=denied, owner=denied)

    info = known(table_of(proc).resolve([7])[7])

    assert (info.name, info.id.start_ticks) == ("python3", 1000)
    assert (info.uid, info.command, info.cgroup, info.pid_namespace) == (-1, "", "", 0)


def test_the_owner_is_asked_for_where_status_has_none() -> None:
    """A simulated process may know its user without a status file."""
    proc = FakeProc()
    proc.put(7, owner=b"33")

    assert known(table_of(proc).resolve([7])[7]).uid == 33


def test_one_pid_is_the_agents_namespace() -> None:
    """Without the right to follow the link, NSpid tells: one number is here, two is a child."""
    proc = FakeProc()
    proc.put(7, status=b"NSpid:\t7\n", ns_pid=PermissionError())
    proc.put(8, status=b"NSpid:\t8\t1\n", ns_pid=PermissionError())

    resolved = table_of(proc).resolve([7, 8])

    assert known(resolved[7]).pid_namespace == 4026531836
    assert known(resolved[8]).pid_namespace == 0


@pytest.mark.parametrize("able", [True, False])
def test_what_may_not_be_read_is_not_taken_for_dead(able: bool) -> None:
    """PROC-11: with hidepid=1 a process is live and unknown, and known once it can be read."""
    proc = FakeProc()
    proc.put(7, PermissionError())
    table = table_of(proc, FakeWatcher(able=able))

    hidden = known(table.resolve([7])[7])
    table.refresh()

    assert (hidden.name, hidden.uid, hidden.resident_bytes) == ("", -1, None)
    assert table.resolve([7]) == {7: hidden}


def test_a_process_held_by_a_pidfd_but_not_in_proc_is_hidden() -> None:
    """PROC-11: hidepid=2 looks like death; the pidfd knows better, and also knows the end."""
    watcher = FakeWatcher()
    table = table_of(FakeProc(), watcher)
    assert known(table.resolve([7])[7]).name == ""

    watcher.fired.add(7)

    assert table.resolve([7]) == {7: None}


def test_hidden_processes_never_share_an_identity() -> None:
    """LEAK-03: with the start time unknown, one pid twice is still two processes."""
    proc = FakeProc()
    proc.put(7, PermissionError())
    table = table_of(proc)
    first = known(table.resolve([7])[7]).id
    table.resolve([])

    assert known(table.resolve([7])[7]).id != first


def test_garbage_in_stat_is_not_taken_for_dead() -> None:
    """A file that cannot be understood costs what it would have told."""
    proc = FakeProc()
    proc.put(7, b"garbage")

    assert known(table_of(proc).resolve([7])[7]).state == "?"
