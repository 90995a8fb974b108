"""What is asked of systemctl, with a program in its place that answers as systemd 252 does."""

from __future__ import annotations

import asyncio
import os
import shlex
import threading
from pathlib import Path
from typing import Any

import pytest

from gpuagent_alerts.remedies.execution.unit_queries import is_restart_denied
from gpuagent_alerts.remedies.execution.units import Systemctl
from gpuagent_alerts.remedies.facts.unit_processes import UnitProcesses
from gpuagent_alerts.remedies.observation import UnitPermission
from gpuagent_alerts.remedies.pinned_processes import ActionRefused
from gpuagent_alerts.remedies.safeguards.never_list import NEVER_UNITS, SHARED_UNITS
from tests.fakes import units
from tests.fakes.cgroups import CGROUP, UNIT, CgroupTree, unit_target

NOW = 1_000_000.0
ALICE = (1001, 1001, 1001, 1001)
STRICT = UnitPermission(never=NEVER_UNITS, known_shared=SHARED_UNITS)
SHARED = UnitPermission(shared=True, never=NEVER_UNITS, known_shared=SHARED_UNITS)


def shown(started_ago: float = 86_400, /, **changes: str | None) -> str:
    """What `systemctl show` prints about a healthy unit of user 1000, with changes; None leaves a line out."""
    started = f"{(NOW - started_ago) * 1e6:.0f}"
    own = {"ActiveEnterTimestampMonotonic": started, "UID": "1000", "User": "svc", "ControlGroup": CGROUP}
    return units.shown(UNIT, own | changes)


class Machine:
    """A unit with one process, others, and a systemctl that tells of them."""

    def __init__(
        self, folder: Path, show: str = "", restart: str = "exit 0", /, *, has_mounts: bool = True,
        **others: dict[str, str],
    ) -> None:  # fmt: skip
        self.folder = folder
        self.tree = CgroupTree(folder)
        self.tree.add(100)
        program = folder / "systemctl"
        self.tell(UNIT, show or shown())
        (folder / "unknown").write_text(units.shown("", units.UNKNOWN))
        for name, changes in others.items():
            unit = ".".join(name.rsplit("_", 1))
            self.tell(unit, units.shown(unit, changes))
        asked = f'cd {shlex.quote(str(folder))}; echo "$@" >> asked\n'
        program.write_text(f"{asked}{units.SCRIPT.format(folder=shlex.quote(str(folder)))}{restart}\n")
        processes = UnitProcesses(self.tree.proc, mountinfo=self.tree.mountinfo)
        self.systemctl = Systemctl(
            processes, ("sh", str(program)), monotonic=lambda: NOW, has_mounts=lambda: has_mounts
        )

    def tell(self, unit: str, show: str) -> None:
        """Have systemctl print this about a unit."""
        (self.folder / f"unit.{unit}").write_text(show)

    @property
    def restarts(self) -> list[str]:
        """What was asked of systemctl but for questions."""
        asked = self.folder / "asked"
        lines = asked.read_text().splitlines() if asked.exists() else []
        return [line for line in lines if not line.startswith("show")]

    def refusal(self, permission: UnitPermission = STRICT, **target: Any) -> str:
        """Why the unit must not be restarted."""
        return asyncio.run(self.systemctl.refusal(unit_target(**target), permission))

    def restart(self, permission: UnitPermission = STRICT, seconds: float = 5.0, **target: Any) -> Any:
        """Restart it."""
        return asyncio.run(self.systemctl.restart(unit_target(**target), permission, seconds))


