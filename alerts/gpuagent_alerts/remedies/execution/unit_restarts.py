"""Whether a unit has the shape that permits a restart, and which units are restarted along with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gpuagent_alerts.remedies.execution.unit_queries import UnitStates
from gpuagent_alerts.remedies.execution.unit_starts import AT_ITS_END, PULLS, StartRules, against_removal
from gpuagent_alerts.remedies.execution.unit_state import CONFLICTS, DEPENDENTS, STOPPED, UnitState
from gpuagent_alerts.remedies.observation import SHARED_WAY_OUT, UnitPermission

_NAMED = 3
_MOST_DEPENDENTS = 64
_KINDS_ALONG = (".service", ".target")
"""Kinds of units that may be restarted along: a socket, mount or scope would not come back."""


class Restart(NamedTuple):
    """What systemd says of a restart."""

    refusal: str
    """Why it must not be; "" for nothing."""
    along: Sequence[UnitState] = ()
    """The active units that are restarted along with it."""


def judge_restart(
    units: UnitStates,
    unit: str,
    permission: UnitPermission,
    monotonic_seconds: float,
    own_restarts: Mapping[str, Sequence[float]],
) -> Restart:
    """Judge the restart of an active unit by its shape and that of what it touches. Raises UnseenProcesses.

    `own_restarts` is when the agent restarted which unit, in CLOCK_MONOTONIC as `monotonic_seconds`.
    """
    if refusal := _against_shape(units, unit, monotonic_seconds):
        return Restart(refusal)
    dependents = units.listed(unit, *DEPENDENTS)
    if len(dependents) > _MOST_DEPENDENTS:
        return Restart(f"it cannot be seen which units are restarted together with {unit}: {len(dependents)} may be")
    if not permission.shared:
        active = units.not_down(dependents)
        refusal = f"restarting {unit} also restarts {_shown(active)}; {SHARED_WAY_OUT}" if active else ""
        return Restart(refusal)
    along = _restarted_along(units, unit)
    for state in along:
        why = (
            _against_kind(state)
            or state.refusal(monotonic_seconds, own_restarts.get(state.id, ()))
            or permission.against(state.names)
            or _against_shape(units, state.id, monotonic_seconds)
        )
        if why:
            return Restart(f"restarting {unit} also restarts {state.id}: {why}")
    return Restart("", along)


def _restarted_along(units: UnitStates, unit: str) -> list[UnitState]:
    """Return the active units that are restarted with this one, and with those."""
    known = {unit}
    waiting = [unit]
    while waiting:
        found = {each for name in waiting for each in units.not_down(units.listed(name, *DEPENDENTS))}
        waiting = sorted(found - known)
        known |= found
    return [units.state(name) for name in sorted(known - {unit})]


def _against_kind(state: UnitState) -> str:
    return "" if state.id.endswith(_KINDS_ALONG) else f"only a {' or a '.join(_KINDS_ALONG)} may be"


def _against_shape(units: UnitStates, unit: str, monotonic_seconds: float) -> str:
    """Return what of the shape of a unit speaks against its restart, alone or along with another; "" for nothing."""
    state = units.state(unit)
    if (stale := state.value("NeedDaemonReload")) != "no":
        return (
            f"{unit} has NeedDaemonReload={stale or '?'}: systemd goes by what it has loaded, and not by what its files"
            f" say now; run systemctl daemon-reload"
        )
    if state.value("ExecCondition"):
        return f"{unit} has ExecCondition=, and whether that holds now cannot be known; run systemctl yourself"
    if active := units.not_down(units.listed(unit, *CONFLICTS) - {unit}):
        return f"starting {unit} stops {_shown(active)}"
    if active := units.not_down(units.listed(unit, *STOPPED) - {unit}):
        return f"restarting {unit} stops, for good, {_shown(active)}"
    if why := StartRules(units, (), monotonic_seconds).against(unit, (*PULLS, *AT_ITS_END)):
        return why
    why = against_removal(units, unit, "restart", "yes")
    return f"{unit} cannot be restarted: {why}; run systemctl yourself" if why else ""


def _shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} others" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"
