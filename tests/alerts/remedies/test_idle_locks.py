"""Whether the machine may sleep or be powered off once processes have ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuagent_alerts.remedies.facts.process_scan import UnseenProcesses
from tests.alerts.remedies.unit_node import ALICE, Node, bound_node, session_node


@pytest.fixture
def bound(tmp_path: Path) -> Node:
    """Return a scope of Alice, and a service of Bob that is bound to it."""
    return bound_node(tmp_path)


@pytest.fixture
def session(tmp_path: Path) -> Node:
    """Return the only session of a user with a manager."""
    return session_node(tmp_path)


LOCK = "# private\nWHAT={what}\nMODE=block\nUID={uid}\nPID={holder}\nWHO=train\n"


@pytest.mark.parametrize(
    ("what", "holder", "action", "withheld"),
    [
        ("idle", 9, "poweroff", True),  # systemd-inhibit, which waits
        ("idle", 10, "suspend", True),
        ("sleep:idle", 10, "poweroff", True),
        ("sleep", 10, "poweroff", False),
        ("idle", 20, "poweroff", False),  # another one holds it
        ("idle", 10, "ignore", False),
        ("idle", 10, "lock", False),
        ("handle-lid-switch", 10, "poweroff", True),
        ("idle", 10, "", False),
    ],
)
def test_who_holds_the_machine_awake(bound: Node, what: str, holder: int, action: str, *, withheld: bool) -> None:
    """KILL-03: with the last lock the machine may be powered off, where it is told to be when idle."""
    bound.add(9, "somewhere")
    bound.add(30, "system.slice/another.scope", parent=9)
    bound.systemd.units["another.scope"] = {}
    bound.inhibitors.mkdir()
    (bound.inhibitors / "7").write_text(LOCK.format(what=what, holder=30 if holder == 10 else holder, uid=ALICE))
    folder = bound.configuration / "logind.conf.d"
    folder.mkdir(parents=True)
    (bound.configuration / "logind.conf").write_text("[Login]\n#IdleAction=reboot\n")
    (folder / "x.conf").write_text(f"[Login]\nIdleAction={action}\n")
    if not withheld:
        assert not bound.tied(30)
        return
    with pytest.raises(UnseenProcesses, match=f"holds the machine awake by a lock of logind, and IdleAction={action}"):
        bound.tied(30)


@pytest.mark.parametrize(
    ("taken_by", "uid", "held", "withheld"),
    [
        (99, ALICE, ["/dev/null", "/run/systemd/inhibit/7.ref"], "pid 30 holds"),  # the parent that took it has ended
        (20, ALICE, ["/run/systemd/inhibit/7.ref"], "pid 30 holds"),
        (99, 1002, ["/7.ref"], "pid 30 holds"),  # logind has started anew since
        (99, ALICE, ["/run/systemd/inhibit/8.ref"], ""),
        (99, ALICE, None, "pid 30 may hold"),
        (99, 0, None, "pid 30 may hold"),  # root may have handed it to anybody
        (99, "", None, "pid 30 may hold"),
        (99, 4444, None, ""),  # another user's, who would shield everybody
        (20, ALICE, None, ""),
    ],
)
def test_a_lock_that_was_inherited(
    bound: Node, taken_by: int, uid: int | str, held: list[str] | None, withheld: str
) -> None:
    """KILL-03: a lock ends with the last descriptor of its pipe, whoever has that, and not with who took it."""
    bound.add(30, "system.slice/another.scope")
    bound.systemd.units["another.scope"] = {}
    bound.inhibitors.mkdir()
    (bound.inhibitors / "7").write_text(LOCK.format(what="idle", holder=taken_by, uid=uid))
    bound.configuration.mkdir()
    (bound.configuration / "logind.conf").write_text("[Login]\nIdleAction=poweroff\n")
    bound.open_files.paths[30] = held
    if not withheld:
        assert not bound.tied(30)
        return
    with pytest.raises(UnseenProcesses, match=f"{withheld} the machine awake .* IdleAction=poweroff"):
        bound.tied(30)


def test_a_lock_about_the_lid(bound: Node) -> None:
    """KILL-03: without a lock on it, logind acts on a lid that is closed, by default and without IdleAction=."""
    bound.inhibitors.mkdir()
    (bound.inhibitors / "7").write_text(LOCK.format(what="sleep:handle-lid-switch", holder=10, uid=ALICE))
    with pytest.raises(UnseenProcesses, match="a closed lid"):
        bound.tied(10)


@pytest.mark.parametrize(("action", "withheld"), [("poweroff", True), ("lock", False), ("ignore", False)])
@pytest.mark.parametrize("by", ["scope", "login", "slice"])
def test_a_login_that_keeps_the_machine_awake(session: Node, action: str, by: str, *, withheld: bool) -> None:
    """KILL-03: a login without a terminal is never idle, so the machine may be once it ends: all of that withholds."""
    (session.linger / "alice").touch()
    session.systemd.units["job.scope"] = {}
    session.configuration.mkdir()
    (session.configuration / "logind.conf").write_text(f"[Login]\nIdleAction={action}\n")
    session.log_in("1", 10)
    session.add(50, "system.slice/job.scope")
    assert not session.tied(50)
    session.proc.files[50]["sessionid"] = b"1"
    target = {"scope": 10, "login": 50, "slice": 34}[by]
    if not withheld:
        assert not session.tied(target)
        return
    with pytest.raises(UnseenProcesses, match=r"may end with it, and IdleAction=poweroff is set"):
        session.tied(target)
