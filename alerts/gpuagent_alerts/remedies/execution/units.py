"""Restart a systemd unit, or refuse where that could take it down for good or end other people's work.

Through `systemctl`, which asks polkit: the agent's own user may restart exactly the units that a polkit rule names.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gpuagent.core.background import in_daemon_thread
from gpuagent_alerts.programs.run import SEARCH_PATH
from gpuagent_alerts.remedies.execution.unit_state import (
    PROPERTIES,
    STARTED_PROPERTIES,
    STATE_PROPERTIES,
    STOPPED_PROPERTIES,
    UNIT,
    UnitState,
    active_units,
    states,
)
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
_CONDITION = re.compile(rb"^\s*(Condition|Assert)[A-Z]\w*\s*=\s*\S", re.MULTILINE)
"""Settings without which a unit is not started, or its start fails (systemd.unit(5))."""
_NOT_RUN = 127
"""Status of a program that could not be started, as a shell has it."""


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
        said = _detail(output) if code else ""
        if taken and (down := await self._down(unit, was_skipped=code == 0)):
            return ActionResult(ok=False, detail="; ".join(filter(None, (down, said))))
        return ActionResult(code == 0, said, errno=1 if code and denied else 0, taken=taken)

    async def _down(self, unit: str, *, was_skipped: bool) -> str:
        """Return how it is that the unit does not run after its restart; "" where it does, or that cannot be told.

        `was_skipped` says that systemd counts its start as done, as it does where a condition does not hold.
        """
        output, failure = await self._show(STATE_PROPERTIES, unit)
        state = UnitState(unit, output)
        if failure or not state.is_down:
            return ""
        why = ": a condition of it does not hold" if was_skipped and state.value("ConditionResult") == "no" else ""
        return f"{unit} was restarted, and is {state.value('ActiveState')} now{why}; nobody starts it again"

    async def _against_conditions(self, state: UnitState) -> str:
        """Return which condition of the unit does not hold now, so that a restart would leave it down."""
        files = [*(state.value("FragmentPath") or "").splitlines(), *(state.value("DropInPaths") or "").split()]
        if not await in_daemon_thread(lambda: _has_conditions(files), "unit conditions"):
            return ""
        code, output = await self._run("condition", f"--unit={state.id}", seconds=_ASK_SECONDS, name="systemd-analyze")
        if code == 0:
            return ""
        said = _detail(output) or f"status {code}"
        return f"{state.id} has conditions, which may not hold now, and a restart would leave it down: {said}"

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
            or await self._against_conditions(state)
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

    def _find_program(self, name: str) -> tuple[tuple[str, ...], str]:
        """Return the program to run, and why there is none."""
        if self._program:
            return self._program, ""
        found = shutil.which(name, path=self._search_path)
        if found is None:
            return (), f"there is no {name} in {self._search_path}"
        return (found,), ProgramCheck()((found,))

    async def _run(self, *arguments: str, seconds: float, name: str = "systemctl") -> tuple[int | None, str]:
        program, fault = await in_daemon_thread(lambda: self._find_program(name), name)
        if fault:
            return _NOT_RUN, f"{name} is not run: {fault}"
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


def _has_conditions(files: Sequence[str]) -> bool:
    """Return whether these files of a unit have a condition of its start; True where that cannot be read."""
    try:
        return any(_CONDITION.search(Path(each).read_bytes()) for each in files)
    except OSError:
        return True


def _detail(output: str) -> str:
    """Return what systemctl said, on one line."""
    lines = output.encode("utf-8", "replace").decode()[:_DETAIL].splitlines()
    return "; ".join(filter(None, map(str.strip, lines)))