@pytest.mark.parametrize(
    ("show", "word"),
    [
        (shown(LoadState="not-found"), "no unit"),
        ("", "no unit"),
        (shown(RefuseManualStop="yes"), "refuses"),
        (shown(5, NRestarts="3"), "start limit"),
        (shown(50, NRestarts="4", StartLimitIntervalUSec="1min 30s"), "start limit"),
        (shown(50, NRestarts="1", StartLimitBurst="2", StartLimitIntervalUSec="infinity"), "start limit"),
        *((shown(**{key: None}), "how often") for key in ("NRestarts", "StartLimitBurst")),
        (shown(ActiveEnterTimestampMonotonic=None), "how often"),
        *((shown(ActiveState=state), state) for state in ("inactive", "activating", "deactivating", "reloading")),
        (shown(ActiveState=None), "unknown state"),
        (shown(Job="417"), "job"),
        *(
            (shown(**{key: "reboot"}), f"{key}=reboot")
            for key in ("SuccessAction", "FailureAction", "StartLimitAction", "JobTimeoutAction")
        ),
        *(
            (shown(**{f"On{end}": "rescue.target", f"On{end}JobMode": "isolate"}), f"On{end}JobMode=isolate")
            for end in ("Success", "Failure")
        ),
        (shown(FailureAction=None), "FailureAction="),
        *((shown(Names=names), "names") for names in (None, "", "a b;c", '"open', "other.service")),
        (shown(Id=None), "names"),
        (shown(Id="x.scope", Names=f"{UNIT} x.scope"), "names"),
    ],
)
def test_left_alone(tmp_path: Path, show: str, word: str) -> None:
    """A unit that is not there, refuses, is on its way up or down, is not known, or that a start could leave failed.

    No permission lifts that.
    """
    machine = Machine(tmp_path, show or "Names=")
    for permission in (STRICT, SHARED):
        assert word in machine.refusal(permission)
        with pytest.raises(ActionRefused, match=word):
            machine.restart(permission)
    assert machine.restarts == []


@pytest.mark.parametrize(
    "show",
    [
        shown(5, NRestarts="2"),
        shown(11, NRestarts="4"),
        shown(5, NRestarts="100", StartLimitBurst="0"),
        shown(5, NRestarts="100", StartLimitIntervalUSec="0"),
        shown(2),
        shown(86_400, NRestarts="4", StartLimitIntervalUSec="1h"),
    ],
)
def test_may_be_restarted(tmp_path: Path, show: str) -> None:
    """Starts that are longer ago than the interval do not count, nor does a limit that is off."""
    assert Machine(tmp_path, show).refusal() == ""


@pytest.mark.parametrize("unit", ["", "--root=/x.service", "a b.service", "x.socket", "../x.service", "x.service\n"])
def test_names_that_are_none(tmp_path: Path, unit: str) -> None:
    """What is no name of a service never becomes an argument; nor does a unit of a user's own manager."""
    machine = Machine(tmp_path)
    assert "name of a service" in machine.refusal(unit=unit)
    assert "name of a service" in machine.refusal(SHARED, unit="user@1000.service/a.service")
    with pytest.raises(ActionRefused):
        machine.restart(SHARED, unit=unit)
    assert not (tmp_path / "asked").exists()


def test_restart(tmp_path: Path) -> None:
    """It asks for exactly this unit, and never for a password."""
    machine = Machine(tmp_path)
    assert machine.restart().ok
    assert machine.restarts == [f"--no-ask-password restart -- {UNIT}"]


def test_a_unit_that_is_down_after_its_restart(tmp_path: Path) -> None:
    """A restart that leaves the unit down is no success, whatever systemctl returns, and the result says so."""
    machine = Machine(
        tmp_path, shown(), f"sed -i 's/^ActiveState=.*/ActiveState=inactive\\nConditionResult=no/' unit.{UNIT}"
    )
    done = machine.restart()
    assert not done.ok
    assert done.taken
    assert f"{UNIT} was restarted, and is inactive now: a condition of it does not hold" in done.detail


def test_a_unit_whose_restart_fails(tmp_path: Path) -> None:
    """A unit that stays failed after its restart is told as down, whatever words its name or systemctl has."""
    said = f"Job for {UNIT} failed because of authentication that was denied."
    machine = Machine(
        tmp_path, shown(), f"sed -i 's/^ActiveState=.*/ActiveState=failed/' unit.{UNIT}; echo {said}; exit 1"
    )
    done = machine.restart()
    assert (done.ok, done.errno, done.taken) == (False, 0, True)
    assert f"{UNIT} was restarted, and is failed now; nobody starts it again; {said}" in done.detail


