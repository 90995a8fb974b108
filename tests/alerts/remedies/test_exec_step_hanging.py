"""A process of which /proc has files that nobody can read holds up no program of a step."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuagent_alerts.programs import run as program
from gpuagent_alerts.programs.marked import VARIABLE, end_marked
from gpuagent_alerts.programs.run import run_program
from gpuagent_alerts.programs.subreaper import descendants
from tests.integration.waiting import until

pytestmark = pytest.mark.timeout(60)
HANGING, SOMEONE_ELSES = 2**22 + 1, 2**22 + 2
WORD = "word"


def _add(proc: Path, pid: int, hanging: str) -> Path:
    """A process of which one file is never answered; the path of that."""
    folder = proc / str(pid)
    folder.mkdir()
    os.mkfifo(folder / hanging)
    return folder / hanging


def _is_waited_for(fifo: Path) -> bool:
    """Whether somebody has it open for reading; whoever does reads its end."""
    try:
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


@pytest.mark.parametrize("has_children", [True, False])
def test_what_contains_a_program_reads_no_file_that_hangs(tmp_path: Path, *, has_children: bool) -> None:
    """KILL-06: the descendants of a program are found though a process hangs in execve(2), among them or not."""
    for pid, parent, children in ((7, 1, "8 11"), (8, 7, "9"), (9, 8, ""), (10, 1, "")):
        _add(tmp_path, pid, hanging="stat")
        (tmp_path / str(pid) / "status").write_text(f"Name:\tx) S 1\nPPid:\t{parent}\nGroups:\t4 PPid: 7\n")
        if has_children:
            (tmp_path / str(pid) / "task" / str(pid)).mkdir(parents=True)
            (tmp_path / str(pid) / "task" / str(pid) / "children").write_text(children)
    assert descendants(str(tmp_path), 7) - {11} == {8, 9}


@pytest.mark.parametrize("has_children", [True, False])
def test_descendants_of_all_threads(monkeypatch: pytest.MonkeyPatch, *, has_children: bool) -> None:
    """KILL-06: by either way whoever a process has started is found, by a thread of it and by a child too."""
    code = """
import subprocess, threading
def start(*command):
    subprocess.Popen(command)
    print(flush=True)
    threading.Event().wait()
threading.Thread(target=start, args=("/bin/sh", "-c", "sleep 600 & echo; wait")).start()
"""
    if not has_children:
        monkeypatch.setattr(Path, "exists", lambda _: False)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() + process.stdout.readline() == b"\n\n"
            below = descendants(root=process.pid)
            assert len(below) == 2
            assert process.pid in descendants()
            assert below < descendants()
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def left() -> Iterator[subprocess.Popen[bytes]]:
    """What a program has left behind."""
    with subprocess.Popen(["/bin/sleep", "600"], env={VARIABLE: WORD}) as process:
        try:
            until(lambda: WORD in Path(f"/proc/{process.pid}/environ").read_text(), "it has come through execve(2)")
            yield process
        finally:
            process.kill()


def test_what_is_left_is_ended_beside_what_hangs(tmp_path: Path, left: subprocess.Popen[bytes]) -> None:
    """KILL-06: what a program left behind is ended, though another process of the agent's user hangs."""
    hanging = _add(tmp_path, HANGING, hanging="environ")
    (tmp_path / str(left.pid)).symlink_to(f"/proc/{left.pid}")
    end_marked(WORD, tmp_path)
    assert left.wait(30.0) == -signal.SIGKILL
    assert _is_waited_for(hanging)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be two users")
def test_the_environment_of_others_is_not_read(tmp_path: Path, left: subprocess.Popen[bytes]) -> None:
    """KILL-06: another user's process, which may hang as it likes, is not asked whether a program left it behind."""
    hanging = _add(tmp_path, SOMEONE_ELSES, hanging="environ")
    os.chown(hanging.parent, 1, -1)
    (tmp_path / str(left.pid)).symlink_to(f"/proc/{left.pid}")
    end_marked(WORD, tmp_path)
    assert left.wait(30.0) == -signal.SIGKILL
    assert not _is_waited_for(hanging)


def test_the_end_of_a_step_is_waited_for_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """KILL-06: a step ends though nobody can tell what its program has left behind, and so can the agent."""
    ends = threading.Event()
    threads = []

    def hang(_: str) -> None:
        threads.append(threading.current_thread())
        ends.wait()

    monkeypatch.setattr(program, "end_marked", hang)
    monkeypatch.setattr(program, "_END_SECONDS", 0.1)
    code = "import os, signal; os.kill(os.getppid(), signal.SIGKILL)"
    try:
        finished = asyncio.run(run_program((sys.executable, "-c", code), b"", 30.0, contained=True))
        assert finished.status == -signal.SIGKILL
        assert [thread.daemon for thread in threads] == [True]
    finally:
        ends.set()
