"""The table over a made-up /proc: identity, death, hiding, and what a tick costs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuagent.clock import ManualClock
from gpuagent.procfs.files import ProcFiles
from gpuagent.procfs.pods import RESCAN_SECONDS, PodNames
from gpuagent.procfs.table import ProcessTable
from gpuagent.reading import ProcessId, ProcessInfo
from tests.fakes.proc import FakeProc, FakeWatcher, stat_text

BOOT_TIME = 1_700_000_000.0
UID = "2c4b2241-5c01-11e9-8e4e-42010a800002"
CONTAINER = "5b0a" * 16
STATUS = b"Name:\tpython3\nUid:\t1000\t1000\t1000\t1000\nNSpid:\t7\n"


def table_of(
    proc: ProcFiles,
    watcher: FakeWatcher | None = None,
    *,
    command: bool = True,
    pods: PodNames | None = None,
) -> ProcessTable:
    """A table on the host, with known users and a known boot."""
    return ProcessTable(
        proc,
        ManualClock(),
        watch=watcher or FakeWatcher(),
        boot_id="boot",
        boot_time_seconds=BOOT_TIME,
        users=lambda uid: f"user{uid}",
        command=command,
        pods=pods,
        host_pid_namespace=True,
    )


def known(info: ProcessInfo | None) -> ProcessInfo:
    """The process, which must be there."""
    assert info is not None
    return info


def test_everything_is_told_of_a_process(tmp_path: Path) -> None:
    """All files of a process become one description, its secrets left out."""
    (tmp_path / f"ml_whisper-0_{UID}").mkdir()
    proc = FakeProc()
    proc.put(
        7,
        stat_text(7, b"whisper", state="R", parent_pid=3, start_ticks=250, resident_pages=2),
        status=STATUS,
        cmdline=b"whisper\0--api-key\0x\0",
        cgroup=f"0::/kubepods/pod{UID}/crio-{CONTAINER}\n".encode(),
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
        cgroup=f"/kubepods/pod{UID}/crio-{CONTAINER}",
        container_id=CONTAINER,
        container_runtime="cri-o",
        pod_uid=UID,
        pod="whisper-0",
        namespace="ml",
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
    if able:
        watcher.remove(7)
        watcher.add(7)
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
    proc.end(7)
    assert table.resolve([7]) == {7: None}


def test_the_slow_rate_follows_state_and_memory() -> None:
    """PROC-02: state D and the resident memory are seen by `refresh`, without other files."""
    proc = FakeProc()
    proc.put(7, cmdline=b"python3")
    table = table_of(proc)
    table.resolve([7])
    proc.put(7, stat_text(7, state="D", resident_pages=99, parent_pid=5), cmdline=b"python3")
    proc.reads.clear()

    table.refresh()

    info = known(table.resolve([7])[7])
    assert (info.state, info.parent_pid) == ("D", 5)
    assert info.resident_bytes == 99 * os.sysconf("SC_PAGE_SIZE")
    assert proc.reads == [(7, "stat")]


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
    assert (7, "cmdline") not in proc.reads

    proc.put(7, stat_text(7, state="S"), cmdline=b"python3\0a.py")
    table.refresh()

    assert known(table.resolve([7])[7]).command == "python3 a.py"


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


def test_pids_no_longer_asked_for_are_forgotten() -> None:
    """EXP-01, EXP-03: the table and its descriptors are bounded by what the driver lists."""
    proc, watcher = FakeProc(), FakeWatcher()
    for pid in range(1, 10_001):
        proc.put(pid, stat_text(pid, start_ticks=pid))
        table_of_one = [pid]
        if pid == 1:
            table = table_of(proc, watcher)
        table.resolve(table_of_one)
        assert watcher.watched == {pid}

    assert table.processes_seen == 10_000
    table.close()
    assert watcher.watched == set()


def test_a_process_that_comes_back_is_not_counted_twice() -> None:
    """A list that was not read for a tick makes no new processes."""
    proc = FakeProc()
    proc.put(7)
    table = table_of(proc)
    table.resolve([7])
    table.resolve([])
    table.resolve([7])

    assert table.processes_seen == 1


def test_a_pod_gets_its_name_when_the_kubelet_has_made_its_folder(tmp_path: Path) -> None:
    """The first look may come too early for the name; a later one completes it."""
    clock = ManualClock()
    proc = FakeProc()
    proc.put(7, cgroup=f"0::/kubepods/pod{UID}/{CONTAINER}\n".encode())
    table = table_of(proc, pods=PodNames(clock, str(tmp_path)))
    assert known(table.resolve([7])[7]).pod == ""
    (tmp_path / f"ml_whisper-0_{UID}").mkdir()
    clock.advance(RESCAN_SECONDS)

    table.refresh()

    info = known(table.resolve([7])[7])
    assert (info.namespace, info.pod) == ("ml", "whisper-0")