@pytest.mark.parametrize(("conditions", "status", "is_refused"), [("", 1, False), ("x", 1, True), ("x", 0, False)])
def test_conditions_of_the_start(tmp_path: Path, conditions: str, status: int, is_refused: bool) -> None:
    """A unit with a condition that does not hold now is not restarted: its stop alone would be done."""
    fragment = tmp_path / "fragment"
    fragment.write_text("[Unit]\n" + (f"ConditionPathExists=/{conditions}\n" if conditions else ""))
    machine = Machine(tmp_path, shown(FragmentPath=str(fragment)), f"exit {status}")
    assert ("conditions" in machine.refusal()) is is_refused


@pytest.mark.parametrize(
    ("condition", "has_mounts", "told"),
    [
        ("ConditionPathExists=/", True, True),
        ("AssertFileNotEmpty=/etc/passwd", True, True),
        ("ConditionPathExists=/", False, False),
        ("AssertDirectoryNotEmpty=/home", False, False),
        ("ConditionKernelVersion=>1", False, True),
        ("ConditionEnvironment=X", True, False),
        ("ConditionCapability=CAP_SYS_ADMIN", True, False),
        ("ConditionUser=root", True, False),
        ("ConditionKernelVersion=>1\nConditionSecurity=apparmor", True, False),
        ("ConditionOfTomorrow=yes", True, False),
    ],
)
def test_conditions_that_only_systemd_can_tell(tmp_path: Path, condition: str, has_mounts: bool, told: bool) -> None:
    """KILL-03: what is asked here goes by this program's environment, rights and mounts; systemd's are others."""
    fragment = tmp_path / "fragment"
    fragment.write_text(f"[Unit]\n{condition}\n")
    machine = Machine(tmp_path, shown(FragmentPath=str(fragment)), "exit 0", has_mounts=has_mounts)
    assert ("only systemd can tell" in machine.refusal()) is not told


@pytest.mark.parametrize(
    ("changed", "conditions", "refused"),
    [
        ("", "", False),
        ("", "ConditionPathExists=/", False),
        ("unit", "", True),
        ("drop-in", "", True),
        ("folder", "", False),
        ("folder", "ConditionPathExists=/", True),
        ("not told", "ConditionPathExists=/", False),
    ],
)
def test_files_that_systemd_may_not_have_loaded(tmp_path: Path, changed: str, conditions: str, refused: bool) -> None:
    """What was changed after systemd has loaded all units withholds, whatever time of modification it has."""
    folder, inside = tmp_path / "system", tmp_path / "system" / "unit"
    folder.mkdir()
    inside.write_text(f"[Unit]\n{conditions}\n")
    (tmp_path / "drop-in").write_text("")
    machine = Machine(tmp_path, shown(FragmentPath=str(inside), DropInPaths=str(tmp_path / "drop-in")))
    watched = {"unit": inside, "drop-in": tmp_path / "drop-in", "folder": folder}
    loaded = max(path.stat().st_ctime for path in watched.values()) + 1e-3
    if changed in watched:
        while watched[changed].stat().st_ctime <= loaded:
            os.utime(watched[changed], (1, 1))  # as `cp -p` does: only the ctime tells
    told = "" if changed == "not told" else f"UnitsLoadTimestampMonotonic={NOW * 1e6 - 5e6:.0f}\n"
    (tmp_path / "manager").write_text(f"UnitsLoadStartTimestampMonotonic=5000000\n{told}UnitPath=/none {folder}\n")
    program = ("sh", str(tmp_path / "systemctl"))
    processes = UnitProcesses(machine.tree.proc, mountinfo=machine.tree.mountinfo)
    machine.systemctl = Systemctl(processes, program, monotonic=lambda: NOW, now=lambda: loaded + 5)
    assert ("has changed since systemd loaded whisper.service" in machine.refusal()) is refused


