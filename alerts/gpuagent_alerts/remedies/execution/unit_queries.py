"""Asks systemd about units by `systemctl show`. What it does not tell is unknown, and withholds."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Collection, Sequence
from pathlib import PurePosixPath

from gpuagent_alerts.programs.run import SEARCH_PATH
from gpuagent_alerts.remedies.execution.unit_state import PROPERTIES, UnitState, states
from gpuagent_alerts.remedies.facts.process_scan import SystemdSilent, UnseenProcesses
from gpuagent_alerts.remedies.files.programs import ProgramCheck

Show = Callable[[Sequence[str], Sequence[str]], str]
"""Returns what `systemctl show` prints of these properties of these units. Raises UnseenProcesses."""
_ASK_SECONDS = 2.0
_LONGEST_ANSWER = 1024 * 1024
_MOST_UNITS = 256
_DIRECTORY_PROPERTIES = ("Id", "ActiveState", "RuntimeDirectory")
_MAIN = ("MainPID", "ControlPID")
_DENIED = ("Access denied", "Interactive authentication required")
_NO_BUS = re.compile(
    r"Failed to connect to .*\b(?:bus|transport): (?:Permission denied|Operation not permitted)(?: \(.*\))?"
)
_WITH_DIRECTORIES = ("*.service", "*.socket", "*.mount", "*.swap")
"""Patterns of all loaded units that may have a `RuntimeDirectory=` (systemd.exec(5))."""


def run_systemctl(
    properties: Sequence[str], units: Sequence[str], *, program: Sequence[str] = (), search_path: str = ""
) -> str:
    """Run `systemctl show`; see `Show`. It blocks for up to 2 s.

    `program` is run as it is given. Without it, `systemctl` is looked for in `search_path` (by default the agent's
    PATH), and must be one that only root and the agent's user can change.
    """
    if not program:
        path = search_path or os.environ.get("PATH") or SEARCH_PATH
        found = shutil.which("systemctl", path=path)
        fault = ProgramCheck()((found,)) if found else f"there is no systemctl in {path}"
        if found is None or fault:
            raise SystemdSilent(f"systemd cannot be asked about {units[0]}: {fault}")
        program = (found,)
    command = (*program, "show", "--property", ",".join(properties), "--", *units)
    try:
        done = subprocess.run(  # noqa: S603  a fixed program, and names of units behind `--`
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ASK_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise SystemdSilent(f"systemd cannot be asked about {units[0]}: {error}") from error
    if len(done.stdout) > _LONGEST_ANSWER:
        raise SystemdSilent(f"systemd cannot be asked about {units[0]}: its answer is too long")
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        why = said[-1] if said else f"status {done.returncode}"
        raise SystemdSilent(f"systemd cannot be asked about {units[0]}: {why}")
    return done.stdout.decode("utf-8", "surrogateescape")


class UnitStates:
    """What systemd says of units. Made for one look: what it was told once is not asked again."""

    def __init__(self, show: Show = run_systemctl) -> None:
        self._show = show
        self._states: dict[str, UnitState] = {}
        self._directories: dict[str, frozenset[str]] | None = None
        self._main_processes: list[tuple[str, int]] | None = None

    def state(self, unit: str) -> UnitState:
        """Return the state of a unit. Raises UnseenProcesses."""
        self.ask({unit})
        return self._states[unit]

    def not_down(self, units: Collection[str]) -> list[str]:
        """Return those that are neither inactive nor failed, sorted. Raises UnseenProcesses."""
        self.ask(units)
        return [name for name in sorted(units) if not self._states[name].is_down]

    def listed(self, unit: str, *settings: str) -> frozenset[str]:
        """Return the units that these settings of a unit name. Raises UnseenProcesses where systemd did not tell."""
        found = self.state(unit).units(settings)
        if found is None:
            raise UnseenProcesses(f"systemd did not tell {', '.join(f'{each}=' for each in settings)} of {unit}")
        self.ask(found)
        return found

    def ask(self, units: Collection[str]) -> None:
        """Ask about those of these units that were not asked about. Raises UnseenProcesses."""
        new = sorted(set(units) - self._states.keys())
        if not new:
            return
        if len(self._states) + len(new) > _MOST_UNITS:
            raise UnseenProcesses(f"more than {_MOST_UNITS} units depend on {new[0]} and others")
        told = states(self._show(PROPERTIES, new))
        if [state.id for state in told] != new:
            raise SystemdSilent(f"systemd did not tell of {', '.join(new[:3])}")
        self._states |= zip(new, told, strict=True)

    def main_processes(self) -> Collection[tuple[str, int]]:
        """Return each loaded service with its main process, and with its control process. Raises UnseenProcesses."""
        if self._main_processes is None:
            told = states(self._show(("Id", *_MAIN), ("*.service",)))
            values = [(each.id, each.value(name) or "") for each in told for name in _MAIN]
            self._main_processes = [(unit, int(pid)) for unit, pid in values if pid.isdigit() and pid != "0"]
        return self._main_processes

    def shared_directory(self, unit: str, *kept: str) -> str:
        """Return which directory the end of this unit removes while another active unit has it; "" for none.

        `kept` are the values of `RuntimeDirectoryPreserve=` with which it stays. Raises UnseenProcesses.
        """
        state = self.state(unit)
        own = _directories(state)
        if not own or state.value("RuntimeDirectoryPreserve") in kept:
            return ""
        if self._directories is None:
            told = states(self._show(_DIRECTORY_PROPERTIES, _WITH_DIRECTORIES))
            self._directories = {each.id: _directories(each) for each in told if not each.is_down}
        for other, theirs in sorted(self._directories.items()):
            if other != unit and (shared := sorted(one for one in own if any(_overlap(one, each) for each in theirs))):
                return f"RuntimeDirectory={shared[0]}, which {other} has as well"
        return ""


def _directories(state: UnitState) -> frozenset[str]:
    """Return the directories below /run that a unit has. Raises UnseenProcesses."""
    try:
        return frozenset(shlex.split(state.value("RuntimeDirectory") or ""))
    except ValueError as error:
        raise UnseenProcesses(f"systemd did not tell RuntimeDirectory= of {state.id}: {error}") from error


def _overlap(one: str, other: str) -> bool:
    """Return whether two directories are the same, or one lies in the other."""
    first, second = PurePosixPath(one), PurePosixPath(other)
    return first.is_relative_to(second) or second.is_relative_to(first)


def is_restart_denied(output: str, unit: str) -> bool:
    """Return whether systemd, polkit or the bus denies the restart of a unit, by what `systemctl restart` has said.

    So systemctl reports an error of the name AccessDenied or InteractiveAuthorizationRequired (systemctl-start-unit.c,
    `bus_error_message` in bus-util.c), on a line of its own. A job that fails was permitted, whatever its unit is
    called.
    """
    prefix = f"Failed to restart {unit}: "
    return any(
        line.removeprefix(prefix).startswith(_DENIED) if line.startswith(prefix) else _NO_BUS.fullmatch(line)
        for line in output.split("\n")
    )
