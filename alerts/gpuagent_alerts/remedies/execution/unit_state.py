"""What `systemctl show` says about a unit, and what of it speaks against a restart."""

from __future__ import annotations

import pwd
import re
import shlex
from collections.abc import Callable, Mapping, Sequence

UNIT = re.compile(r"[A-Za-z0-9:_.\\@-]{1,255}\.service")
_ANY_UNIT = re.compile(r"[A-Za-z0-9:_.\\@-]{1,255}")
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_DURATION = re.compile(r"([\d.]+)(us|ms|min|s|h|d|w)\b")
DEPENDENTS = ("RequiredBy", "RequisiteOf", "BoundBy", "ConsistsOf")
"""Units that a restart of this one restarts as well, where they are active: UNIT_ATOM_PROPAGATE_RESTART in systemd's
src/core/unit-dependency-atom.c."""
CONFLICTS = ("Conflicts", "ConflictedBy")
"""Units that a start of this one stops."""
STOPPED = ("PropagatesStopTo",)
"""Units that a stop of this one stops, a restart included, and that nobody starts again."""
_PULLED = ("Requires", "Requisite", "BindsTo", "Wants", "Upholds")
_STARTED_AT_ITS_END = ("OnSuccess", "OnFailure")
_JOB_MODES = {"OnSuccessJobMode": "OnSuccess", "OnFailureJobMode": "OnFailure"}
_PLAIN_JOB_MODES = frozenset({"", "fail", "replace"})
"""Job modes that touch no unit beside those that are named: `isolate` stops all others, `flush` drops their jobs."""
_SINCE_249 = frozenset({"OnSuccess", "OnSuccessJobMode", "Upholds", *STOPPED})
"""What an older systemd has not, and does not tell."""
_END_ACTIONS = ("SuccessAction", "FailureAction")
_LATER_ACTIONS = ("StartLimitAction", "JobTimeoutAction")
"""Properties with what systemd does to the machine when a start fails, or takes too long."""
_UNSET_UIDS = frozenset({"", "[not set]", str(2**32 - 1)})
PROPERTIES = (
    "Id", "Names", "LoadState", "ActiveState", "Job", "RefuseManualStart", "RefuseManualStop",
    "StartLimitBurst", "StartLimitIntervalUSec", "NRestarts", "ActiveEnterTimestampMonotonic", "MainPID", "ControlPID",
    "InactiveExitTimestampMonotonic",
    *_END_ACTIONS, *_LATER_ACTIONS, "UID", "User", "DynamicUser", "ControlGroup", *DEPENDENTS, *_PULLED, *CONFLICTS,
    *_STARTED_AT_ITS_END, *_JOB_MODES, *STOPPED, "StopWhenUnneeded", "FragmentPath", "DropInPaths",
    "NeedDaemonReload", "ExecCondition", "RuntimeDirectory", "RuntimeDirectoryPreserve", "RemoveIPC",
    "Group", "TTYVHangup", "SubState", "NotifyAccess",
)  # fmt: skip
STATE_PROPERTIES = ("ActiveState", "Id", "ConditionResult")
"""What is asked of a unit that has been restarted."""


