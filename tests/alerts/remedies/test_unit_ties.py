"""Who ends by what systemd and logind do once processes have ended."""

from __future__ import annotations

import pwd
from collections.abc import Collection
from pathlib import Path

import pytest

from gpuagent_alerts.remedies.execution.unit_ends import UnitEnds
from gpuagent_alerts.remedies.facts.process_scan import UnseenProcesses
from gpuagent_alerts.remedies.facts.terminals import OpenFiles
from gpuagent_alerts.remedies.facts.ties import Tie
from gpuagent_alerts.remedies.facts.unit_ties import SystemdTieFinder
from tests.fakes.proc import FakeProc
from tests.fakes.units import Systemd

ALICE, BOB = 1001, 1002
USER = f"user.slice/user-{ALICE}.slice"
SESSION, MANAGER = f"{USER}/session-1.scope", f"{USER}/user@{ALICE}.service"
CONTAINER = f"system.slice/docker-{'a' * 64}.scope"


class NoOpenFiles(OpenFiles):
    """Nobody has a file open."""

    def list(self, pid: int, folder: str) -> list[int]:
        return []


class Node:
    """Processes in units, and a systemd that knows these units."""

    def __init__(self, linger: Path, **units: dict[str, str]) -> None:
        self.proc = FakeProc()
        self.linger = linger
        self.systemd = Systemd(**units)
        self.is_silent = False
        self.add(1, "init.scope", 0, parent=0, name="systemd")

    def add(self, pid: int, cgroup: str, uid: int = ALICE, *, parent: int = 1, name: str = "work") -> None:
        """Let a process run in a cgroup."""
        stat = f"{pid} ({name}) S {parent} {pid} {pid} 0 -1 0 {'0 ' * 10}1 0 {pid} 0 0 {'0 ' * 28}".encode()
        status = f"Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nNSpid:\t{pid}\nTracerPid:\t0\n".encode()
        self.proc.put(
            pid, stat, status=status, cgroup=f"0::/{cgroup}\n".encode(), loginuid=b"4294967295", sessionid=b"1"
        )

    def tied(self, *pids: int) -> dict[int, Tie]:
        """Return who ends with these."""
        ends = UnitEnds(self._show)
        finder = SystemdTieFinder(
            self.proc, ends=lambda: ends, linger=self.linger, user_of=self._user, pids=lambda: list(self.proc.files),
            open_files=NoOpenFiles(),
        )  # fmt: skip
        return dict(finder.find(pids))

    def _show(self, properties: Collection[str], units: Collection[str]) -> str:
        if self.is_silent:
            raise UnseenProcesses("systemd cannot be asked")
        return self.systemd.show(tuple(properties), tuple(units))

    @staticmethod
    def _user(uid: int) -> pwd.struct_passwd:
        return pwd.struct_passwd(("alice", "", uid, uid, "", "", ""))


@pytest.fixture
def bound(tmp_path: Path) -> Node:
    """Return a scope with one process of Alice's, and a service of Bob's that is bound to it."""
    node = Node(tmp_path, job_scope={"BoundBy": "other.service"}, other_service={"MainPID": "20"})
    node.add(10, "system.slice/job.scope")
    node.add(20, "system.slice/other.service", BOB)
    return node


def test_the_last_process_of_a_scope(bound: Node) -> None:
    """A unit that is bound to a scope ends with its last process, and not while another is in there."""
    (tie,) = bound.tied(10).values()
    assert (tie.row.pid, tie.may_be_own) == (20, False)
    assert tie.why == "in other.service; systemd stops it once job.scope has ended"
    bound.add(11, "system.slice/job.scope")
    assert not bound.tied(10)
    assert bound.tied(10, 11)


@pytest.mark.parametrize("parent_is_alone", [True, False])
def test_what_mostly_ends_with_the_last_one(bound: Node, parent_is_alone: bool) -> None:
    """Workers of the last process, and the script that waits for it, do not keep a scope."""
    bound.add(9, "system.slice/job.scope")
    bound.add(10, "system.slice/job.scope", parent=9)
    bound.add(12, "system.slice/job.scope", parent=10)
    if not parent_is_alone:
        bound.add(13, "system.slice/job.scope", parent=9)
    assert set(bound.tied(10)) == ({20} if parent_is_alone else set())


def test_the_main_process_of_a_service(tmp_path: Path) -> None:
    """A service ends with its main process, whoever else is in there; who depends on that ends along."""
    node = Node(
        tmp_path,
        own_service={"MainPID": "10", "BoundBy": "next.service"},
        next_service={"BoundBy": "last.service"},
        last_service={},
    )
    for pid, unit in ((10, "own"), (11, "own"), (20, "next"), (30, "last")):
        node.add(pid, f"system.slice/{unit}.service", BOB if pid > 11 else ALICE)
    assert set(node.tied(10)) == {20, 30}
    assert not node.tied(11)


def test_without_an_answer(bound: Node) -> None:
    """Where systemd cannot be asked, nobody can tell who ends; a container's scope is in nobody's unit file."""
    bound.is_silent = True
    with pytest.raises(UnseenProcesses):
        bound.tied(10)
    bound.add(40, CONTAINER)
    assert not bound.tied(40)
    bound.add(41, "docker/container")
    assert not bound.tied(41)


def test_a_unit_without_processes(bound: Node) -> None:
    """A unit that ends along and has no process, as a mount, cannot be judged: it withholds."""
    bound.proc.end(20)
    with pytest.raises(UnseenProcesses, match=r"other\.service ends with job\.scope"):
        bound.tied(10)


@pytest.fixture
def session(tmp_path: Path) -> Node:
    """Return a user's only session with one process, and a manager with a bus, an agent, and work."""
    manager = f"user@{ALICE}.service"
    units = {"session-1.scope": {"Wants": manager}, manager: {"MainPID": "30"}}
    node = Node(tmp_path)
    node.systemd.units |= units
    node.add(10, SESSION)
    node.add(30, f"{MANAGER}/init.scope", name="systemd")
    node.add(31, f"{MANAGER}/init.scope", parent=30, name="(sd-pam)")
    node.add(32, f"{MANAGER}/session.slice/dbus.service", parent=30, name="dbus-daemon")
    node.add(33, f"{MANAGER}/app.slice/gpg-agent.service", parent=30)
    node.add(34, f"{MANAGER}/app.slice/train.service", parent=30)
    return node


def test_the_last_session_of_a_user(session: Node) -> None:
    """Work in the user's manager ends with the last session, and is judged; what each login has is not work."""
    tied = session.tied(10)
    assert {pid: tie.is_own for pid, tie in tied.items()} == {33: True, 34: False}
    assert f"loginctl enable-linger {ALICE}" in tied[34].why
    assert f"in train.service of user@{ALICE}.service" in tied[34].why


def test_sessions_that_stay(session: Node) -> None:
    """Another process in a session of the user keeps the manager, and so does lingering."""
    session.add(11, f"{USER}/session-2.scope")
    assert not session.tied(10)
    assert set(session.tied(10, 11)) == {33, 34}
    session.proc.end(11)
    session.add(12, f"user.slice/user-{BOB}.slice/session-3.scope", BOB)
    assert set(session.tied(10)) == {33, 34}
    (session.linger / "alice").touch()
    assert not session.tied(10)


def test_work_of_the_manager_alone(session: Node) -> None:
    """A unit of the user's own manager ends no session."""
    assert not session.tied(34)
