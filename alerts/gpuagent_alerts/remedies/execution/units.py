"""Restart a systemd unit, or refuse where that could take it down for good or end other people's work.

Through `systemctl`, which asks polkit: the agent's own user may restart exactly the units that a polkit rule names.
`UnitState` is what `systemctl show` says about a unit, and what of it speaks against a restart.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import re
import shlex
import shutil
import time
from collections.abc import Callable, Sequence

from gpuagent.core.background import in_daemon_thread
from gpuagent_alerts.programs.run import SEARCH_PATH
from gpuagent_alerts.remedies.facts.never_entries import NO_ANSWER
from gpuagent_alerts.remedies.facts.unit_processes import UnitProcesses
from gpuagent_alerts.remedies.files.programs import ProgramCheck
from gpuagent_alerts.remedies.observation import SHARED_WAY_OUT, ActionResult, UnitPermission
from gpuagent_alerts.remedies.pinned_processes import ActionRefused
from gpuagent_alerts.remedies.target import Target

_ASK_SECONDS = 5.0
LOOK_SECONDS = 5.0
"""A read of /proc that takes longer hangs in the kernel. Thousands of processes are read in less than a second."""
_OUTPUT = 64 * 1024
_DETAIL = 4096
_OWN_KEPT = 100
_MOST_DEPENDENTS = 64
_MOST_STARTED = 256
_NAMED = 3
_NOT_RUN = 127
"""Status of a program that could not be started, as a shell has it."""
UNIT = re.compile(r"[A-Za-z0-9:_.\\@-]{1,255}\.service")
_ANY_UNIT = re.compile(r"[A-Za-z0-9:_.\\@-]{1,255}")
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_DURATION = re.compile(r"([\d.]+)(us|ms|min|s|h|d|w)\b")
_DEPENDENTS = ("RequiredBy", "RequisiteOf", "BoundBy", "ConsistsOf")
"""Units that a restart of this one restarts as well, where they are active: UNIT_ATOM_PROPAGATE_RESTART in systemd's
src/core/unit-dependency-atom.c."""
_PULLED = ("Requires", "BindsTo", "Wants")
"""Units that a start of this one starts as well: UNIT_ATOM_PULL_IN_START and _IGNORED there. `Upholds=`, which is
newer, starts them whether or not this one is restarted."""
_CONFLICTS = ("Conflicts", "ConflictedBy")
"""Units that a start of this one stops."""
_STARTED_AT_ITS_END = ("OnSuccess", "OnFailure")
"""Units that its end starts, a restart included."""
_STOPPED = ("PropagatesStopTo",)
"""Units that a stop of this one stops, a restart included, and that nobody starts again."""
_ISOLATING = ("OnSuccessJobMode", "OnFailureJobMode")
_SINCE_249 = frozenset({"OnSuccess", "OnSuccessJobMode", *_STOPPED})
"""What an older systemd has not, and does not tell."""
_END_ACTIONS = ("SuccessAction", "FailureAction")
_LATER_ACTIONS = ("StartLimitAction", "JobTimeoutAction")
"""Likewise of a start that fails, or takes too long."""
_UNSET_UIDS = frozenset({"", "[not set]", str(2**32 - 1)})
PROPERTIES = (
    "Id", "Names", "LoadState", "ActiveState", "Job", "RefuseManualStart", "RefuseManualStop",
    "StartLimitBurst", "StartLimitIntervalUSec", "NRestarts", "ActiveEnterTimestampMonotonic",
    *_END_ACTIONS, *_LATER_ACTIONS, "UID", "User", "DynamicUser", "ControlGroup", *_DEPENDENTS, *_PULLED, *_CONFLICTS,
    *_STARTED_AT_ITS_END, *_ISOLATING, *_STOPPED,
)  # fmt: skip
STARTED_PROPERTIES = ("Id", "ActiveState", *_PULLED, *_CONFLICTS)
"""Of units that are started with another one."""
STOPPED_PROPERTIES = ("Id", "ActiveState", *_DEPENDENTS, *_STOPPED)
"""Of units that are restarted with another one."""


class Systemctl:
    """Runs `systemctl` without a shell; a name from a cgroup is checked before it becomes an argument."""

    def __init__(
        self,
        processes: UnitProcesses,
        program: Sequence[str] = (),
        *,
        search_path: str | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        """`monotonic` is CLOCK_MONOTONIC, by which systemd tells when a unit was started.

        `program` is run as it is given. Without it, `systemctl` is looked for in `search_path` (by default the
        agent's PATH) before each run, and must be one that only root and the agent's user can change.
        """
        self._look_seconds = look_seconds
        self._processes = processes
        self._program = tuple(program)
        self._search_path = search_path or os.environ.get("PATH") or SEARCH_PATH
        self._monotonic = monotonic
        self._restarted: dict[str, list[float]] = {}

    async def refusal(self, target: Target, permission: UnitPermission) -> str:
        """Return why the target's unit must not be restarted now; "" if it may. Raises ProcessEnded."""
        return (await self._judge(target, permission))[1]

    async def restart(self, target: Target, permission: UnitPermission, deadline_seconds: float) -> ActionResult:
        """Look again whether its unit may be restarted, then restart it and wait for that.

        Others may log in or start work at any time, so the look comes last. Raises ActionRefused where the unit must
        not be restarted, and ProcessEnded where the target has ended.
        """
        unit, refusal = await self._judge(target, permission)
        if refusal:
            raise ActionRefused(refusal)
        self._restarted[unit] = [*self._restarted.get(unit, ()), self._monotonic()][-_OWN_KEPT:]
        code, output = await self._run("--no-ask-password", "restart", "--", unit, seconds=deadline_seconds)
        if code is None:
            return ActionResult(ok=False, detail=f"systemctl restart {unit} took longer than {deadline_seconds:.0f} s")
        denied = "denied" in output or "authentication" in output
        taken = code != _NOT_RUN and not (code and denied)
        return ActionResult(code == 0, _detail(output) if code else "", errno=1 if code and denied else 0, taken=taken)

    async def _judge(self, target: Target, permission: UnitPermission) -> tuple[str, str]:
        """Return the unit's own name and why it must not be restarted: facts first that no permission changes."""
        if not UNIT.fullmatch(target.unit):
            return "", f"{target.unit!r} is not the name of a service"
        output, failure = await self._show(PROPERTIES, target.unit)
        if failure:
            return "", f"systemd cannot be asked about {target.unit}: {failure}"
        state = UnitState(target.unit, output)
        refusal = (
            state.refusal(self._monotonic(), self._restarted.get(state.id, ()))
            or permission.against(state.names)
            or await self._against_conflicts(state)
            or await self._in_thread(lambda: self._processes.not_in_unit(target, state.id, state.cgroup))
            or await self._in_thread(lambda: self._processes.never_ended(state.id, state.cgroup, permission))
        )
        if not refusal and not permission.shared:
            sharing = await self._against_dependents(state) or await self._in_thread(lambda: self._shared(state))
            refusal = f"{sharing}; {SHARED_WAY_OUT}" if sharing else ""
        refusal = refusal or await self._against_stops(state)
        if not refusal:
            refusal = await self._in_thread(lambda: self._processes.tied_with(state.id, state.cgroup, permission))
        return state.id, refusal

    def _shared(self, state: UnitState) -> str:
        """Resolve the unit's user, which may ask a directory server, and look at its processes: in a thread."""
        uid = state.uid()
        if uid is None:
            return f"it cannot be seen whose processes {state.id} runs: its own user is unknown"
        return self._processes.shared_with(state.id, state.cgroup, uid)

    async def _against_dependents(self, state: UnitState) -> str:
        """Return which other units a restart would restart as well; "" for none."""
        units = state.dependents
        unseen = f"it cannot be seen which units are restarted together with {state.id}"
        if units is None or len(units) > _MOST_DEPENDENTS:
            return unseen
        return await self._named_active(units, f"restarting {state.id} also restarts", unseen)

    async def _against_conflicts(self, state: UnitState) -> str:
        """Return which other units a restart would stop: those that conflict with it, or with one that it starts."""
        unseen = f"it cannot be seen which units are stopped when {state.id} is started"
        conflicts, wanted, at_its_end = state.conflicts, state.pulled, state.started_at_its_end
        if wanted is not None:
            wanted = None if at_its_end is None else wanted | at_its_end
        known = {state.id}
        while conflicts is not None and wanted is not None and (new := wanted - known):
            known |= new
            if len(known) > _MOST_STARTED:
                return unseen
            output, failure = await self._show(STARTED_PROPERTIES, *sorted(new))
            if failure:
                return f"{unseen}: {failure}"
            for started in states(output):
                if started.is_down:  # what is up already is not started
                    if started.conflicts is None or started.pulled is None:
                        return unseen
                    conflicts, wanted = conflicts | started.conflicts, wanted | started.pulled
        if conflicts is None or wanted is None:
            return unseen
        return await self._named_active(conflicts - {state.id}, f"starting {state.id} stops", unseen)

    async def _against_stops(self, state: UnitState) -> str:
        """Return which other units a restart would stop for good: its own, and those of units restarted with it."""
        unseen = f"it cannot be seen which units are stopped together with {state.id}"
        stopped, reached, known = state.stopped, state.dependents, {state.id}
        while stopped is not None and reached is not None and (new := (reached | stopped) - known):
            known |= new
            if len(known) > _MOST_STARTED:
                return unseen
            output, failure = await self._show(STOPPED_PROPERTIES, *sorted(new))
            if failure:
                return f"{unseen}: {failure}"
            for other in states(output):
                if other.is_down:  # a unit that is not up is not restarted
                    continue
                if other.stopped is None or other.dependents is None:
                    return unseen
                stopped, reached = stopped | other.stopped, reached | other.dependents
        if stopped is None or reached is None:
            return unseen
        return await self._named_active(stopped - {state.id}, f"restarting {state.id} stops, for good,", unseen)

    async def _named_active(self, units: frozenset[str], what: str, unseen: str) -> str:
        """Return `what` with the names of those that are active; "" if none is."""
        if not units:
            return ""
        if len(units) > _MOST_STARTED:
            return unseen
        output, failure = await self._show(("Id", "ActiveState"), *sorted(units))
        if failure:
            return f"{unseen}: {failure}"
        active = active_units(output)
        more = f" and {len(active) - _NAMED} others" if len(active) > _NAMED else ""
        return f"{what} {', '.join(active[:_NAMED])}{more}" if active else ""

    async def _in_thread(self, look: Callable[[], str]) -> str:
        try:
            async with asyncio.timeout(self._look_seconds):
                return await in_daemon_thread(look, "unit processes")
        except TimeoutError:
            return f"it cannot be seen whose processes the unit runs: {NO_ANSWER}"

    async def _show(self, properties: Sequence[str], *units: str) -> tuple[str, str]:
        """Return what systemctl printed, and why that is of no use."""
        code, output = await self._run("show", "--property", ",".join(properties), "--", *units, seconds=_ASK_SECONDS)
        if code != 0:
            return "", _detail(output) or f"systemctl failed with status {code}"
        return output, "its answer is too long" if len(output) > _OUTPUT else ""

    def _find_program(self) -> tuple[tuple[str, ...], str]:
        """Return the program to run, and why there is none."""
        if self._program:
            return self._program, ""
        found = shutil.which("systemctl", path=self._search_path)
        if found is None:
            return (), f"there is no systemctl in {self._search_path}"
        return (found,), ProgramCheck()((found,))

    async def _run(self, *arguments: str, seconds: float) -> tuple[int | None, str]:
        program, fault = await in_daemon_thread(self._find_program, "systemctl")
        if fault:
            return _NOT_RUN, f"systemctl is not run: {fault}"
        try:
            process = await asyncio.create_subprocess_exec(
                *program, *arguments,
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
        except OSError as error:
            return _NOT_RUN, f"{program[0]}: {error.strerror}"
        try:
            async with asyncio.timeout(seconds):
                output, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            return None, "no answer"
        return process.returncode, output[: _OUTPUT + 1].decode("utf-8", "surrogateescape")


def _detail(output: str) -> str:
    """Return what systemctl said, on one line."""
    lines = output.encode("utf-8", "replace").decode()[:_DETAIL].splitlines()
    return "; ".join(filter(None, map(str.strip, lines)))


class UnitState:
    """The properties of one unit."""

    def __init__(self, unit: str, output: str) -> None:
        """Read `output`, which `systemctl show` printed for `unit`, the name that was asked for."""
        self._unit = unit
        self._known = _properties(output)

    @property
    def id(self) -> str:
        """The unit's own name, where `unit` may be an alias."""
        return self._known.get("Id", "")

    @property
    def names(self) -> frozenset[str]:
        """All names of the unit; none where systemd did not tell."""
        return _words(self._known.get("Names")) or frozenset()

    @property
    def dependents(self) -> frozenset[str] | None:
        """Units that are restarted with it, where they are active; None where systemd did not tell."""
        return self._units(_DEPENDENTS)

    @property
    def is_down(self) -> bool:
        """Whether it is neither active nor on its way up or down."""
        return self._known.get("ActiveState") in {"inactive", "failed"}

    @property
    def pulled(self) -> frozenset[str] | None:
        """Units that are started with it, where they are down; None where systemd did not tell."""
        return self._units(_PULLED)

    @property
    def started_at_its_end(self) -> frozenset[str] | None:
        """Units that its end may start; None where systemd did not tell."""
        return self._units(_STARTED_AT_ITS_END)

    @property
    def stopped(self) -> frozenset[str] | None:
        """Units that are stopped with it, for good; None where systemd did not tell."""
        return self._units(_STOPPED)

    @property
    def conflicts(self) -> frozenset[str] | None:
        """Units that a start of it stops; None where systemd did not tell."""
        return self._units(_CONFLICTS)

    @property
    def cgroup(self) -> str:
        """Its path, as in `/system.slice/whisper.service`; "" while the unit has none."""
        return self._known.get("ControlGroup", "")

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

    def _units(self, properties: Sequence[str]) -> frozenset[str] | None:
        found = [_words(self._known.get(name, "" if name in _SINCE_249 else None)) for name in properties]
        return None if None in found else frozenset(unit for units in found for unit in units or ())

    def refusal(self, monotonic_seconds: float, own_restarts: Sequence[float]) -> str:
        """Return why the unit must not be restarted in this state; "" if it may.

        `own_restarts` is when the agent restarted it, in CLOCK_MONOTONIC as `monotonic_seconds`.
        """
        known = self._known
        if known.get("LoadState") != "loaded":
            return f"systemd has no unit {self._unit}"
        if not UNIT.fullmatch(self.id) or not {self._unit, self.id} <= self.names:
            return f"systemd did not tell the names of {self._unit}"
        if known.get("RefuseManualStart") == "yes" or known.get("RefuseManualStop") == "yes":
            return f"{self.id} refuses to be restarted by hand"
        if known.get("ActiveState") != "active":
            return f"{self.id} is {known.get('ActiveState') or 'in an unknown state'}, not active"
        if known.get("Job", "") not in {"", "0"}:
            return f"systemd has a job for {self.id} in its queue, which a restart could replace"
        return self._against_machine() or self._against_start_limit(monotonic_seconds, own_restarts)

    def _against_machine(self) -> str:
        """Yield what its end may do to the whole machine: reboot it, or power it off (systemd.unit(5))."""
        found = {name: self._known.get(name) for name in _END_ACTIONS}
        found |= {name: self._known.get(name, "") for name in _LATER_ACTIONS}
        refused = [f"{name}={value or '?'}" for name, value in found.items() if value not in {"", "none"}]
        refused += [
            f"{mode}=isolate"
            for mode in _ISOLATING
            if self._known.get(mode, "") == "isolate" and self._known.get(mode.removesuffix("JobMode"))
        ]
        return f"{self.id} has {refused[0]}: its end could set that off for the whole machine" if refused else ""

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


def active_units(output: str) -> list[str]:
    """Return the names of those that are neither inactive nor failed, from `systemctl show` of several units."""
    return sorted(state.id or "a unit without a name" for state in states(output) if not state.is_down)


def states(output: str) -> list[UnitState]:
    """Return what `systemctl show` says of several units."""
    return [UnitState("", block) for block in output.split("\n\n") if block.strip()]


def _properties(output: str) -> dict[str, str]:
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
    """Read a duration as systemd writes it: `1min 30s`; `infinity`."""
    parts = _DURATION.findall(text)
    return sum(float(number) * _UNITS[unit] for number, unit in parts) if parts else float("inf")
