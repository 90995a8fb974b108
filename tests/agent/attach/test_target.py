"""What is attached to: the facts of /proc, each of which can be a reason not to."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuagent.attach.target import NotAttachable, Target, check_python, is_same, is_visible, read_target
from gpuagent.procfs.files import RealProc

UID = 1000
STAT = "7 (python3.14) {state} 1 7 7 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 3 0 {start} 0 100 " + "0 " * 30
PYTHON = "/usr/bin/python3.14"


class Proc:
    """A process as /proc has it."""

    def __init__(self) -> None:
        self.start = 500
        self.state = "S"
        self.uids = (UID,) * 4
        self.exe = PYTHON
        self.cmdline = "python3.14\0app.py\0"
        self.environ = "HOME=/root\0"
        self.gone = False

    def read(self, pid: int, name: str) -> bytes:
        """One file."""
        assert pid == 7
        if self.gone:
            raise FileNotFoundError
        texts = {
            "stat": STAT.format(state=self.state, flags=0, start=self.start),
            "status": "Name:\tpython3.14\nUid:\t" + "\t".join(map(str, self.uids)) + "\n",
            "cmdline": self.cmdline,
            "environ": self.environ,
        }
        return texts[name].encode()

    def link(self, pid: int, name: str) -> str:
        """The interpreter."""
        assert (pid, name) == (7, "exe")
        return self.exe

    def owner(self, pid: int) -> int:
        """Unused."""
        raise NotImplementedError(pid)

    def exists(self, pid: int) -> bool:
        """Unused."""
        raise NotImplementedError(pid)

    def threads(self, pid: int) -> list[int]:
        """Unused."""
        raise NotImplementedError(pid)


@pytest.fixture
def root(tmp_path: Path) -> str:
    """Where the directory of the process is: its group is read from there."""
    (tmp_path / "7").mkdir()
    return str(tmp_path)


def test_what_is_known_of_a_target(root: str) -> None:
    """PROC-01: identity is pid and start time; its own user and root may ask."""
    expected = Target(7, 500, UID, os.getgid(), PYTHON)
    assert read_target(7, own_uid=UID, proc=Proc(), root=root) == expected
    assert read_target(7, own_uid=0, proc=Proc(), root=root) == expected


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("gone", True, "There is no process 7"),
        ("state", "Z", "has ended"),
        ("uids", (1001,) * 4, "belongs to user id 1001: run this as that user, or as root"),
        ("uids", (UID, 0, 0, 0), "more than one user"),
        ("uids", (), "an unknown one"),
        ("exe", "/usr/bin/nginx", "no Python interpreter by its name"),
        ("exe", "/usr/bin/python3.11", "runs Python 3.11; attaching takes 3.14"),
        ("exe", "/opt/python3.13t", "runs Python 3.13"),
        ("exe", f"{PYTHON} (deleted)", "replaced after its start"),
        ("environ", "A=1\0PYTHON_DISABLE_REMOTE_DEBUG=1\0", "remote debugging disabled"),
        ("cmdline", "python3.14\0-u\0-X\0disable-remote-debug\0app.py\0", "remote debugging disabled"),
        ("cmdline", "python3.14\0-Xdisable-remote-debug\0-m\0app\0", "remote debugging disabled"),
    ],
)
def test_what_is_a_reason_not_to(root: str, field: str, value: object, why: str) -> None:
    """Each one is said, with what to do."""
    proc = Proc()
    setattr(proc, field, value)
    with pytest.raises(NotAttachable, match=why):
        read_target(7, own_uid=UID, proc=proc, root=root)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("exe", "/usr/bin/python3"),
        ("exe", "/usr/bin/python3.15"),
        ("exe", "/opt/python3.14t"),
        ("environ", "PYTHON_DISABLE_REMOTE_DEBUG=\0"),
        ("cmdline", "python3.14\0-X\0dev\0app.py\0-X\0disable-remote-debug\0"),
        ("cmdline", "python3.14\0-m\0app\0-Xdisable-remote-debug\0"),
        ("cmdline", "python3.14\0-W\0-Xdisable-remote-debug\0app.py\0"),
    ],
)
def test_what_is_no_reason(root: str, field: str, value: object) -> None:
    """An empty variable, an argument of the app's, or a version that the name does not tell."""
    proc = Proc()
    setattr(proc, field, value)
    assert read_target(7, own_uid=UID, proc=proc, root=root).pid == 7


def test_a_pid_that_is_another_process_now() -> None:
    """PROC-01: the start time tells, and what cannot be read is not the same."""
    proc = Proc()
    target = Target(7, 500, UID, UID, PYTHON)
    assert is_same(target, proc)
    proc.start = 501
    assert not is_same(target, proc)
    proc.gone = True
    assert not is_same(target, proc)


def test_a_file_that_the_process_does_not_see(tmp_path: Path) -> None:
    """In another mount namespace the path is missing, or leads to another file."""
    here = tmp_path / "script"
    there = tmp_path / "proc/7/root" / str(here).lstrip("/")
    here.write_text("")
    there.parent.mkdir(parents=True)
    assert not is_visible(7, str(here), str(tmp_path / "proc"))
    there.write_text("")
    assert not is_visible(7, str(here), str(tmp_path / "proc"))
    there.unlink()
    there.hardlink_to(here)
    assert is_visible(7, str(here), str(tmp_path / "proc"))


@pytest.fixture
def old_python() -> Iterator[subprocess.Popen[str]]:
    """A real process with the Python of the tests."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, text=True)
    yield process
    process.communicate("\n")


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="this Python can be attached to")
def test_a_real_process_of_an_older_python(old_python: subprocess.Popen[str]) -> None:
    """It hears what to do at the next start."""
    proc = RealProc()
    with pytest.raises(NotAttachable, match="gpuagent-client enable"):
        check_python(old_python.pid, f"/usr/bin/python3.{sys.version_info.minor}")
    with pytest.raises(NotAttachable, match=r"Python 3\.|no Python interpreter"):
        read_target(old_python.pid, own_uid=os.getuid(), proc=proc)
