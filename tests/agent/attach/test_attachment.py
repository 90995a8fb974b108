"""The way to the process and back, with a fake of it: what waits on the other side of the socket."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from gpuagent.attach import attachment as module
from gpuagent.attach.attachment import (
    Leftovers,
    Rendezvous,
    attached,
    check_base,
    check_client,
    describe,
    explain,
    find_base,
    find_client,
    script_text,
)
from gpuagent.attach.target import NotAttachable, Target

ROOT = Path(__file__).parents[3]
CLIENT = str(ROOT / "client")


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    """Something with a pid."""
    running = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, text=True)
    yield running
    running.communicate("\n")


@pytest.fixture
def target(process: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch) -> Target:
    """A process that passes for a Python 3.14."""
    start = int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2].split()[19])
    found = Target(process.pid, start, os.getuid(), os.getgid(), sys.executable)
    monkeypatch.setattr(module, "read_target", lambda *_, **__: found)
    return found


@pytest.fixture
def base() -> Iterator[Path]:
    """Where the directory goes: the path of a socket must be short."""
    with TemporaryDirectory(prefix="attach-", dir="/tmp") as folder:
        yield Path(folder)


class Other:
    """Injects by answering as the process would: `lines` at once, `last` after the hang-up."""

    def __init__(self, lines: list[dict[str, Any]], last: dict[str, Any] | None = None) -> None:
        self.scripts: list[str] = []
        self.modes: list[int] = []
        self.text = ""
        self._lines = lines
        self._last = last

    def __call__(self, target: Target, script: str) -> None:
        """Run a script in the process."""
        assert target.pid > 0
        self.scripts.append(script)
        if script != "/dev/null" and self._lines:
            self.text = Path(script).read_text()
            place = Path(script).parent
            self.modes = [stat.S_IMODE(path.stat().st_mode) for path in (place, Path(script))]
            threading.Thread(target=self._answer, args=(place / "socket",), daemon=True).start()

    def _answer(self, place: Path) -> None:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(place))
            for line in self._lines:
                connection.sendall(json.dumps(line).encode() + b"\n")
            while connection.recv(10):
                pass
            if self._last is not None:
                connection.sendall(json.dumps(self._last).encode() + b"\n")


STARTED = {"state": "started", "own": False}
DETACHED = {"state": "detached", "threads": [], "modules": []}


def test_script_and_socket_are_there_for_a_moment(target: Target, base: Path) -> None:
    """Only the owner may enter, the script cannot be written, and both are gone once the process has connected."""
    other = Other([STARTED], DETACHED)
    with attached(
        target.pid, client_directory=CLIENT, safe_point_seconds=30, base=str(base), inject=other
    ) as attachment:
        assert not list(base.iterdir())
        assert attachment.left is None
    assert other.modes == [0o700, 0o400]
    assert other.text == script_text(CLIENT, str(Path(other.scripts[0]).parent / "socket"))
    assert attachment.left == Leftovers([], [], own=False)


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([{"state": "refused", "why": "GPUAGENT_DISABLE is set"}], "GPUAGENT_DISABLE is set"),
        ([{"state": "refused", "why": "\x1b[2Jcleared"}], r"\\x1b\[2Jcleared"),
        ([{"state": "odd"}], "it did not say why"),
        ([], "did not run Python code within 0 s"),
    ],
)
def test_a_process_that_does_not_take_it(target: Target, base: Path, lines: list[dict[str, Any]], why: str) -> None:
    """It is said why, and no file stays; what was never run is replaced by an empty script."""
    other = Other(lines)
    with (
        pytest.raises(NotAttachable, match=why),
        attached(
            target.pid, client_directory=CLIENT, safe_point_seconds=0 if not lines else 30, base=str(base), inject=other
        ),
    ):
        raise AssertionError
    assert not list(base.iterdir())
    assert other.scripts[1:] == ([] if lines else ["/dev/null"])


@pytest.mark.parametrize(
    ("last", "said"),
    [
        (None, "did not say that the client was removed"),
        (DETACHED | {"threads": ["gpuagent-command"]}, "not all of the client was removed: gpuagent-command"),
        (DETACHED, "the client was removed"),
    ],
)
def test_what_is_left_is_said(target: Target, base: Path, last: dict[str, Any] | None, said: str) -> None:
    """No word is not a good word."""
    with attached(
        target.pid, client_directory=CLIENT, safe_point_seconds=30, base=str(base), inject=Other([STARTED], last)
    ) as attachment:
        pass
    assert said in describe(attachment.left)


def test_a_directory_that_others_can_write(tmp_path: Path) -> None:
    """Neither script nor client is put or taken where somebody else could exchange it."""
    folder = tmp_path / "open"
    (folder / "gpuagent_client").mkdir(parents=True)
    folder.chmod(0o777)
    own = os.getuid()
    with pytest.raises(NotAttachable, match="open"):
        check_base(str(folder), 0o700, own)
    with pytest.raises(NotAttachable, match="Others can change the client"):
        check_client(str(folder), {0, own})
    with pytest.raises(NotAttachable, match="There is no gpuagent_client"):
        check_client(str(tmp_path / "nothing"), {0, own})


def test_where_the_directory_is(tmp_path: Path) -> None:
    """The user's runtime directory, else the home; never /tmp."""
    for name in ("run", "home"):
        (tmp_path / name).mkdir()
    own = 1 if os.getuid() == 0 else os.getuid()
    environment = {"XDG_RUNTIME_DIR": str(tmp_path / "run"), "HOME": str(tmp_path / "home")}
    assert find_base(own, environment) == str(tmp_path / "run/gpuagent-attach")
    del environment["XDG_RUNTIME_DIR"]
    assert find_base(own, environment) == str(tmp_path / "home/.gpuagent-attach")
    assert stat.S_IMODE((tmp_path / "home/.gpuagent-attach").stat().st_mode) == 0o700


def test_another_user_who_connects_is_not_heard(target: Target, base: Path) -> None:
    """The kernel says who it is."""
    stranger = target._replace(uid=target.uid + 1)
    if os.getuid() == 0:
        pytest.skip("root would give the files to the other user")
    with Rendezvous(str(base), stranger, CLIENT) as meeting, socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(meeting.directory / "socket"))
        assert not meeting.accept(1)


@pytest.mark.parametrize(
    ("said", "scope", "words"),
    [
        ("PermissionError: [Errno 1]", "1", "ptrace_scope is 1: Run it as root"),
        ("PermissionError: [Errno 1]", "0", "does not let process 7 be attached to. Run it as root"),
        ("RuntimeError: no", "1", "cannot be attached to: RuntimeError: no"),
    ],
)
def test_why_the_kernel_does_not_allow_it(tmp_path: Path, said: str, scope: str, words: str) -> None:
    """Yama's setting is named where it is the reason."""
    (tmp_path / "scope").write_text(scope)
    assert words in explain(7, said, tmp_path / "scope")


def test_the_interpreter_that_injects_is_the_targets_own(target: Target) -> None:
    """A Python without `sys.remote_exec` says so, by its version."""
    if sys.version_info >= (3, 14):
        pytest.skip("this Python has it")
    with pytest.raises(NotAttachable, match=r"came with 3\.14"):
        module.run_injection(target, "/dev/null")
    with pytest.raises(NotAttachable, match="has ended"):
        module.run_injection(target._replace(start_ticks=0), "/dev/null")


def test_the_client_beside_the_agent_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is not installed, the way out is said."""
    assert Path(find_client(), "gpuagent_client/lifecycle.py").exists()
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(NotAttachable, match="--client"):
        find_client()
