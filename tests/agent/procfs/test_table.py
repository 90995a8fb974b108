"""The table over a made-up /proc: who a pid is, and when it is dead."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from gpuagent.core.clock import ManualClock
from gpuagent.core.identity import ProcessId
from gpuagent.core.snapshot import ProcessInfo
from gpuagent.procfs.containers import PodNames
from tests.agent.procfs.tables import BOOT_TIME, CONTAINER, POD_UID, known, table_of
from tests.fakes.proc import FakeProc, FakeWatcher, stat_text

STATUS = b"Name:\tpython3\nUid:\t1000\t1000\t1000\t1000\nNSpid:\t7\n"


def test_everything_is_told_of_a_process(tmp_path: Path) -> None:
    """All files of a process become one description, its secrets left out."""
    (tmp_path / f"ml_whisper-0_{POD_UID}").mkdir()
    proc = FakeProc()
    proc.put(
        7,
        stat_text(7, b"whisper", state="R", parent_pid=3, start_ticks=250, resident_pages=2),
        status=STATUS,
        cmdline=b"whisper\0--api-key\0x\0",
        cgroup=f"0::/kubepods/pod{POD_UID}/crio-{CONTAINER}\n".encode(),
        ns_pid=b"pid:[4026532001]",
    )

    info = known(table_of(proc, pods=PodNames(ManualClock(), str(tmp_path))).resolve([7])[7])

    assert info == ProcessInfo(
        id=ProcessId("boot", 7, 250),
        name="whisper",
        uid=1000,
        user="user1000",
        command="whisper --api-key [redacted]",
        state="R",
        parent_pid=3,
        pid_namespace=4026532001,
        start_time_seconds=BOOT_TIME + 250 / os.sysconf("SC_CLK_TCK"),
        resident_bytes=2 * os.sysconf("SC_PAGE_SIZE"),
        cgroup=f"/kubepods/pod{POD_UID}/crio-{CONTAINER}",
        container_id=CONTAINER,
        container_runtime="cri-o",
        pod_uid=POD_UID,
        pod="whisper-0",
        namespace="ml",
        proven_names=frozenset({"container", "pod", "place"}),
    )


def test_a_watched_process_costs_no_reading_in_a_tick() -> None:
    """EXP-08: what is known and watched is not read again until the slow rate."""
    proc = FakeProc()
    proc.put(7)
    table = table_of(proc)
    first = table.resolve([7])
    proc.reads.clear()

    assert table.resolve([7]) == first
    assert proc.reads == []


def test_a_pid_that_proc_does_not_know_is_dead() -> None:
    """PROC-01: listed by the driver and not in /proc is None, and the others stay."""
    proc = FakeProc()
    proc.put(7)

    resolved = table_of(proc, FakeWatcher(able=False)).resolve([7, 8])

    assert resolved[8] is None
    assert resolved[7] is not None


@pytest.mark.parametrize("error", [FileNotFoundError(), ProcessLookupError()])
def test_gone_is_told_by_either_error(error: OSError) -> None:
    """PROC-03: ESRCH means gone as well as ENOENT does."""
    proc = FakeProc()
    proc.put(7, error)

    assert table_of(proc, FakeWatcher(able=False)).resolve([7]) == {7: None}


@pytest.mark.parametrize("able", [True, False])
def test_a_process_that_ends_is_dead_in_the_next_tick(able: bool) -> None:
    """PROC-01: with a pidfd or without one, the end is seen."""
    proc, watcher = FakeProc(), FakeWatcher(able=able)
    proc.put(7)
    table = table_of(proc, watcher)
    table.resolve([7])

    proc.end(7)
    watcher.fired.add(7)

    assert table.resolve([7]) == {7: None}
    assert watcher.watched == set()


def test_a_stranger_does_not_inherit_the_memory_of_a_dead_process() -> None:
    """PROC-05: while the driver goes on listing a dead pid, a new owner of the number is not it."""
    proc = FakeProc()
    table = table_of(proc, FakeWatcher(able=False))
    table.resolve([7])
    proc.put(7, stat_text(7, start_ticks=9999))

    assert table.resolve([7]) == {7: None}

    table.resolve([])
    assert known(table.resolve([7])[7]).id.start_ticks == 9999


@pytest.mark.parametrize("able", [True, False])
def test_a_pid_used_again_is_another_process(able: bool) -> None:
    """LEAK-03, KILL-01: another start time is another identity, and counts as one more."""
    proc, watcher = FakeProc(), FakeWatcher(able=able)
    proc.put(7, stat_text(7, b"first", start_ticks=100))
    table = table_of(proc, watcher)
    assert known(table.resolve([7])[7]).name == "first"

    proc.put(7, stat_text(7, b"second", start_ticks=200))
    watcher.fired.add(7)
    info = known(table.resolve([7])[7])

    assert (info.id.start_ticks, info.name) == (200, "second")
    assert table.processes_seen == 2


def test_a_pid_used_again_within_a_clock_tick_is_read_again() -> None:
    """KILL-01: a fired pidfd and a running process are two, though the start times are equal."""
    proc, watcher = FakeProc(), FakeWatcher()
    proc.put(7, stat_text(7, b"first", start_ticks=100))
    table = table_of(proc, watcher)
    table.resolve([7])

    proc.put(7, stat_text(7, b"second", start_ticks=100))
    watcher.fired.add(7)

    assert known(table.resolve([7])[7]).name == "second"


def test_a_process_replaced_while_it_is_read_is_read_again() -> None:
    """KILL-01: the pidfd comes first; when it fires during the reading, that was a mixture."""
    watcher = FakeWatcher()

    class Replaced(FakeProc):
        def read(self, pid: int, name: str) -> bytes:
            content = super().read(pid, name)
            if name == "stat" and pid not in watcher.fired:
                watcher.fired.add(pid)
                self.put(pid, stat_text(pid, b"second", start_ticks=200))
            return content

    proc = Replaced()
    proc.put(7, stat_text(7, b"first", start_ticks=100))

    info = known(table_of(proc, watcher).resolve([7])[7])

    assert (info.id.start_ticks, info.name) == (200, "second")
    assert watcher.watched == set()


def test_a_zombie_stays_known_until_it_is_reaped() -> None:
    """PROC-02: an ended process that /proc lists is flagged Z, keeps its name, then is dead."""
    proc, watcher = FakeProc(), FakeWatcher()
    proc.put(7, stat_text(7, b"leaker"), cmdline=b"leaker\0-x", cgroup=b"0::/a.service\n")
    table = table_of(proc, watcher)
    before = known(table.resolve([7])[7])

    proc.put(7, stat_text(7, b"leaker", state="Z", resident_pages=0), cmdline=b"", cgroup=b"0::/\n")
    watcher.fired.add(7)
    zombie = known(table.resolve([7])[7])
    table.refresh()

    assert (zombie.state, zombie.resident_bytes) == ("Z", 0)
    assert (zombie.id, zombie.command, zombie.unit) == (before.id, "leaker -x", "a.service")
    assert table.resolve([7]) == {7: zombie}
    assert watcher.watched == set()
    proc.end(7)
    assert table.resolve([7]) == {7: None}


@pytest.mark.slow
def test_pids_no_longer_asked_for_are_forgotten() -> None:
    """EXP-01, EXP-03: the table and its descriptors are bounded by what the driver lists, however many come and go."""
    proc, watcher = FakeProc(), FakeWatcher()
    table = table_of(proc, watcher)
    for pid in range(1, 10_001):
        proc.put(pid, stat_text(pid, start_ticks=pid))
        table.resolve([pid])
        assert watcher.watched == {pid}
        proc.end(pid)

    assert table.processes_seen == 10_000
    assert len(table._unlisted) <= 1024
    table.close()
    assert watcher.watched == set()


def test_a_process_that_has_ended_is_not_remembered() -> None:
    """EXP-01: it cannot come back, so that a day's ten thousand leave nothing behind; one that lives may."""
    proc, watcher = FakeProc(), FakeWatcher()
    proc.put(7)
    proc.put(8)
    table = table_of(proc, watcher)
    table.resolve([7, 8])

    watcher.fired.add(7)
    table.resolve([])

    assert table._unlisted.keys() == {8}