def test_own_restarts_count(tmp_path: Path) -> None:
    """Those are not in systemd's own count, and use up the unit's limit as well."""
    machine = Machine(tmp_path, shown(5, StartLimitBurst="3"))
    assert machine.restart().ok
    assert "start limit" in machine.refusal()
    with pytest.raises(ActionRefused, match="start limit"):
        machine.restart()
    assert len(machine.restarts) == 1


NAMED = "authentication-denied.service"


@pytest.mark.parametrize(
    ("said", "unit", "is_denied"),
    [
        (
            f"Failed to restart {UNIT}: Access denied\nSee system logs and 'systemctl status {UNIT}' for details.",
            UNIT,
            True,
        ),
        (f"Failed to restart {UNIT}: Interactive authentication required.", UNIT, True),
        (
            f"Failed to restart {UNIT}: Access denied as the requested operation requires x",
            UNIT,
            True,
        ),
        ("Failed to connect to bus: Permission denied", UNIT, True),
        ("Failed to connect to system scope bus via local transport: Operation not permitted", UNIT, True),
        (
            "Failed to connect to bus: Operation not permitted (consider --machine=<user>@.host --user to connect)",
            UNIT,
            True,
        ),
        (f"Job for {NAMED} failed because the control process exited with error code.", NAMED, False),
        (f"Failed to restart {NAMED}: Transaction is destructive.", NAMED, False),
        (f"Job for {UNIT} failed because a timeout was exceeded.\nSee Access denied", UNIT, False),
        (f"A dependency job for {UNIT} failed. Failed to restart {UNIT}: Access denied", UNIT, False),
    ],
)
def test_restart_is_denied(tmp_path: Path, said: str, unit: str, is_denied: bool) -> None:
    """Polkit or the bus says no: told as a missing right, and nothing was done. The name of a unit says nothing."""
    assert is_restart_denied(said, unit) is is_denied
    if unit != UNIT:
        return
    done = Machine(tmp_path, shown(), f"echo {shlex.quote(said)} >&2; exit 4").restart()
    assert (done.ok, done.errno, done.taken) == (False, int(is_denied), not is_denied)
    assert said.partition("\n")[0] in done.detail


def test_what_systemctl_says_is_one_line(tmp_path: Path) -> None:
    """Its lines are parted by semicolons: no sign of a break is left for a terminal to show."""
    said = "printf 'Job failed.\\nSee systemctl status.\\n' >&2; exit 1"
    assert Machine(tmp_path, shown(), said).restart().detail == "Job failed.; See systemctl status."


def test_restart_hangs(tmp_path: Path) -> None:
    """A job that takes longer than its time is not waited for."""
    done = Machine(tmp_path, shown(), "exec sleep 1000").restart(seconds=0.2)
    assert not done.ok
    assert "longer" in done.detail


def test_no_systemd(tmp_path: Path) -> None:
    """Without systemctl nothing is restarted, and it is said why."""
    machine = Machine(tmp_path)
    machine.systemctl = Systemctl(UnitProcesses(machine.tree.proc), (str(tmp_path / "none"),))
    assert "cannot be asked" in machine.refusal()


def test_an_answer_without_end(tmp_path: Path) -> None:
    """Half an answer is none: the half that is missing may have the names of the units that depend on it."""
    machine = Machine(tmp_path, shown(RequiredBy=" ".join(f"unit{number}.service" for number in range(8000))))
    assert "too long" in machine.refusal()


def test_other_users_in_it(tmp_path: Path) -> None:
    """Nobody ends a colleague's work by a rule; the refusal says who they are and where to permit it."""
    machine = Machine(tmp_path)
    machine.tree.add(101, f"{CGROUP}/notebook", uids=(4_000_001,) * 4)
    refusal = machine.refusal()
    assert f"{UNIT} runs processes of other users: 4000001 (1); " in refusal
    assert "name it in remedies.allow.shared_units" in refusal
    assert "run systemctl yourself" in refusal
    with pytest.raises(ActionRefused, match="other users"):
        machine.restart()
    assert machine.restarts == []
    assert machine.refusal(SHARED) == ""
    assert machine.restart(SHARED).ok