class UnitState:
    """The properties of one unit."""

    def __init__(self, unit: str, output: str) -> None:
        """Read `output`, which `systemctl show` printed for `unit`, the name that was asked for."""
        self._unit = unit
        self._known = read_properties(output)

    @property
    def id(self) -> str:
        """The unit's own name, where `unit` may be an alias."""
        return self._known.get("Id", "")

    @property
    def names(self) -> frozenset[str]:
        """All names of the unit; none where systemd did not tell."""
        return _words(self._known.get("Names")) or frozenset()

    @property
    def is_down(self) -> bool:
        """Whether it is neither active nor on its way up or down."""
        return self._known.get("ActiveState") in {"inactive", "failed"}

    @property
    def is_up(self) -> bool:
        """Whether it is active, and stays so as far as systemd has planned: a start of it does nothing."""
        return self._known.get("ActiveState") in {"active", "reloading"} and self._known.get("Job", "") in {"", "0"}

    @property
    def cgroup(self) -> str:
        """Its path, as in `/system.slice/whisper.service`; "" while the unit has none."""
        return self._known.get("ControlGroup", "")

    @property
    def main_pid(self) -> int:
        """Its main process, 0 for none."""
        return _count(self._known.get("MainPID", "")) or 0

    @property
    def processes(self) -> Mapping[str, int]:
        """The processes that systemd ends with the unit wherever they run: property, and pid where there is one."""
        found = {name: _count(self._known.get(name, "")) or 0 for name in ("MainPID", "ControlPID")}
        return {name: pid for name, pid in found.items() if pid}

    def uid(self, uid_of: Callable[[str], pwd.struct_passwd] = pwd.getpwnam) -> int | None:
        """Return the user id under which systemd starts its processes; None where that cannot be told.

        systemd tells the id only of a unit that has `User=` or `DynamicUser=`, and only while it runs.
        """
        uid, user = self._known.get("UID", ""), self._known.get("User")
        if uid not in _UNSET_UIDS:
            return int(uid) if uid.isdigit() else None
        if user is None or self._known.get("DynamicUser") != "no":
            return None
        if user == "" or user.isdigit():
            return int(user or "0")
        try:
            return uid_of(user).pw_uid
        except (KeyError, OSError):
            return None

    def value(self, name: str) -> str | None:
        """Return a property as systemctl prints it; None where it did not."""
        return self._known.get(name)

    def units(self, settings: Sequence[str]) -> frozenset[str] | None:
        """Return the units that these settings name; None where systemd did not tell."""
        found = [_words(self._known.get(name, "" if name in _SINCE_249 else None)) for name in settings]
        return None if None in found else frozenset(unit for units in found for unit in units or ())

    def refusal(self, monotonic_seconds: float, own_restarts: Sequence[float]) -> str:
        """Return why the unit must not be restarted in this state; "" if it may.

        `own_restarts` is when the agent restarted it, in CLOCK_MONOTONIC as `monotonic_seconds`.
        """
        known = self._known
        if known.get("LoadState") != "loaded":
            return f"systemd has no unit {self._unit}"
        if not (UNIT.fullmatch(self.id) or self._is_target) or not {self._unit, self.id} <= self.names:
            return f"systemd did not tell the names of {self._unit}"
        if known.get("RefuseManualStart") == "yes" or known.get("RefuseManualStop") == "yes":
            return f"{self.id} refuses to be restarted by hand"
        if known.get("ActiveState") != "active":
            return f"{self.id} is {known.get('ActiveState') or 'in an unknown state'}, not active"
        if known.get("Job", "") not in {"", "0"}:
            return f"systemd has a job for {self.id} in its queue, which a restart could replace"
        limit = "" if self._is_target else self._against_start_limit(monotonic_seconds, own_restarts)
        return self._against_machine() or limit

    @property
    def _is_target(self) -> bool:
        """Whether it is a target, which has no start limit."""
        return self._unit == self.id and self.id.endswith(".target") and _ANY_UNIT.fullmatch(self.id) is not None

    def _against_machine(self) -> str:
        action = self.machine_action()
        return f"{self.id} has {action}: its end could set that off for the whole machine" if action else ""

    def machine_action(self) -> str:
        """Return what its end may do to the machine, such as `FailureAction=reboot`; "" for nothing."""
        found = {name: self._known.get(name) for name in _END_ACTIONS}
        found |= {name: self._known.get(name, "") for name in _LATER_ACTIONS}
        refused = [f"{name}={value or '?'}" for name, value in found.items() if value not in {"", "none"}]
        for mode, setting in _JOB_MODES.items():
            if self._known.get(mode, "") not in _PLAIN_JOB_MODES and self._known.get(setting):
                refused.append(f"{mode}={self._known[mode]}")
        return refused[0] if refused else ""

    def recent_start(self, monotonic_seconds: float) -> str:
        """Return why one more start, also of a unit that is down, could be one too many; "" where it is not.

        systemd does not tell how often a unit was started by others, so one start within the interval is enough.
        """
        if not self.id.endswith(".service"):
            return ""
        known = self._known
        burst, began = (_count(known.get(name, "")) for name in ("StartLimitBurst", "InactiveExitTimestampMonotonic"))
        if burst is None or began is None:
            return "and systemd did not tell when it was started"
        interval = known.get("StartLimitIntervalUSec", "infinity")
        if burst == 0 or began == 0 or monotonic_seconds - began / 1e6 > _seconds(interval):
            return ""
        return f"and was started less than {interval} ago, within its start limit of {burst}"

    def _against_start_limit(self, monotonic_seconds: float, own: Sequence[float]) -> str:
        """One start too many within the interval leaves the unit `failed`, and nobody starts it again (measured, v252).

        systemd does not tell when its automatic restarts were, so all of them count while the last start is recent. It
        does not count those by hand (NRestarts), which use up the limit as well: of these the agent knows its own.
        """
        known = self._known
        interval = _seconds(known.get("StartLimitIntervalUSec", "infinity"))
        burst = _count(known.get("StartLimitBurst", ""))
        entered = _count(known.get("ActiveEnterTimestampMonotonic", ""))
        restarts = _count(known.get("NRestarts", ""))
        if burst is None or entered is None or restarts is None:
            return f"systemd did not tell how often {self.id} was started"
        if burst == 0 or monotonic_seconds - entered / 1e6 > interval:
            return ""
        starts = 1 + restarts + sum(monotonic_seconds - each <= interval for each in own)
        if starts + 1 < burst:
            return ""
        limit = f"{starts} times within its start limit of {burst}"
        return f"{self.id} was started up to {limit}: one more could leave it down"


def states(output: str) -> list[UnitState]:
    """Return what `systemctl show` says of several units."""
    blocks = [block for block in output.split("\n\n") if block.strip()]
    return [UnitState(read_properties(block).get("Id", ""), block) for block in blocks]


def read_properties(output: str) -> dict[str, str]:
    """Return the properties that `systemctl show` prints of one unit, or of systemd itself."""
    return dict(line.split("=", 1) for line in output.split("\n") if "=" in line)


def _words(text: str | None) -> frozenset[str] | None:
    """Split a list of units; systemctl puts a name with a backslash in double quotes, as a shell would.

    None where one of them is no name of a unit.
    """
    try:
        words = None if text is None else shlex.split(text)
    except ValueError:
        return None
    return None if words is None or not all(map(_ANY_UNIT.fullmatch, words)) else frozenset(words)


def _count(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _seconds(text: str) -> float:
    """Read a duration as systemd writes it: `1min 30s`; `infinity`; `0`."""
    if text == "0":
        return 0.0
    parts = _DURATION.findall(text)
    return sum(float(number) * _UNITS[unit] for number, unit in parts) if parts else float("inf")
