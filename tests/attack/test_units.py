"""`restart_unit` on units in which others work: their processes would go with it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.attack.arena import Arena, ladder
from tests.attack.processes import Living
from tests.fakes.units import SCRIPT, UNKNOWN, shown

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

RESTART = {"restart_unit": {"wait": "5s"}}
NOTICE = {"notify": {"wait": "3s"}}
TERMINAL = """
ours, theirs = pty.openpty()
os.setsid()
fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
print('ready', flush=True)
signal.pause()
"""
RESTART_SCRIPT = """
for unit; do :; done
case "$*" in *restart*) kill $(find {root}/system.slice/$unit -name cgroup.procs -exec cat {{}} +);; esac
"""


class Units:
    """Units with real cgroups, and a systemctl that ends what is in them as a restart would."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        programs = arena.folder / "bin"
        programs.mkdir()
        script = (SCRIPT + RESTART_SCRIPT).format(folder=arena.folder, root=arena.cgroups.root)
        (arena.folder / "unknown").write_text(shown("", UNKNOWN), encoding="utf-8")
        (programs / "systemctl").write_text(script, encoding="utf-8")
        (programs / "systemctl").chmod(0o755)
        arena.search_path = str(programs)

    def add(self, unit: str, uid: int, **more: str) -> str:
        """Add an active unit that runs as this user."""
        own = {"UID": str(uid), "User": str(uid), "ControlGroup": f"/system.slice/{unit}"}
        about = shown(unit, own | more)
        (self._arena.folder / f"unit.{unit}").write_text(about, encoding="utf-8")
        return unit

    def move(self, living: Living, unit: str) -> None:
        """Move a process at once from the unit that it is in to the same place of another."""
        (path,) = re.findall(r"^0::/(system\.slice/.*)$", Path(f"/proc/{living.pid}/cgroup").read_text(), re.MULTILINE)
        below = "/".join(path.split("/")[2:])
        place = self._arena.cgroups.make(f"system.slice/{unit}/{below}")
        (place / "cgroup.procs").write_text(str(living.pid), encoding="ascii")

    def start(self, unit: str, uid: int, below: str = "") -> Living:
        """Start a process in a unit, or in a cgroup below it."""
        return self._arena.crowd.start(uid, cgroup=self._arena.cgroups.make(f"system.slice/{unit}{below}"))


def another_users(arena: Arena, units: Units, unit: str, uid: int) -> Living:
    """Start a process of another user in the unit."""
    assert uid
    return units.start(unit, next(arena.uids))


def another_users_deep_inside(arena: Arena, units: Units, unit: str, uid: int) -> Living:
    """Start it in a cgroup below the unit's, as a service does with `Delegate=yes`."""
    assert uid
    return units.start(unit, next(arena.uids), "/sessions/one")


def of_a_login(arena: Arena, units: Units, unit: str, uid: int) -> Living:
    """Start a process of the unit's own user that has a terminal: somebody works there."""
    assert units
    cgroup = arena.cgroups.make(f"system.slice/{unit}")
    return arena.crowd.python(TERMINAL, uid, cgroup=cgroup)


def of_the_never_list(arena: Arena, units: Units, unit: str, uid: int) -> Living:
    """Start one of the unit's own user that no remedy may end."""
    assert units
    return arena.crowd.start(uid, name="sshd", cgroup=arena.cgroups.make(f"system.slice/{unit}"))


Other = Callable[[Arena, Units, str, int], Living]


@pytest.mark.parametrize(
    "other", [another_users, another_users_deep_inside, of_a_login, of_the_never_list],
    ids=lambda each: each.__name__.replace("_", " "),
)  # fmt: skip
@pytest.mark.parametrize("when", ["before", "after the notice"])
def test_a_unit_in_which_others_work(arena: Arena, other: Other, when: str) -> None:
    """KILL-03: a unit with other people's processes is not restarted; one with its own alone is."""
    uid, units = next(arena.uids), Units(arena)
    shared, own = units.add(f"shared-{uid}.service", uid), units.add(f"own-{uid}.service", uid)
    greedy = units.start(shared, uid)
    # To start a process may take longer than the notice: who comes after it waits in a unit that nobody means.
    newcomer = arena.innocent(other(arena, units, shared if when == "before" else f"waits-{uid}.service", uid))
    arena.innocent(greedy)
    arena.driver.hold(greedy.pid, 30)
    arena.start(ladders=[ladder("TooMuch", NOTICE, RESTART)], units=[shared, own])
    if when != "before":
        arena.step_of(greedy.pid)
        units.move(newcomer, shared)
    assert shared in arena.refused(greedy)
    guilty = arena.culprit(units.start(own, uid))
    arena.driver.hold(guilty.pid, 25)
    arena.judge()


def test_a_unit_that_stops_another(arena: Arena) -> None:
    """KILL-03: a unit whose stop is passed on to another one is not restarted, as nobody would start that again."""
    uid, units = next(arena.uids), Units(arena)
    other = units.add(f"other-{uid}.service", next(arena.uids))
    stops = units.add(f"stops-{uid}.service", uid, PropagatesStopTo=other)
    own = units.add(f"own-{uid}.service", uid)
    greedy = arena.innocent(units.start(stops, uid))
    arena.innocent(units.start(other, next(arena.uids)))
    arena.driver.hold(greedy.pid, 30)
    arena.start(ladders=[ladder("TooMuch", RESTART)], units=[stops, own])
    assert f"stops, for good, {other}" in arena.refused(greedy)
    guilty = arena.culprit(units.start(own, uid))
    arena.driver.hold(guilty.pid, 25)
    arena.judge()


@pytest.mark.parametrize("tie", ["BoundBy", "OnSuccess"])
def test_the_last_process_of_a_scope(arena: Arena, tie: str) -> None:
    """KILL-03: nobody is ended by a signal whose end has systemd stop another user's unit."""
    uid, units = next(arena.uids), Units(arena)
    other, helper = units.add(f"innocent-{uid}.service", next(arena.uids)), f"helper-{uid}.service"
    units.add(helper, 0, ActiveState="inactive", Conflicts=other)
    bound = units.add(f"bound-{uid}.scope", uid, **{tie: other if tie == "BoundBy" else helper})
    own = units.add(f"own-{uid}.scope", uid)
    greedy = arena.innocent(units.start(bound, uid))
    arena.innocent(units.start(other, next(arena.uids)))
    arena.driver.hold(greedy.pid, 30)
    arena.start(ladders=[ladder("TooMuch")], users=[str(uid)])
    assert other in arena.refused(greedy)
    guilty = arena.culprit(units.start(own, uid))
    arena.driver.hold(guilty.pid, 25)
    arena.judge()


def test_a_unit_that_a_user_has_named(arena: Arena) -> None:
    """KILL-03: a user's own cgroup with the name of a system's unit has nobody restart that one."""
    uid, units = next(arena.uids), Units(arena)
    attacked, own = units.add(f"attacked-{uid}.service", uid), units.add(f"own-{uid}.service", uid)
    arena.innocent(units.start(attacked, uid))
    attacker = next(arena.uids)
    below = arena.cgroups.users_own(attacker)
    for path in (below / "system.slice" / attacked, below / attacked):
        liar = arena.crowd.start(attacker, cgroup=arena.cgroups.make_as(attacker, path))
        arena.driver.hold(liar.pid, 21)
    arena.start(ladders=[ladder("TooMuch", RESTART)], units=[attacked, own])
    assert "is not in remedies.allow.units" in arena.refused(liar)
    guilty = arena.culprit(units.start(own, uid))
    arena.driver.hold(guilty.pid, 25)
    arena.judge()
