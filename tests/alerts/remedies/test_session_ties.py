"""Who ends by what logind does with sessions once processes have ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.alerts.remedies.unit_node import (
    ALICE,
    BOB,
    MANAGER,
    SESSION,
    USER,
    Node,
    session_node,
)


@pytest.fixture
def session(tmp_path: Path) -> Node:
    """Return the only session of a user with a manager."""
    return session_node(tmp_path)


def test_the_last_session_of_a_user(session: Node) -> None:
    """Work in the user's manager ends with the last session, and is judged; what each login has is not work."""
    tied = session.tied(10)
    assert {pid: tie.is_own for pid, tie in tied.items()} == {33: True, 34: False}
    assert f"loginctl enable-linger {ALICE}" in tied[34].why
    assert f"in train.service of user@{ALICE}.service" in tied[34].why


def test_sessions_that_stay(session: Node) -> None:
    """Lingering alone keeps the manager: another session may wait for the target unseen; who is in there is not hit."""
    session.add(11, f"{USER}/session-2.scope")
    session.log_in("2", 11)
    assert set(session.tied(10)) == set(session.tied(10, 11)) == {33, 34}
    session.proc.end(11)
    session.add(12, f"user.slice/user-{BOB}.slice/session-3.scope", BOB)
    session.log_in("3", 12, BOB)
    assert set(session.tied(10)) == {33, 34}
    (session.linger / "alice").touch()
    assert not session.tied(10)


@pytest.mark.parametrize(
    ("leader", "state", "kind"),
    [
        (11, "closing", "user"),
        (99, "active", "user"),
        (11, "active", "greeter"),
        (11, "", "user"),
        (9, "active", "user"),
    ],
)
def test_sessions_that_are_not_sure_to_stay(session: Node, leader: int, state: str, kind: str) -> None:
    """A session that closes, that logind does not tell of, or whose leader is gone or waits for the target, is none.

    Who lives in it is judged then too.
    """
    session.add(9, "system.slice/ssh.service", uid=0)
    session.add(10, SESSION, parent=9)
    session.add(11, f"{USER}/session-2.scope")
    session.log_in("2", leader, state=state, kind=kind)
    expected = {33, 34} if leader == 9 else {11, 33, 34}  # that one is in a session which logind does not close
    assert set(session.tied(10)) == expected


def test_who_holds_a_session(session: Node) -> None:
    """`su` and sshd wait as root, a pipe and a setuid program beside it: the session is taken to end all the same."""
    session.add(8, SESSION, uid=0, name="su")
    session.add(9, SESSION, parent=8)
    session.add(10, SESSION, parent=9)
    session.add(12, SESSION, parent=9, name="cat")
    session.add(13, SESSION, BOB, parent=8)
    assert set(session.tied(10)) == set(session.tied(13)) == {33, 34}


@pytest.mark.parametrize("by", ["ancestor", "login", "leader"])
def test_a_job_outside_of_its_session(session: Node, by: str) -> None:
    """A session waits for a job in another unit: told by descent, by the kernel's login, or by logind's leader."""
    session.systemd.units["job.scope"] = {}
    session.add(50, "system.slice/job.scope", parent=10 if by == "ancestor" else 1)
    session.log_in("1", 50 if by == "leader" else 10)
    if by == "login":
        session.proc.files[50]["sessionid"] = b"1"
    assert set(session.tied(50)) == {33, 34}


def test_the_session_of_the_manager_itself(session: Node) -> None:
    """A session that logind keeps for the user's manager ends with that alone."""
    session.log_in("4", 30, kind="manager")
    session.proc.files[34]["sessionid"] = b"4"
    session.log_in("1", 10)
    assert set(session.tied(34)) == {33}


@pytest.mark.parametrize(
    ("namespace", "mounts", "falls"),
    [
        ("host", "host", True), ("own", "own", False), ("own", "host", True), ("host", "own", True),
        ("own", "missing", True), ("missing", "own", True),
    ],
)  # fmt: skip
def test_who_works_as_the_user_elsewhere(session: Node, namespace: str, mounts: str, falls: bool) -> None:
    """/run/user and shared memory go with the last session; who sees neither, as in a container, loses nothing."""
    lines = {
        "host": b"30 1 0:26 / /dev/shm rw - tmpfs tmpfs rw\n31 1 0:40 / /run/user/1001 rw - tmpfs tmpfs rw\n",
        "own": b"50 1 0:90 / /dev/shm rw - tmpfs tmpfs rw\n",
    }
    session.proc.files[1] |= {"ns/ipc": b"ipc:[1]", "mountinfo": lines["host"]}
    session.systemd.units["own.service"] = {}
    session.add(40, "system.slice/own.service")
    session.add(41, "system.slice/own.service", BOB)
    if namespace != "missing":
        session.proc.files[40]["ns/ipc"] = b"ipc:[1]" if namespace == "host" else b"ipc:[2]"
    if mounts != "missing":
        session.proc.files[40]["mountinfo"] = lines[mounts]
    tied = session.tied(10)
    assert set(tied) == {33, 34} | ({40} if falls else set())
    assert not falls or f"enable-linger {ALICE}" in tied[40].why