@pytest.mark.parametrize("name", ["MainPID", "ControlPID"])
def test_a_main_process_outside_of_the_unit(tmp_path: Path, name: str) -> None:
    """KILL-03: a restart ends it too: no permission lifts that, also where its unit is restarted along."""
    machine = Machine(tmp_path, shown(**{name: "101"}))
    machine.tree.add(101, "/system.slice/other.service", uids=ALICE)
    for permission in (STRICT, SHARED):
        assert f"systemd has {name}=101 for {UNIT}" in machine.refusal(permission)
        with pytest.raises(ActionRefused, match="does not run in the unit"):
            machine.restart(permission)
    along = {"ControlGroup": "/system.slice/next.service", name: "101"}
    machine = Machine(_folder(tmp_path), shown(BoundBy="next.service"), next_service=along)
    machine.tree.add(101, "/system.slice/other.service", uids=ALICE)
    machine.tree.add(102, "/system.slice/next.service")
    assert f"systemd has {name}=101 for next.service" in machine.refusal(SHARED)
    assert machine.restarts == []


REACHING = {
    "ExecStop={ path=/usr/bin/pkill ; argv[]=/usr/bin/pkill -f vllm ; }": "ExecStop= runs pkill",
    "ExecStopPost={ argv[]=busctl call org.freedesktop.systemd1 /a b StopUnit ss z.service replace ; }": (
        "ExecStopPost= runs busctl"
    ),
    "ExecStartPost={ argv[]=dbus-send --system --dest=org.example.Told /told org.example.Told.Up ; }": "",
    "ExecStartPre={ path=/bin/sh ; argv[]=/bin/sh -c fuser -k 8000/tcp; sleep 1 ; }": "ExecStartPre= runs fuser",
    "ExecStartPre={ path=/bin/sh ; argv[]=/bin/sh -c cd /\n(killall vllm) ; }": "ExecStartPre= runs killall",
    "ExecStopPost={ path=/bin/kill ; argv[]=/bin/kill -9 -1 ; }": "ExecStopPost= runs kill -9 -1",
    "ExecStop={ path=/bin/kill ; argv[]=/bin/kill -s KILL -- -1 ; }": "ExecStop= runs kill -s KILL -- -1",
    "ExecStop={ path=/bin/kill ; argv[]=/bin/kill -s INT 100 ; }": "",
    "ExecStop={ path=/bin/kill ; argv[]=/bin/kill -1 $MAINPID ; }": "",
    "ExecStart={ path=/bin/serve ; argv[]=/bin/serve --fuser /opt/killall.py pkill-list skill/model ; }": "",
}


@pytest.mark.parametrize(("line", "words"), REACHING.items())
def test_a_program_of_the_unit_that_ends_others(tmp_path: Path, line: str, words: str) -> None:
    """KILL-03: what a restart runs may end others by their name; a unit that is named as shared may have that."""
    machine = Machine(tmp_path, shown() + line.replace("\\n", "\n") + "\n")
    refusal = machine.refusal()
    assert f"{UNIT} has {words}, which reaches what is not in the unit; " in refusal if words else refusal == ""
    assert machine.refusal(SHARED) == ""


@pytest.mark.parametrize(
    ("changes", "uids", "words"),
    [
        ({"UID": "1000"}, (1000,) * 4, ""),
        ({"UID": "61184", "DynamicUser": "yes", "User": "dyn"}, (61184,) * 4, ""),
        ({"UID": "[not set]", "User": ""}, (0,) * 4, ""),
        ({"UID": "4294967295", "User": "root"}, (0,) * 4, ""),
        ({"UID": None, "User": "0"}, (0,) * 4, ""),
        ({"UID": "[not set]", "User": ""}, (1000,) * 4, "other users"),
        ({"UID": "[not set]", "User": None}, (0,) * 4, "own user is unknown"),
        ({"UID": "[not set]", "DynamicUser": "yes", "User": ""}, (0,) * 4, "own user is unknown"),
        ({"UID": "[not set]", "DynamicUser": None, "User": ""}, (0,) * 4, "own user is unknown"),
        ({"UID": "[not set]", "User": "no-such-user-here"}, (0,) * 4, "own user is unknown"),
        ({"UID": "-1"}, (0,) * 4, "own user is unknown"),
    ],
)
def test_the_units_own_user(
    tmp_path: Path, changes: dict[str, str | None], uids: tuple[int, int, int, int], words: str
) -> None:
    """By systemd's word on the running unit, else by `User=`, root without one; unknown is nobody's."""
    machine = Machine(tmp_path, shown(**changes))
    machine.tree.proc.end(100)
    machine.tree.add(100, uids=uids)
    refusal = machine.refusal()
    assert (words in refusal) if words else refusal == ""


