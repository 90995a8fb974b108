"""Which systemd units end, or are stopped, once the last or the main process of another unit has ended.

A signal that empties a scope, or that ends the main process of a service, has systemd stop whoever is bound to it,
start what `OnSuccess=` and `OnFailure=` name, and stop what conflicts with that or is no longer needed. What systemd
says of the units is asked by `systemctl show`; what it does not tell withholds.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from gpuagent_alerts.programs.run import SEARCH_PATH
from gpuagent_alerts.remedies.execution.unit_state import STARTED_PROPERTIES, STOPPED_PROPERTIES, UnitState, states
from gpuagent_alerts.remedies.facts.process_scan import UnseenProcesses
from gpuagent_alerts.remedies.files.programs import ProgramCheck

Show = Callable[[Sequence[str], Sequence[str]], str]
"""Returns what `systemctl show` prints of these properties of these units. Raises UnseenProcesses."""
_ASK_SECONDS = 2.0
_LONGEST_ANSWER = 1024 * 1024
_MOST_UNITS = 256
_END_PROPERTIES = ("OnSuccess", "OnFailure", "OnSuccessJobMode", "OnFailureJobMode", "SuccessAction", "FailureAction")
_NEED_PROPERTIES = ("Requisite", "Upholds", "StopWhenUnneeded", "WantedBy", "UpheldBy")
PROPERTIES = tuple(
    dict.fromkeys((*STARTED_PROPERTIES, *STOPPED_PROPERTIES, *_END_PROPERTIES, *_NEED_PROPERTIES, "MainPID"))
)


def run_systemctl(properties: Sequence[str], units: Sequence[str]) -> str:
    """Run `systemctl show`; see `Show`. It blocks for up to 2 s."""
    search_path = os.environ.get("PATH") or SEARCH_PATH
    program = shutil.which("systemctl", path=search_path)
    fault = ProgramCheck()((program,)) if program else f"there is no systemctl in {search_path}"
    if program is None or fault:
        raise UnseenProcesses(f"systemd cannot be asked about {units[0]}: {fault}")
    command = (program, "show", "--property", ",".join(properties), "--", *units)
    try:
        done = subprocess.run(  # noqa: S603  a fixed program, and names of units behind `--`
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ASK_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise UnseenProcesses(f"systemd cannot be asked about {units[0]}: {error}") from error
    output = done.stdout[: _LONGEST_ANSWER + 1].decode("utf-8", "surrogateescape")
    if done.returncode or len(output) > _LONGEST_ANSWER:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        why = said[-1] if said else f"status {done.returncode}"
        raise UnseenProcesses(f"systemd cannot be asked about {units[0]}: {why}")
    return output


class UnitEnds:
    """Asks systemd about units. Made for one look: what it was told once is not asked again."""

    def __init__(self, show: Show = run_systemctl) -> None:
        self._show = show
        self._states: dict[str, UnitState] = {}

    def main_pid(self, unit: str) -> int:
        """Return the pid of a service's main process; 0 for none. Raises UnseenProcesses."""
        pid = self._state(unit).value("MainPID")
        if pid is None or not pid.isdigit():
            raise UnseenProcesses(f"systemd does not tell the main process of {unit}")
        return int(pid)

    def ended_with(self, unit: str) -> Mapping[str, str]:
        """Return each active unit that ends once this one has, and why, in words. Raises UnseenProcesses.

        The need of a unit with `StopWhenUnneeded=` is asked of those that are active and do not end themselves.
        """
        ended = {unit: ""}
        perhaps_unneeded: set[str] = set()
        waiting = [unit]
        while waiting:
            for name in waiting:
                self._refuse_machine_actions(name)
            found: dict[str, str] = {}
            for name in waiting:
                state = self._state(name)
                for other in self._active(_known(name, state.dependents) | _known(name, state.stopped)):
                    found.setdefault(other, f"systemd stops it once {name} has ended")
                for other, why in self._stopped_by_starts(name, _known(name, state.started_at_its_end)):
                    found.setdefault(other, why)
                perhaps_unneeded |= _known(name, state.pulled) | state.listed("Requisite") | state.listed("Upholds")
            for other in self._active(perhaps_unneeded - ended.keys() - found.keys()):
                if self._is_unneeded(other, ended.keys() | found.keys()):
                    found.setdefault(other, f"systemd stops it once {waiting[0]} needs it no longer")
            waiting = sorted(found.keys() - ended.keys())
            ended |= {name: found[name] for name in waiting}
        del ended[unit]
        return ended

    def _refuse_machine_actions(self, unit: str) -> None:
        """Raise UnseenProcesses where the end of the unit may reboot the machine, or stop all other units."""
        if action := self._state(unit).machine_action():
            raise UnseenProcesses(f"{unit} has {action}: its end could set that off for the whole machine")

    def _stopped_by_starts(self, unit: str, starts: Collection[str]) -> Iterator[tuple[str, str]]:
        """Yield the active units that conflict with what the end of the unit starts."""
        seen: set[str] = set()
        waiting = set(starts)
        while waiting:
            seen |= waiting
            self._ask(waiting)
            started = [name for name in sorted(waiting) if self._state(name).is_down]
            waiting = set()
            for name in started:
                state = self._state(name)
                for other in self._active(_known(name, state.conflicts)):
                    yield other, f"{name}, which starts once {unit} has ended, stops it"
                waiting |= _known(name, state.pulled) - seen

    def _is_unneeded(self, unit: str, ended: Collection[str]) -> bool:
        state = self._state(unit)
        if (state.value("StopWhenUnneeded") or "no") == "no":
            return False
        needed_by = _known(unit, state.dependents) | state.listed("WantedBy") | state.listed("UpheldBy")
        return not any(other not in ended for other in self._active(needed_by))

    def _active(self, units: Collection[str]) -> list[str]:
        self._ask(units)
        return [name for name in sorted(units) if not self._state(name).is_down]

    def _state(self, unit: str) -> UnitState:
        self._ask({unit})
        return self._states[unit]

    def _ask(self, units: Collection[str]) -> None:
        new = sorted(set(units) - self._states.keys())
        if not new:
            return
        if len(self._states) + len(new) > _MOST_UNITS:
            raise UnseenProcesses(f"more than {_MOST_UNITS} units depend on {new[0]} and others")
        told = states(self._show(PROPERTIES, new))
        if [state.id for state in told] != new:
            raise UnseenProcesses(f"systemd did not tell of {', '.join(new[:3])}")
        self._states |= zip(new, told, strict=True)


def _known(unit: str, units: frozenset[str] | None) -> frozenset[str]:
    """Return the units of a property. Raises UnseenProcesses where systemd did not tell."""
    if units is None:
        raise UnseenProcesses(f"it cannot be seen which units end with {unit}")
    return units