@pytest.mark.parametrize("gone", [f"run-user-{ALICE}.mount", f"user-runtime-dir@{ALICE}.service"])
def test_what_is_bound_to_the_runtime_directory(session: Node, gone: str) -> None:
    """A service that is bound to the user's runtime directory ends with the last session.

    Another's also where the user lingers, who may have told the manager to exit: systemd of the system hears that late.
    """
    session.systemd.units |= {gone: {"BoundBy": "other.service"}, "other.service": {}}
    session.add(60, "system.slice/other.service", BOB)
    assert 60 in session.tied(10)
    (session.linger / "alice").touch()
    assert set(session.tied(10)) == {60}
    assert f"user {ALICE} may have told that manager to exit" in session.tied(10)[60].why
    session.add(60, "system.slice/other.service", ALICE)
    assert not session.tied(10)


@pytest.mark.parametrize(
    "state",
    [
        {"ActiveState": "deactivating", "SubState": "stop-sigterm"}, {"SubState": "reload"}, {"Job": "17"},
        {"ActiveState": "activating", "SubState": "start"}, {"SubState": None},
    ],
)  # fmt: skip
def test_a_manager_on_its_way_down(session: Node, state: dict[str, str]) -> None:
    """KILL-03: the manager of one who lingers keeps nothing once systemd stops it, though its process still runs."""
    (session.linger / "alice").touch()
    assert not session.tied(10)
    session.systemd.units[f"user@{ALICE}.service"] = {"MainPID": "30", **state}
    assert set(session.tied(10)) == {33, 34}


def test_what_a_user_who_lingers_keeps(session: Node) -> None:
    """Slice and runtime directory of a user are stopped when nobody needs them: a manager that lingers needs them."""
    unneeded, of_user = {"StopWhenUnneeded": "yes"}, f"user-{ALICE}.slice user-runtime-dir@{ALICE}.service"
    for name in of_user.split():
        session.systemd.units[name] = unneeded | {"RequiredBy": f"user@{ALICE}.service session-2.scope"}
    session.systemd.units |= {
        "session-1.scope": {"Requires": of_user}, "session-2.scope": {"Requires": of_user},
        f"user@{ALICE}.service": {"MainPID": "30", "Requires": of_user},
    }  # fmt: skip
    session.add(11, f"{USER}/session-2.scope")
    session.log_in("2", 11)
    (session.linger / "alice").touch()
    assert not session.tied(10)
    assert not session.tied(34)
    assert {33, 34} < set(session.tied(30))  # the manager itself
    (session.linger / "alice").unlink()
    assert set(session.tied(10)) == {33, 34}
    (session.linger / "alice").touch()
    session.proc.end(30)  # the manager of one who lingers may have ended: then nothing is kept
    assert set(session.tied(10)) == {33, 34}


def test_work_of_the_manager_alone(session: Node) -> None:
    """A session may wait for a unit of the user's own manager (`systemd-run --wait`): others in there withhold."""
    session.log_in("1", 10)
    assert {pid: tie.is_own for pid, tie in session.tied(34).items()} == {33: True}
    session.add(35, f"{MANAGER}/app.slice/notebook.service", parent=30)
    assert set(session.tied(34)) == {33, 35}


def test_the_last_two_sessions(session: Node) -> None:
    """Neither of two sessions keeps the manager for the other, whether the end of both is asked for or not."""
    session.add(11, f"{USER}/session-2.scope")
    session.log_in("1", 10)
    session.log_in("2", 11)
    for one, other in ((10, 11), (11, 10)):
        assert set(session.tied(one)) == set(session.tied(one, ending=[other])) == {33, 34}
    session.proc.end(11)
    assert set(session.tied(10, ending=[11])) == {33, 34}  # it has ended: nobody is named


def test_whom_the_other_takes_along_alone(session: Node) -> None:
    """Who is tied to the other one alone was judged with that; who is tied to this one alone stays so."""
    session.systemd.units |= {"job.scope": {"BoundBy": "other.service"}, "other.service": {}, "next.scope": {}}
    session.add(50, "system.slice/job.scope", BOB)
    session.add(60, "system.slice/other.service", BOB)
    session.add(70, "system.slice/next.scope", BOB)
    assert not session.tied(70, ending=[10, 50])
    assert set(session.tied(50, ending=[10])) == {60}
    assert set(session.tied(50, ending=[60, 10])) == {60}