def test_a_process_that_comes_back_is_not_counted_twice() -> None:
    """A list that was not read for a tick makes no new processes."""
    proc = FakeProc()
    proc.put(7)
    table = table_of(proc)
    table.resolve([7])
    table.resolve([])
    table.resolve([7])

    assert table.processes_seen == 1


def test_a_process_that_ended_and_may_not_be_read_is_kept_until_it_is_gone() -> None:
    """PROC-02: a zombie behind hidepid=1 is neither read nor watched, and dead when reaped."""
    proc, watcher = FakeProc(), FakeWatcher()
    proc.put(7)
    table = table_of(proc, watcher)
    before = table.resolve([7])

    proc.put(7, PermissionError())
    watcher.fired.add(7)

    assert table.resolve([7]) == before
    assert watcher.watched == set()
    proc.end(7)
    assert table.resolve([7]) == {7: None}


def test_nothing_new_is_the_same_object() -> None:
    """EXP-08: whoever asks at every tick sees at a glance that nobody has come, gone or changed."""
    proc, watcher = FakeProc(), FakeWatcher()
    proc.put(7)
    proc.put(8)
    table = table_of(proc, watcher)
    first = table.resolve([7, 8])

    assert table.resolve([8, 7]) is first
    table.refresh()
    refreshed = table.resolve([7, 8])
    assert refreshed == first
    assert refreshed[7] is first[7]
    assert table.resolve([7]) == {7: first[7]}


