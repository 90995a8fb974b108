"""What serves a display is told by what it listens on, whatever it is called."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuagent_alerts.remedies.facts.displays import Displays
from tests.alerts.remedies.processes import PLAIN, refusals_of, running

SERVER = """
import signal, socket, sys
one = socket.socket(socket.AF_UNIX)
one.bind(sys.argv[1].replace('@', chr(0), 1))
one.listen()
print('ready', flush=True)
signal.pause()
"""
CLIENT = """
import signal, socket, sys
one = socket.socket(socket.AF_UNIX)
one.connect(sys.argv[1])
print('ready', flush=True)
signal.pause()
"""


@contextmanager
def at(address: str, code: str = SERVER) -> Iterator[int]:
    """Run one that listens on, or is connected to, a socket."""
    process = subprocess.Popen([sys.executable, "-c", code, address], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process.pid
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("address", "display"),
    [
        ("{}/.X11-unix/X7", "the X display :7"),
        ("@{}/.X11-unix/X7", "the X display :7"),
        ("{}/wayland-1", "the display wayland-1"),
        ("{}/gamescope-0", "the display gamescope-0"),
        ("{}/notwayland-1", ""),
        ("{}/X7", ""),
    ],
)
def test_who_listens_as_a_display(tmp_path: Path, address: str, display: str) -> None:
    """KILL-03: an X server or a Wayland compositor of any name is spared, and any other server is not."""
    (tmp_path / ".X11-unix").mkdir()
    with at(address.format(tmp_path)) as pid:
        assert Displays().served_by(pid) == display
        assert any("whoever works there would lose the session" in each for each in refusals_of(pid)) is bool(display)


def test_who_only_uses_a_display(tmp_path: Path) -> None:
    """KILL-03: a client of a display serves nobody."""
    address = str(tmp_path / "wayland-1")
    with at(address), at(address, CLIENT) as client:
        assert Displays().served_by(client) == ""


def test_without_the_right_to_see_open_files(tmp_path: Path) -> None:
    """KILL-03: without CAP_SYS_PTRACE an X server is known by its lock, if its own user or root has written that."""
    if os.geteuid() != 0:
        pytest.skip("needs root to give a right up")
    look = (
        "from gpuagent_alerts.remedies.facts.displays import Displays; import os, sys;"
        "os.setresuid(65534, 65534, 65534); print(Displays('/proc', sys.argv[1]).served_by(int(sys.argv[2])))"
    )

    def seen(pid: int) -> str:
        done = subprocess.run(
            [sys.executable, "-c", look, str(locks), str(pid)], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    tmp_path.chmod(0o755)
    locks = Path("/tmp") / f"gpuagent-locks-{os.getpid()}"
    locks.mkdir(mode=0o755)
    lock = locks / ".X7-lock"
    try:
        with at(str(tmp_path / "wayland-1")) as pid, running(PLAIN) as other:
            assert seen(pid) == ""
            lock.write_text(f"{pid:>10}\n", encoding="ascii")
            lock.chmod(0o444)
            assert seen(pid) == "the X display :7"
            assert seen(other.pid) == ""
            os.chown(lock, 65533, 65533)
            assert seen(pid) == ""
    finally:
        lock.unlink(missing_ok=True)
        locks.rmdir()
