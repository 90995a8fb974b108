"""What serves a display is told by what it listens on, whatever it is called."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuagent_alerts.remedies.facts import displays
from gpuagent_alerts.remedies.facts.displays import Displays
from gpuagent_alerts.remedies.facts.unix_sockets import (
    ListeningSocket,
    name_of_copy,
    parse_table,
    read_own_namespace,
)
from tests.alerts.remedies.processes import PLAIN, refusals_of, running

SERVER = """
import signal, socket, sys
one = socket.socket(socket.AF_UNIX)
one.bind(sys.argv[1].replace('@', chr(0), 1).encode())
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


REAL = "0000000000000000: 00000002 00000000 00010000 0001 01 {} /tmp/.X11-unix/X9"
FORGED = [
    "0: 2 0 zz 1 1 {} /tmp/.X11-unix/X9",
    "0: 2 0 00010000 0001 01 {} /tmp/.X11-unix/X9",
    REAL,
    "0000000000000000: 00000002 00000000 00010000 0001 01 99999999999999999999999999 /tmp/.X11-unix/X9",
    "0000000000000000: 00000002 00000000 \u0660 0001 01 {} wayland-\u0661",
]


@pytest.mark.parametrize("forged", FORGED)
@pytest.mark.parametrize("netlink", [True, False])
def test_lines_in_the_name_of_a_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forged: str, netlink: bool
) -> None:
    """KILL-03: a socket's name that looks like lines of net/unix makes nobody a display, and hides none."""
    if not netlink:
        monkeypatch.setattr(displays, "read_own_namespace", _unanswered)
    (tmp_path / ".X11-unix").mkdir()
    one, other = socket.socketpair()
    with one, other, at(f"@a\n{forged.format(os.fstat(one.fileno()).st_ino)}"):
        assert Displays().served_by(os.getpid()) == ""
        with at(str(tmp_path / ".X11-unix" / "X7")) as pid:
            assert Displays().served_by(pid) == "the X display :7"


def _unanswered() -> Iterator[ListeningSocket]:
    raise PermissionError("netlink is forbidden")


def test_what_cannot_be_copied_is_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KILL-03: where neither netlink nor a copy of the socket tells its name, the table counts."""

    def refused(_pid: int, _descriptor: int) -> bytes | None:
        raise PermissionError("ptrace_scope")

    monkeypatch.setattr(displays, "read_own_namespace", _unanswered)
    monkeypatch.setattr(displays, "name_of_copy", refused)
    with at(str(tmp_path / "wayland-1")) as pid:
        assert Displays().served_by(pid) == "the display wayland-1"


def test_both_ways_tell_the_same_sockets(tmp_path: Path) -> None:
    """KILL-03: netlink and the table agree about a socket that listens, but for the user, whom netlink alone tells."""
    address = str(tmp_path / "wayland-1")
    with at(address), at(address, CLIENT):
        told, read = (
            [each for each in found if each.name == os.fsencode(address)]
            for found in (read_own_namespace(), parse_table(Path("/proc/self/net/unix").read_bytes().split(b"\n")))
        )
    assert len(told) == 1
    assert [each._replace(uid=None) for each in told] == read
    assert told[0].uid in {os.geteuid(), None}


@pytest.mark.parametrize("netlink", [True, False])
def test_without_the_right_to_see_open_files(tmp_path: Path, netlink: bool) -> None:
    """KILL-03: without CAP_SYS_PTRACE an X server is known by its lock, if its own user or root has written that."""
    if os.geteuid() != 0:
        pytest.skip("needs root to give a right up")
    look = (
        "import gpuagent_alerts.remedies.facts.displays as displays; import os, sys\n"
        + ("" if netlink else "displays.read_own_namespace = lambda: os.open('/none', 0)\n")
        + "os.setresuid(65534, 65534, 65534); "
        "print(displays.Displays('/proc', sys.argv[1]).served_by(int(sys.argv[2])))"
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
    (tmp_path / ".X11-unix").mkdir()
    address = tmp_path / ".X11-unix" / "X7"
    try:
        with at(str(tmp_path / "wayland-1")) as pid:
            lock.write_text(f"{pid:>10}\n", encoding="ascii")
            lock.chmod(0o444)
            assert seen(pid) == "", "nobody listens as this display"
            lock.unlink()
        with at(str(address)) as pid, running(PLAIN) as other:
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


def test_a_flood_of_sockets_hides_no_display(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may have very many displays: those whose locks are looked up are known for each user all the same."""
    monkeypatch.setattr(displays, "_MOST_SOCKETS", 10)
    flood = [ListeningSocket(number, b"\0/x/.X11-unix/X7", 1002) for number in range(50)]
    flood += [ListeningSocket(100 + number, b"/run/wayland-%d" % number, 1002) for number in range(50)]
    known = displays._displays(iter([*flood, ListeningSocket(999, b"/tmp/.X11-unix/X7", 0)]))

    assert {each.uid for each in known.values() if each.number == 7} == {0, 1002}
    assert len(known) == 12


@pytest.mark.parametrize("address", ["{}/.X11-unix/X7", "{}/wayland-1"])
def test_more_sockets_than_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """KILL-03: where one user has so many that the table is not read to its end, a process's own sockets are asked."""
    monkeypatch.setattr(displays, "read_own_namespace", _unanswered)
    monkeypatch.setattr(displays, "_MOST_LINES", 1)
    (tmp_path / ".X11-unix").mkdir()
    one, other = socket.socketpair()
    with one, other, at(address.format(tmp_path)) as pid, running(PLAIN) as plain:
        assert Displays().served_by(pid) == "a display"
        assert (Displays().served_by(plain.pid), Displays().served_by(os.getpid())) == ("", "")


def test_the_locks_where_there_are_more_sockets_than_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KILL-03: an agent that sees no open files goes by the locks alone, and refuses nobody else."""

    def hidden(*_: object) -> str:
        raise PermissionError

    monkeypatch.setattr(displays, "read_own_namespace", _unanswered)
    monkeypatch.setattr(displays, "_MOST_LINES", 1)
    monkeypatch.setattr(Displays, "_held", hidden)
    with running(PLAIN) as one, running(PLAIN) as other:
        (tmp_path / ".X7-lock").write_text(f"{one.pid:>10}\n", encoding="ascii")
        shown = Displays(temporary=str(tmp_path))
        assert (shown.served_by(one.pid), shown.served_by(other.pid)) == ("the X display :7", "")


def test_a_descriptor_that_is_no_socket_any_more() -> None:
    """What another process has put in its place is closed again."""
    with Path("/dev/null").open("rb") as other:
        before = len([*Path("/proc/self/fd").iterdir()])
        with pytest.raises(OSError, match=r"not a socket|non-socket"):
            name_of_copy(os.getpid(), other.fileno())
        assert len([*Path("/proc/self/fd").iterdir()]) == before