def test_a_name_with_an_escape(tmp_path: Path) -> None:
    """A name is read as systemctl prints it (measured, v252): plain by itself, in quotes and doubled in lists."""
    unit = r"a\x2db@1.service"
    cgroup = rf"/system.slice/system-a\x5cx2db.slice/{unit}"
    show = shown(Id=unit, Names=r'"a\\x2db@1.service"', ControlGroup=cgroup)
    machine = Machine(tmp_path)
    machine.tell(unit, show)
    machine.tree.add(7, cgroup)
    assert machine.refusal(pid=7, unit=unit) == ""
    assert machine.restart(pid=7, unit=unit).ok
    assert machine.restarts == [rf"--no-ask-password restart -- {unit}"]


def test_not_in_this_unit(tmp_path: Path) -> None:
    """A process that systemd does not count to the unit is no reason to restart it, whoever permits that."""
    machine = Machine(tmp_path)
    machine.tree.add(101, "/user.slice/user-1001.slice/whisper.service", uids=ALICE)
    for permission in (STRICT, SHARED):
        assert "pid 101 does not run in whisper.service according to systemd" in machine.refusal(permission, pid=101)


@pytest.mark.parametrize("alias", ["docker.service", "ssh.service"])
def test_an_alias_on_the_never_list(tmp_path: Path, alias: str) -> None:
    """A unit is judged by all of its names, and never restarted by an alias."""
    show = shown(Id=UNIT, Names=f"alias.service {alias} {UNIT}")
    machine = Machine(tmp_path)
    machine.tell("alias.service", show)
    for permission in (STRICT, SHARED):
        assert f"{alias} is on the never-list" in machine.refusal(permission, unit="alias.service")
    plain = Machine(_folder(tmp_path))
    plain.tell("alias.service", shown(Names=f"alias.service {UNIT}"))
    assert plain.restart(unit="alias.service").ok
    assert plain.restarts == [f"--no-ask-password restart -- {UNIT}"]


def test_an_alias_of_a_shared_unit(tmp_path: Path) -> None:
    """What is known to run others' jobs under one user is refused although no look could tell."""
    machine = Machine(tmp_path, shown(Names=f"{UNIT} gitlab-runner-a100.service"))
    assert "gitlab-runner-a100.service runs other people's work" in machine.refusal()
    assert machine.refusal(SHARED) == ""


def test_a_session_that_begins_after_the_decision(tmp_path: Path) -> None:
    """The look is repeated right before the restart."""
    machine = Machine(tmp_path)
    assert machine.refusal() == ""
    machine.tree.add(101, uids=ALICE)
    with pytest.raises(ActionRefused, match="other users"):
        machine.restart()
    assert machine.restarts == []


def test_proc_hangs(tmp_path: Path) -> None:
    """A look that does not come back is a refusal, and holds up nothing."""
    machine = Machine(tmp_path)
    os.mkfifo(tmp_path / "hangs")
    processes = UnitProcesses(machine.tree.proc, mountinfo=tmp_path / "hangs")
    program = ("sh", str(tmp_path / "systemctl"))
    machine.systemctl = Systemctl(processes, program, monotonic=lambda: NOW, look_seconds=0.05)
    assert "/proc, or a path of remedies.never, does not answer" in machine.refusal()
    (tmp_path / "hangs").open("wb").close()
    for thread in threading.enumerate():
        if thread.name == "unit processes":
            thread.join()


def _folder(inside: Path) -> Path:
    made = inside / "another"
    made.mkdir()
    return made
