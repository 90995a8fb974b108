"""Which systemd units end, or are stopped, once the last or the main process of another unit has ended.

A signal that empties a scope, or that ends the main process of a service, has systemd stop whoever is bound to it, and
what is no longer needed. What it would start (`OnSuccess=`, `OnFailure=`) must be simple (`unit_starts`). What systemd
says of the units is asked by `systemctl show`; what it does not tell withholds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gpuagent_alerts.remedies.execution.reaching_programs import PROGRAM_PROPERTIES, find_reaching_program
from gpuagent_alerts.remedies.execution.unit_queries import Show, UnitStates, run_systemctl
from gpuagent_alerts.remedies.execution.unit_starts import AT_ITS_END, PULLS, StartRules, against_removal
from gpuagent_alerts.remedies.execution.unit_state import DEPENDENTS, STOPPED
from gpuagent_alerts.remedies.facts.process_scan import UnseenProcesses

_MAIN_ALONE = frozenset({"none", "main"})
"""Values of `NotifyAccess=` with which systemd hears nobody but the main process."""


class UnitEnds:
    """Asks systemd about units. Made for one look: what it was told once is not asked again."""

    def __init__(self, show: Show = run_systemctl) -> None:
        self._show = show
        self._units = UnitStates(show)

    def main_processes(self) -> Collection[tuple[str, int]]:
        """Return each service with its main process, and with its control process. Raises UnseenProcesses."""
        return self._units.main_processes()

    def reaching_program(self, unit: str) -> str:
        """Return which program of a unit ends others by name, in words; "" for none. Raises UnseenProcesses."""
        return find_reaching_program(self._show(PROGRAM_PROPERTIES, (unit,)))

    def may_fail_by_any(self, unit: str) -> bool:
        """Return whether a unit may end by what any process in it tells systemd, or tells it no longer.

        With `NotifyAccess=all` or `exec` that may be the keep-alive of `WatchdogSec=`, or which process the main one is
        (sd_notify(3)). Raises UnseenProcesses.
        """
        return unit.endswith(".service") and self._units.state(unit).value("NotifyAccess") not in _MAIN_ALONE

    def runs(self, unit: str) -> bool:
        """Return whether a unit runs, and systemd has nothing to do with it. Raises UnseenProcesses."""
        state = self._units.state(unit)
        shown = [state.value(name) for name in ("ActiveState", "SubState")]
        return shown == ["active", "running"] and (state.value("Job") or "0") == "0"

    def ended_with(self, unit: str, needed: Collection[str] = ()) -> Mapping[str, str]:
        """Return each active unit that ends once this one has, and why, in words.

        A unit with `StopWhenUnneeded=` is taken to end with each that needs it: whoever else needs it may end as well.
        Of those that are `needed` it is known that somebody stays who needs them. Raises UnseenProcesses, also where
        what would be started then is not simple.
        """
        units = self._units
        ended = {unit: ""}
        waiting = [unit]
        while waiting:
            found: dict[str, str] = {}
            for name in waiting:
                for other in units.not_down(units.listed(name, *DEPENDENTS, *STOPPED)):
                    found.setdefault(other, f"systemd stops it once {name} has ended")
                for other in units.not_down(units.listed(name, *PULLS) - set(needed)):
                    if (units.state(other).value("StopWhenUnneeded") or "no") != "no":
                        found.setdefault(other, f"systemd stops it once {name} needs it no longer")
            waiting = sorted(found.keys() - ended.keys())
            ended |= {name: found[name] for name in waiting}
        for name in ended:
            self._refuse_what_is_not_simple(name, ended.keys(), is_first=name == unit)
        del ended[unit]
        return ended

    def _refuse_what_is_not_simple(self, unit: str, ended: Collection[str], *, is_first: bool) -> None:
        """Raise UnseenProcesses where the end of the unit does more than to stop others that can be judged."""
        if action := self._units.state(unit).machine_action():
            raise UnseenProcesses(f"{unit} has {action}: its end could set that off for the whole machine")
        # A service may start again, by `Restart=`, a socket, or a unit that upholds it.
        settings = (*AT_ITS_END, *PULLS) if unit.endswith(".service") else AT_ITS_END
        if why := StartRules(self._units, ended).against(unit, settings):
            raise UnseenProcesses(why)
        # The first one may be restarted, or start again by itself: a stop for good is that of the others.
        kept = ("restart", "yes") if is_first else ("yes",)
        if why := against_removal(self._units, unit, *kept):
            raise UnseenProcesses(f"{unit} would end, and {why}")
