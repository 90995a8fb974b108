"""The table over real processes."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuagent.core.clock import SystemClock
from gpuagent.core.snapshot import ProcessInfo
from gpuagent.procfs.files import RealProc
from gpuagent.procfs.table import PidfdWatcher, ProcessTable
from tests.agent.procfs.children import (
    ZOMBIE_LEADER,
    answer,
    child,
    end_without_reaping,
    python,
    running,
    say,
)
from tests.fakes.proc import FakeWatcher


@pytest.fixture(params=["pidfd", "start time"])
def table(request: pytest.FixtureRequest) -> Iterator[ProcessTable]:
    """A table over the real /proc; it must work with pidfds as well as without."""
    watcher = PidfdWatcher() if request.param == "pidfd" else FakeWatcher(able=False)
    table = ProcessTable(RealProc(), SystemClock(), watch=watcher, host_pid_namespace=True)
    yield table
    table.close()


def look(table: ProcessTable, pid: int) -> ProcessInfo:
    """The process, which must be there."""
    info = table.resolve([pid])[pid]
    assert info is not None
    return info


def test_a_child_is_described(table: ProcessTable) -> None:
    """Name, user, parent, start and memory of a real process agree with what its parent knows."""
    with running("cat", "-", "-u", "--", "-") as process:
        info = look(table, process.pid)

    assert (info.name, info.command) == ("cat", "cat - -u -- -")
    assert (info.uid, info.parent_pid) == (os.getuid(), os.getpid())
    assert info.pid_namespace == int(str(Path("/proc/self/ns/pid").readlink()).removeprefix("pid:[").removesuffix("]"))
    assert 0 < info.start_time_seconds <= SystemClock().wall() + 1
    assert info.resident_bytes is not None


def test_a_zombie_is_flagged_and_then_dead(table: ProcessTable) -> None:
    """PROC-02: killed and not reaped is Z with the same identity; reaped is None."""
    with running("cat") as process:
        before = look(table, process.pid)
        end_without_reaping(process)

        zombie = look(table, process.pid)
        assert (zombie.id, zombie.state, zombie.command) == (before.id, "Z", "cat")
        assert look(table, process.pid) == zombie

        process.wait()
        assert table.resolve([process.pid]) == {process.pid: None}


def test_a_zombie_at_first_sight_is_known(table: ProcessTable) -> None:
    """PROC-02: a process that ended before the agent looked is a zombie, not dead."""
    with running("cat") as process:
        end_without_reaping(process)

        assert look(table, process.pid).state == "Z"


def test_a_process_without_its_main_thread_lives(table: ProcessTable) -> None:
    """PROC-02: state Z with threads left is no death; what was known of it is kept."""
    with child(*python(ZOMBIE_LEADER)) as process:
        answer(process)
        before = look(table, process.pid)
        say(process, b"go\n")
        stat = Path(f"/proc/{process.pid}/stat")
        while b") Z " not in stat.read_bytes():
            os.sched_yield()
        table.refresh()

        after = look(table, process.pid)
        assert (after.id, after.state) == (before.id, "Z")
        assert after.command == before.command
        process.send_signal(signal.SIGKILL)


def test_another_program_is_seen_at_the_slow_rate(table: ProcessTable) -> None:
    """An exec keeps the identity and changes name and command line."""
    with child("sh", "-c", "echo ready; read line; exec cat -") as process:
        answer(process)
        before = look(table, process.pid)
        say(process, b"go\n")
        say(process, b"echo me\n")
        assert answer(process) == b"echo me\n"

        table.refresh()

        after = look(table, process.pid)
        assert before.name == "sh"
        assert (after.id, after.name, after.command) == (before.id, "cat", "cat -")


def test_short_lived_processes_upset_nothing(table: ProcessTable) -> None:
    """PROC-03: fifty processes end while they are looked at; in the end all are dead."""
    processes = [subprocess.Popen(["true"]) for _ in range(50)]
    pids = [process.pid for process in processes]
    for process in processes:
        table.resolve(pids)
        table.refresh()
        process.wait()

    assert table.resolve(pids) == dict.fromkeys(pids)


def test_a_hostile_name_is_shown_as_text(table: ProcessTable, tmp_path: Path) -> None:
    """PROC-07: a program file may be called anything; the name is escaped and moves no field."""
    program = os.fsencode(tmp_path) + b"/x) Z\n\xff"
    os.symlink("/bin/cat", program)  # noqa: PTH211 - pathlib has no names of bytes
    with running(os.fsdecode(program)) as process:
        info = look(table, process.pid)

    assert (info.name, info.state in "RS") == ("x) Z\\n\\xff", True)
    assert info.command.endswith("/x) Z\\n\\xff")
