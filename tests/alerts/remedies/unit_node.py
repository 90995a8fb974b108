"""A node with units for tests: processes in a fake /proc, and a systemd that knows their units."""

from __future__ import annotations

import pwd
from collections.abc import Collection
from pathlib import Path

from gpuagent.core.identity import ProcessId
from gpuagent_alerts.remedies.execution.unit_ends import UnitEnds
from gpuagent_alerts.remedies.facts.job_starters import SupervisorUnits
from gpuagent_alerts.remedies.facts.open_terminals import Device
from gpuagent_alerts.remedies.facts.process_scan import SystemdSilent
from gpuagent_alerts.remedies.facts.terminals import OpenFiles
from gpuagent_alerts.remedies.facts.ties import Tie, find_together, in_units
from gpuagent_alerts.remedies.facts.unit_ties import SystemdTieFinder
from tests.fakes.proc import FakeProc
from tests.fakes.units import Systemd

ALICE, BOB = 1001, 1002
USER = f"user.slice/user-{ALICE}.slice"
SESSION, MANAGER = f"{USER}/session-1.scope", f"{USER}/user@{ALICE}.service"
CONTAINER = f"system.slice/docker-{'a' * 64}.scope"


class KnownOpenFiles(OpenFiles):
    """Everybody has the files open that the test names; None for those that may not be seen."""

    def __init__(self) -> None:
        self.paths: dict[int, list[str] | None] = {}

    def list(self, pid: int, folder: str) -> list[int]:
        paths = self.paths.get(pid, [])
        if paths is None:
            raise PermissionError
        return list(range(len(paths)))

    def path(self, pid: int, folder: str, descriptor: int) -> str:
        return (self.paths[pid] or [])[descriptor]

    def info(self, pid: int, folder: str, descriptor: int) -> bytes:
        return b""

    def device(self, pid: int, folder: str, descriptor: int) -> Device | None:
        return None


class Node:
    """Processes in units, and a systemd that knows these units."""

    def __init__(self, linger: Path, **units: dict[str, str]) -> None:
        self.proc = FakeProc()
        self.linger = linger
        self.sessions = linger / "sessions"
        self.inhibitors = linger / "inhibit"
        self.configuration = linger / "etc"
        self.systemd = Systemd(**units)
        self.is_silent = False
        self.open_files = KnownOpenFiles()
        self.supervisors = SupervisorUnits()
        self.add(1, "init.scope", 0, parent=0, name="systemd")

    def add(self, pid: int, cgroup: str, uid: int = ALICE, *, parent: int = 1, name: str = "work") -> None:
        """Let a process run in a cgroup."""
        stat = f"{pid} ({name}) S {parent} {pid} {pid} 0 -1 0 {'0 ' * 10}1 0 {pid} 0 0 {'0 ' * 28}".encode()
        status = f"Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nNSpid:\t{pid}\nTracerPid:\t0\n".encode()
        self.proc.put(
            pid, stat, status=status, cgroup=f"0::/{cgroup}\n".encode(), loginuid=b"4294967295",
            sessionid=b"4294967295", exe=f"/usr/sbin/{name}".encode(), cmdline=f"/usr/sbin/{name}\0".encode(),
        )  # fmt: skip

    def log_in(self, name: str, leader: int, uid: int = ALICE, state: str = "active", kind: str = "user") -> None:
        """Let logind tell of a session."""
        self.sessions.mkdir(exist_ok=True)
        text = f"# private\nUID={uid}\nSTATE={state}\nCLASS={kind}\nSCOPE=session-{name}.scope\nLEADER={leader}\n"
        (self.sessions / name).write_text(text)

    def tied(self, *pids: int, ending: Collection[int] = ()) -> dict[int, Tie]:
        """Return who ends with these, where the end of others is asked for."""
        return dict(find_together(self.finder(), pids, [ProcessId("boot", pid, pid) for pid in ending]))

    def with_units(self, *pids: int) -> dict[int, Tie]:
        """Return who ends where the services of these end; none where they are judged otherwise."""
        finder = self.finder()
        seen = finder.scan()
        units = finder.beside_in_units(pids, seen)
        return dict(in_units(finder, units, pids, (), seen)) if units else {}

    def finder(self) -> SystemdTieFinder:
        """Return one that reads this node."""
        ends = UnitEnds(self._show)
        return SystemdTieFinder(
            self.proc, ends=lambda: ends, linger=self.linger, sessions=self.sessions, inhibitors=self.inhibitors,
            configurations=[str(self.configuration)], user_of=self._user,
            pids=lambda: list(self.proc.files), open_files=self.open_files, supervisors=self.supervisors,
        )  # fmt: skip

    def _show(self, properties: Collection[str], units: Collection[str]) -> str:
        if self.is_silent:
            raise SystemdSilent("systemd cannot be asked")
        return self.systemd.show(tuple(properties), tuple(units))

    @staticmethod
    def _user(uid: int) -> pwd.struct_passwd:
        return pwd.struct_passwd(("alice", "", uid, uid, "", "", ""))


def bound_node(tmp_path: Path) -> Node:
    """Return a scope with one process of Alice's, and a service of Bob's that is bound to it."""
    node = Node(tmp_path, job_scope={"BoundBy": "other.service"}, other_service={"MainPID": "20"})
    node.add(10, "system.slice/job.scope")
    node.add(20, "system.slice/other.service", BOB)
    return node


def session_node(tmp_path: Path) -> Node:
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
