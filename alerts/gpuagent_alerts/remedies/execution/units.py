"""Restart a systemd unit, or refuse where that could take it down for good or end other people's work.

Through `systemctl`, which asks polkit: the agent's own user may restart exactly the units that a polkit rule names.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeVar

from gpuagent.core.background import in_daemon_thread
from gpuagent_alerts.programs.run import SEARCH_PATH, end_program
from gpuagent_alerts.remedies.execution.reaching_programs import PROGRAM_PROPERTIES, find_reaching_program
from gpuagent_alerts.remedies.execution.unit_files import (
    MANAGER_PROPERTIES,
    has_mounts_of_systemd,
    look_at_files,
    parse_loaded,
)
from gpuagent_alerts.remedies.execution.unit_queries import UnitStates, is_restart_denied, run_systemctl
from gpuagent_alerts.remedies.execution.unit_restarts import Restart, judge_restart
from gpuagent_alerts.remedies.execution.unit_state import PROPERTIES, STATE_PROPERTIES, UNIT, UnitState
from gpuagent_alerts.remedies.facts.fresh_lookup import LOOK_SECONDS
from gpuagent_alerts.remedies.facts.process_scan import UnseenProcesses
from gpuagent_alerts.remedies.facts.timeout_reasons import why_slow
from gpuagent_alerts.remedies.facts.unit_processes import UnitProcesses
from gpuagent_alerts.remedies.files.programs import ProgramCheck
from gpuagent_alerts.remedies.observation import SHARED_WAY_OUT, ActionResult, UnitPermission
from gpuagent_alerts.remedies.pinned_processes import ActionRefused
from gpuagent_alerts.remedies.target import Target

T = TypeVar("T")
_ASK_SECONDS = 5.0
_JUDGE_SECONDS = 15.0
"""All questions about a unit and those around it, each of which takes milliseconds, mostly."""
_OUTPUT = 64 * 1024
_DETAIL = 4096
_OWN_KEPT = 100
_NOT_RUN = 127
"""Status of a program that could not be started, as a shell has it."""


class _Verdict(NamedTuple):
    """What a look at a unit has come to."""

    unit: str
    """Its own name, "" where that is unknown."""
    refusal: str
    """Why it must not be restarted; "" if it may."""
    along: tuple[str, ...] = ()
    """Other units that are restarted with it."""


class Systemctl:
    """Runs `systemctl` without a shell; a name from a cgroup is checked before it becomes an argument."""

    def __init__(
        self,
        processes: UnitProcesses,
        program: Sequence[str] = (),
        *,
        search_path: str | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
        look_seconds: float = LOOK_SECONDS,
        has_mounts: Callable[[], bool] = has_mounts_of_systemd,
    ) -> None:
        """Ask systemd at `monotonic`, CLOCK_MONOTONIC, which is its own clock; `now` is in seconds since 1970.

        `program` is run as it is given. Without it, `systemctl` is looked for in `search_path` (by default the
        agent's PATH) before each run, and must be one that only root and the agent's user can change. `has_mounts`
        tells whether files are seen here as systemd sees them.
        """
        self._has_mounts = has_mounts
        self._look_seconds = look_seconds
        self._processes = processes
        self._program = tuple(program)
        self._search_path = search_path or os.environ.get("PATH") or SEARCH_PATH
        self._monotonic = monotonic
        self._now = now
        self._restarted: dict[str, list[float]] = {}

    async def refusal(self, target: Target, permission: UnitPermission) -> str:
        """Return why the target's unit must not be restarted now; "" if it may. Raises ProcessEnded."""
        return (await self._judge(target, permission)).refusal

    async def restart(self, target: Target, permission: UnitPermission, deadline_seconds: float) -> ActionResult:
        """Look again whether its unit may be restarted, then restart it and wait for that.

        Others may log in or start work at any time, so the look comes last. Raises ActionRefused where the unit must
        not be restarted, and ProcessEnded where the target has ended.
        """
        unit, refusal, along = await self._judge(target, permission)
        if refusal:
            raise ActionRefused(refusal)
        for name in (unit, *along):
            self._restarted[name] = [*self._restarted.get(name, ()), self._monotonic()][-_OWN_KEPT:]
        code, output = await self._run("--no-ask-password", "restart", "--", unit, seconds=deadline_seconds)
        if code is None:
            return ActionResult(ok=False, detail=f"systemctl restart {unit} took longer than {deadline_seconds:.0f} s")
        denied = bool(code) and is_restart_denied(output, unit)
        taken = code != _NOT_RUN and not denied
        said = _detail(output) if code else ""
        if taken and (down := await self._down(unit, was_skipped=code == 0)):
            return ActionResult(ok=False, detail="; ".join(filter(None, (down, said))))
        return ActionResult(code == 0, said, errno=1 if denied else 0, taken=taken)

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

    async def _against_files(self, state: UnitState) -> str:
        """Return what the files of the unit have against a restart, which would leave it down; "" for nothing."""
        code, output = await self._run("show", "--property", ",".join(MANAGER_PROPERTIES), seconds=_ASK_SECONDS)
        if code != 0:
            return f"systemd cannot be asked about {state.id}: {_detail(output) or f'status {code}'}"
        loaded = parse_loaded(output, self._monotonic(), self._now())
        has_mounts = self._has_mounts()
        found = await _in_time(lambda: look_at_files(state, loaded, has_mounts=has_mounts), "unit files")
        if found is None:
            return f"the file system with the files of {state.id} does not answer within {LOOK_SECONDS:g} s"
        if found.changed:
            return (
                f"{found.changed} has changed since systemd loaded {state.id}, which may have a condition that no file"
                f" has now; run systemctl daemon-reload"
            )
        if not found.have_conditions:
            return ""
        if found.unsure:
            return (
                f"{state.id} has {found.unsure}=, and only systemd can tell whether that holds: its environment, rights"
                " and mounts are not the agent's; run systemctl yourself"
            )
        code, output = await self._run("condition", f"--unit={state.id}", seconds=_ASK_SECONDS, name="systemd-analyze")
        said = _detail(output) or f"status {code}"
        refusal = f"{state.id} has conditions, which may not hold now, and a restart would leave it down: {said}"
        return "" if code == 0 else refusal

    async def _judge(self, target: Target, permission: UnitPermission) -> _Verdict:
        """Judge facts first that no permission changes."""
        if not UNIT.fullmatch(target.unit):
            return _Verdict("", f"{target.unit!r} is not the name of a service")
        output, failure = await self._show(PROPERTIES, target.unit)
        if failure:
            return _Verdict("", f"systemd cannot be asked about {target.unit}: {failure}")
        state = UnitState(target.unit, output)
        refusal = (
            state.refusal(self._monotonic(), self._restarted.get(state.id, ()))
            or permission.against(state.names)
            or await self._against_files(state)
            or await self._in_thread(lambda: self._processes.not_in_unit(target, state.id, state.cgroup))
            or await self._in_thread(lambda: self._processes.not_of_unit(state.id, state.cgroup, state.processes))
            or await self._in_thread(
                lambda: self._processes.never_ended(state.id, state.cgroup, permission, state.main_pid)
            )
        )
        if refusal:
            return _Verdict(state.id, refusal)
        restart = await self._judge_others(state, permission)
        refusal = restart.refusal
        if not refusal and not permission.shared:
            sharing = await self._in_thread(lambda: self._shared(state)) or await self._reaching(state.id)
            refusal = f"{sharing}; {SHARED_WAY_OUT}" if sharing else ""
        for other in restart.along:
            refusal = (
                refusal
                or await self._against_files(other)
                or await self._in_thread(partial(self._processes.not_of_unit, other.id, other.cgroup, other.processes))
            )
        if not refusal:
            refusal = await self._in_thread(lambda: self._processes.tied_with(state.id, state.cgroup, permission))
        return _Verdict(state.id, refusal, tuple(each.id for each in restart.along))

    async def _reaching(self, unit: str) -> str:
        """Return which program of the unit, as it would be restarted, ends others by name; "" for none."""
        output, failure = await self._show(PROGRAM_PROPERTIES, unit)
        if failure:
            return f"it cannot be seen which programs a restart of {unit} runs: {failure}"
        found = find_reaching_program(output)
        return f"{unit} has {found}, which reaches what is not in the unit" if found else ""

    async def _judge_others(self, state: UnitState, permission: UnitPermission) -> Restart:
        """Judge what systemd would start, stop and restart beside the unit."""
        show = partial(run_systemctl, program=self._program, search_path=self._search_path)
        now, unit = self._monotonic(), state.id

        def judge() -> Restart:
            try:
                return judge_restart(UnitStates(show), unit, permission, now, self._restarted)
            except UnseenProcesses as error:
                return Restart(f"it cannot be seen what a restart of {unit} starts and stops: {error}")

        try:
            async with asyncio.timeout(_JUDGE_SECONDS):
                return await in_daemon_thread(judge, "unit states")
        except TimeoutError:
            return Restart(f"it cannot be seen what a restart of {unit} starts and stops: systemd does not answer")

    def _shared(self, state: UnitState) -> str:
        """Resolve the unit's user, which may ask a directory server, and look at its processes: in a thread."""
        uid = state.uid()
        if uid is None:
            return f"it cannot be seen whose processes {state.id} runs: its own user is unknown"
        return self._processes.shared_with(state.id, state.cgroup, uid, state.main_pid)

    async def _in_thread(self, look: Callable[[], str]) -> str:
        try:
            async with asyncio.timeout(self._look_seconds):
                return await in_daemon_thread(look, "unit processes")
        except TimeoutError:
            reason = await in_daemon_thread(partial(why_slow, self._look_seconds), "slow look")
            return f"it cannot be seen whose processes the unit runs: {reason}"

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
        found = await _in_time(lambda: self._find_program(name), name)
        program, fault = found or ((), f"its file system does not answer within {LOOK_SECONDS:g} s")
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
            await end_program(process)
            return None, "no answer"
        return process.returncode, output[: _OUTPUT + 1].decode("utf-8", "surrogateescape")


async def _in_time(look: Callable[[], T], name: str) -> T | None:
    """Return what is found in files that may lie on a network; None where these do not answer."""
    with suppress(TimeoutError):
        async with asyncio.timeout(LOOK_SECONDS):
            return await in_daemon_thread(look, name)
    return None


def _detail(output: str) -> str:
    """Return what systemctl said, on one line."""
    lines = output.encode("utf-8", "replace").decode()[:_DETAIL].splitlines()
    return "; ".join(filter(None, map(str.strip, lines)))