def test_where_no_pidfd_tells_each_tick_looks() -> None:
    """PROC-01: one unwatched process is enough: its end is told by nothing else."""
    proc, watcher = FakeProc(), FakeWatcher(able=False)
    proc.put(7)
    table = table_of(proc, watcher)
    first = table.resolve([7])
    proc.reads.clear()

    assert table.resolve([7]) == first
    assert proc.reads


def test_whether_a_process_runs() -> None:
    """By identity, whoever lists it: gone, a zombie, or a stranger with its number does not run."""
    proc = FakeProc()
    proc.put(7)
    table = table_of(proc)
    known = table.resolve([7])[7]
    assert known is not None

    assert table.is_running(known.id) is True
    assert table.is_running(known.id._replace(start_ticks=known.id.start_ticks + 1)) is False
    assert table.is_running(known.id._replace(pid=8)) is False


def test_many_that_hang_are_not_asked_about_one_after_the_other() -> None:
    """PROC-03: while one keeps its files to itself, it is unknown of the others too whether they run, at once."""
    ends = threading.Event()

    class Hanging(FakeProc):
        hangs = False

        def read(self, pid: int, name: str) -> bytes:
            self.reads.append((pid, name))
            if self.hangs:
                ends.wait(60)
            return super().read(pid, name)

    proc = Hanging()
    for pid in range(7, 50):
        proc.put(pid, stat_text(pid, b"x"))
    table = table_of(proc)
    found = [known(info).id for info in table.resolve(range(7, 50)).values()]
    proc.hangs = True
    proc.reads.clear()
    try:
        assert [table.is_running(each) for each in found] == [None] * len(found)
        assert {pid for pid, _ in proc.reads} == {found[0].pid}
    finally:
        ends.set()


def test_those_that_hang_are_waited_for_together() -> None:
    """PROC-03: a tick reads all that it has to at the same time; what comes late is there all the same."""
    together = threading.Barrier(3)

    class Slow(FakeProc):
        def read(self, pid: int, name: str) -> bytes:
            if pid in {7, 8, 9} and name == "stat" and (pid, name) not in self.reads:
                self.reads.append((pid, name))
                together.wait(30.0)
            return super().read(pid, name)

    proc = Slow()
    for pid in (6, 7, 8, 9, 10):
        proc.put(pid, stat_text(pid, b"p%d" % pid))
    found = table_of(proc).resolve([6, 7, 8, 9, 10])
    assert {pid: known(info).name for pid, info in found.items()} == {pid: f"p{pid}" for pid in (6, 7, 8, 9, 10)}
