"""The table at the slow rate, over a made-up /proc."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuagent.core.clock import ManualClock
from gpuagent.procfs.containers import RESCAN_SECONDS, PodNames
from tests.agent.procfs.tables import CONTAINER, POD_UID, known, table_of
from tests.fakes.proc import FakeProc, FakeWatcher, stat_text


def test_the_slow_rate_follows_state_and_memory() -> None:
    """PROC-02: state D and the resident memory are seen after `refresh`, without other files."""
    proc = FakeProc()
    proc.put(7, cmdline=b"python3")
    table = table_of(proc)
    table.resolve([7])
    proc.put(7, stat_text(7, state="D", resident_pages=99, parent_pid=5, group=6), cmdline=b"python3")
    proc.reads.clear()

    table.refresh()

    info = known(table.resolve([7])[7])
    assert (info.state, info.parent_pid, info.process_group) == ("D", 5, 6)
    assert info.resident_bytes == 99 * os.sysconf("SC_PAGE_SIZE")
    assert proc.reads == [(7, "stat")]


FILES = 3
"""What is read of a process at its turn: stat, cgroup and status."""


@pytest.mark.parametrize("ticks", [3, 15])
def test_a_crowd_has_its_turn(ticks: int) -> None:
    """Of 512 processes no tick reads more than 32, and each is read, also with few ticks between two slow ones."""
    proc, pids = FakeProc(), range(1, 513)
    for pid in pids:
        proc.put(pid)
    table = table_of(proc)
    first = table.resolve(pids)
    proc.reads.clear()
    for tick in range(30):
        if tick % ticks == 0:
            table.refresh()
        before = len(proc.reads)
        assert table.resolve(pids) is first
        assert len({pid for pid, _ in proc.reads[before:]}) <= 32
        assert len(proc.reads) - before <= 32 * FILES
    assert {pid for pid, _ in proc.reads} == set(pids)


@pytest.mark.parametrize("visible", [True, False])
def test_another_program_keeps_the_identity(visible: bool) -> None:
    """An exec changes name and command line, whether or not the kernel shows its addresses."""
    before, after = ((1, 2, 3), (4, 5, 6)) if visible else ((0, 0, 0), (0, 0, 0))
    proc = FakeProc()
    proc.put(7, stat_text(7, b"python3", addresses=before), cmdline=b"python3\0a.py")
    table = table_of(proc)
    first = known(table.resolve([7])[7])
    proc.put(7, stat_text(7, b"python3", addresses=after), cmdline=b"python3\0b.py")

    table.refresh()

    info = known(table.resolve([7])[7])
    assert (info.id, info.command) == (first.id, "python3 b.py")
    assert table.processes_seen == 1


def test_the_command_line_of_a_hanging_process_is_left_alone() -> None:
    """PROC-02: reading `cmdline` waits for a lock that a process in state D may hold for ever."""
    proc = FakeProc()
    proc.put(7, stat_text(7, state="D"), cmdline=b"python3\0a.py")
    table = table_of(proc)
    assert known(table.resolve([7])[7]).command == ""
    table.refresh()
    table.resolve([7])
    assert (7, "cmdline") not in proc.reads

    proc.put(7, stat_text(7, state="S"), cmdline=b"python3\0a.py")
    table.refresh()

    assert known(table.resolve([7])[7]).command == "python3 a.py"


def test_a_pod_gets_its_name_when_the_kubelet_has_made_its_folder(tmp_path: Path) -> None:
    """The first look may come too early for the name; a later one completes it."""
    clock = ManualClock()
    proc = FakeProc()
    proc.put(7, cgroup=f"0::/kubepods/pod{POD_UID}/{CONTAINER}\n".encode())
    table = table_of(proc, pods=PodNames(clock, str(tmp_path)))
    assert known(table.resolve([7])[7]).pod == ""
    (tmp_path / f"ml_whisper-0_{POD_UID}").mkdir()
    clock.advance(RESCAN_SECONDS)

    table.refresh()

    info = known(table.resolve([7])[7])
    assert (info.namespace, info.pod) == ("ml", "whisper-0")


def test_a_hanging_process_keeps_what_was_known_of_it() -> None:
    """PROC-02: one whose exec cannot be seen is read again, but not while it is in state D."""
    unseen = (0, 0, 0)
    proc = FakeProc()
    proc.put(7, stat_text(7, addresses=unseen), cmdline=b"python3\0a.py")
    table = table_of(proc)
    table.resolve([7])
    proc.put(7, stat_text(7, state="D", addresses=unseen), cmdline=b"python3\0a.py")

    table.refresh()

    info = known(table.resolve([7])[7])
    assert (info.state, info.command) == ("D", "python3 a.py")


def test_a_process_replaced_at_the_slow_rate_waits_for_the_next_tick() -> None:
    """KILL-01: what belongs to a new owner of the number is not written to the old one."""

    class Replaced(FakeProc):
        def read(self, pid: int, name: str) -> bytes:
            content = super().read(pid, name)
            if (pid, name) == (7, "stat") and b"(exec)" in content:
                self.put(pid, stat_text(pid, b"second", start_ticks=2000))
            return content

    proc = Replaced()
    proc.put(7, stat_text(7, b"first"))
    table = table_of(proc, FakeWatcher(able=False))
    table.resolve([7])
    proc.put(7, stat_text(7, b"exec", addresses=(4, 5, 6)))

    table.refresh()
    assert table.processes_seen == 1

    info = known(table.resolve([7])[7])
    assert (info.name, info.id.start_ticks) == ("second", 2000)
    assert table.processes_seen == 2


def test_a_process_that_is_gone_or_another_changes_nothing_at_the_slow_rate() -> None:
    """PROC-03: between two ticks anything may end; the next tick says so."""
    proc = FakeProc()
    proc.put(7)
    proc.put(8)
    table = table_of(proc, FakeWatcher(able=False))
    table.resolve([7, 8])
    proc.end(7)
    proc.put(8, stat_text(8, b"second", start_ticks=2000))

    table.refresh()

    resolved = table.resolve([7, 8])
    assert resolved[7] is None
    assert known(resolved[8]).name == "second"
