"""Which login sessions there are, which of them are open, and who loses by the end of a user's last one.

logind writes a file for each session (`/run/systemd/sessions`), as root. A session begins to close when its leader has
ended. After the last one logind stops the user's own manager, and takes away `/run/user/UID` and, for ordinary users,
all of the user's shared memory and message queues (logind.conf(5), `RemoveIPC=`): so whoever works as that user
anywhere may lose by it. Only a process in other IPC and mount namespaces does not, as in a container of its own.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from gpuagent.procfs.files import ProcFiles
from gpuagent_alerts.remedies.facts.process_scan import HOST_INIT, ProcessScan
from gpuagent_alerts.remedies.facts.terminals import mounts_of

SESSIONS = Path("/run/systemd/sessions")
_NAME = re.compile(r"[A-Za-z0-9]{1,64}")
_LONGEST = 65536
_LIVES = frozenset({"active", "online"})
_KEEPS_ITS_USER = frozenset({"user", "user-early", "background"})
"""Classes of sessions for which the user's manager stays: not those of the manager itself, and no greeter."""
_ROOT = 0


class LoginSession(NamedTuple):
    """A session as logind tells of it."""

    name: str
    user_id: int
    scope: str
    leader: int
    """Pid with whose end the session begins to close; 0 where it is not told."""
    keeps_user: bool
    """It is open, and of a kind that keeps the user's manager."""


def read_sessions(folder: Path = SESSIONS) -> dict[str, LoginSession]:
    """Return the sessions by name; one that cannot be read is not among them, so it keeps nobody."""
    found: dict[str, LoginSession] = {}
    try:
        names = sorted(each.name for each in folder.iterdir() if _NAME.fullmatch(each.name))
    except OSError:
        return {}
    for name in names:
        try:
            with (folder / name).open(encoding="utf-8", errors="replace") as file:
                text = file.read(_LONGEST)
            told = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
            if told.get("CLASS", "").startswith("manager"):  # it is the user's own manager, and ends with it alone
                continue
            leader = told.get("LEADER", "")
            found[name] = LoginSession(
                name, int(told["UID"]), told.get("SCOPE", f"session-{name}.scope"),
                int(leader) if leader.isdigit() else 0,
                told.get("STATE") in _LIVES and told.get("CLASS") in _KEEPS_ITS_USER,
            )  # fmt: skip
        except (OSError, KeyError, ValueError):
            continue
    return found


def ancestors_of(scan: ProcessScan, pids: Collection[int]) -> frozenset[int]:
    """Return whoever these descend from: one of them may wait for one of these, and end with it."""
    found: set[int] = set()
    for pid in pids:
        row = scan.rows.get(pid)
        while row is not None and row.parent_pid not in found and row.parent_pid in scan.rows:
            found.add(row.parent_pid)
            row = scan.rows[row.parent_pid]
    return frozenset(found)


def users_of(scan: ProcessScan, user_id: int, files: ProcFiles) -> Iterator[int]:
    """Yield who works as this user and may lose what logind takes away.

    Root's shared memory stays, and half of the machine works as root: that is left to what is in the user's slice.
    """
    if user_id == _ROOT:
        return
    own = [row for row in scan.rows.values() if user_id in row.uids]
    host = _Namespaces(files, user_id) if own else None
    for row in own:
        if host is None or not host.is_apart(row.pid):
            yield row.pid


class _Namespaces:
    """What logind works on, by the namespaces of the machine's first process."""

    def __init__(self, files: ProcFiles, user_id: int) -> None:
        self._files = files
        self._points = ("/dev/shm", "/dev/mqueue", "/run", f"/run/user/{user_id}", "/dev")  # noqa: S108  mount points
        self._ipc = self._link(HOST_INIT)
        self._devices = self._taken_away()

    def is_apart(self, pid: int) -> bool:
        """Return whether it sees nothing of what is taken away; False where that cannot be seen."""
        ipc = self._link(pid)
        if not ipc or not self._ipc or ipc == self._ipc or not self._devices:
            return False
        try:
            return not any(each.device in self._devices for each in mounts_of(self._files.read(pid, "mountinfo")))
        except (OSError, ValueError):
            return False

    def _link(self, pid: int) -> str:
        try:
            return self._files.link(pid, "ns/ipc")
        except (OSError, ValueError):
            return ""

    def _taken_away(self) -> Collection[str]:
        try:
            mounts = list(mounts_of(self._files.read(HOST_INIT, "mountinfo")))
        except (OSError, ValueError):
            return ()
        return {each.device for each in mounts if each.point in self._points}


def ending_sessions(
    sessions: Mapping[str, LoginSession],
    scopes: Mapping[int, str],
    audit: Mapping[int, str],
    ended: Collection[int],
    above: Collection[int],
) -> frozenset[str]:
    """Return the names of the sessions that may end with these: by their scope, their leader, or their login.

    `scopes` has the session's scope of each process that is in one, `audit` the login that the kernel tells.
    """
    found = set()
    for pid in {*ended, *above}:
        if scope := scopes.get(pid):
            found.add(scope.removeprefix("session-").removesuffix(".scope"))
    for pid in ended:
        if (name := audit.get(pid, "")) in sessions:
            found.add(name)
    found.update(each.name for each in sessions.values() if each.leader in ended or each.leader in above)
    return frozenset(found)
