"""What may be started because a unit is restarted, or has ended: only what is simple, and fully seen.

What systemd makes of a start has no end: a unit pulls in others, stops what conflicts with it, runs timers and sockets
that start still others, and may have an action for the whole machine. So nothing of it is followed. A unit that would
be started has to have the shape that the table below permits; any other withholds, in words that name the unit, the
setting and the way out. `docs/refusals.md` has the table for readers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from gpuagent_alerts.remedies.execution.unit_queries import UnitStates
from gpuagent_alerts.remedies.execution.unit_state import UnitState

PULLS = ("Requires", "BindsTo", "Requisite", "Wants", "Upholds")
"""Settings by which the start of a unit starts others, or needs them."""
AT_ITS_END = ("OnSuccess", "OnFailure")
"""Settings by which the end of a unit starts others; a restart is an end too."""

_KINDS = (".service", ".target", ".slice")
"""Kinds of units that may be started. A timer, path or socket starts others later, a mount hides what is below it."""
_GROUPING_KINDS = (".target", ".slice")
"""Kinds that a started unit may start in turn, where nothing else is down below them."""
_NAMES_NOBODY = ("OnSuccess", "Upholds")
"""Settings of a started unit that must name no unit, as its end, or its being active, starts it."""
_NAMES_NOBODY_ACTIVE = ("Conflicts", "ConflictedBy", "PropagatesStopTo", "BoundBy")
"""Settings of a started unit that must name no active unit, as its start or its end stops it."""
_NAMES_NOBODY_DOWN = ("Requires", "BindsTo", "Requisite", "Wants")
"""Settings of a started unit that must name no unit that is down, but for those of the grouping kinds."""
_PART_OF_SYSTEMD = "systemd-"
"""Such a unit may act on the whole machine by its program alone, as `systemd-suspend.service` does."""

_ABSENT = frozenset({"not-found", "masked", "error", "bad-setting"})
"""Load states of a unit that cannot be started."""
_NOT_STARTED = frozenset({"BindsTo", "Requisite"})
"""Settings whose unit has to be active already. `BindsTo=` would start it, and ends with it."""
_DYNAMIC_UIDS = range(61184, 65520)


class StartRules:
    """Judges what would be started. Its methods raise UnseenProcesses where systemd does not tell."""

    def __init__(self, units: UnitStates, ended: Collection[str] = (), monotonic_seconds: float | None = None) -> None:
        """Judge by `units`; those of `ended` end anyway, so that a stop of them harms nobody.

        `monotonic_seconds` is CLOCK_MONOTONIC now, by which a start limit is judged of what a restart needs.
        """
        self._now = monotonic_seconds
        self._units = units
        self._ended = ended
        self._judged: set[tuple[str, tuple[str, ...], bool]] = set()

    def against(self, unit: str, settings: Collection[str]) -> str:
        """Return why one of the units that these settings of a unit name is not simple to start; "" if all are."""
        for setting in settings:
            for name in sorted(self._units.listed(unit, setting)):
                if why := self._against(unit, setting, name, _KINDS, may_fail=True):
                    return why
        return ""

    def _against(self, by: str, setting: str, name: str, kinds: tuple[str, ...], *, may_fail: bool) -> str:
        state = self._units.state(name)
        if state.is_up:
            return ""
        what = f"{by} has {setting}={name}, which is {state.value('ActiveState') or 'in an unknown state'}"
        loaded = state.value("LoadState")
        if why := self._stays_down(by, setting, state):
            return f"{what}{why}"
        if loaded in _ABSENT:
            return ""
        key = (name, kinds, may_fail)
        if key in self._judged:
            return ""
        self._judged.add(key)
        faults = self._faults(state, kinds, may_fail=may_fail)
        why = next(faults, "") if loaded == "loaded" else "systemd did not tell whether it is loaded"
        # Only of what takes effect later it is safe to say so: a unit with an action must not be started at all.
        first = f"start {name} first, or run systemctl yourself"
        way_out = first if setting in PULLS and not name.endswith(_KINDS) else "act by hand if that is meant"
        return f"{what}, and would be started: {why}; {way_out}" if why else ""

    def _stays_down(self, by: str, setting: str, needed: UnitState) -> str:
        """Return, as the end of a sentence, why a unit may not start without one that is down; "" where it does."""
        stays = f": {by} could stay down; see to {needed.id} first, or run systemctl yourself"
        if setting in _NOT_STARTED or (setting == "Requires" and needed.value("ActiveState") == "failed"):
            return stays
        if setting != "Requires":
            return ""
        if (loaded := needed.value("LoadState")) in _ABSENT:
            return f" ({loaded}){stays}"
        recent = needed.recent_start(self._now) if self._now is not None else ""
        return f", {recent}: {by} could stay down; try again later, or run systemctl yourself" if recent else ""

    def _faults(self, state: UnitState, kinds: tuple[str, ...], *, may_fail: bool) -> Iterator[str]:
        """Yield which lines of the table a unit that would be started does not keep to."""
        units, name = self._units, state.id
        if not name.endswith(kinds):
            yield f"only a {', '.join(kinds)} may be"
        if name.startswith(_PART_OF_SYSTEMD):
            yield "it is a part of systemd, and may act on the whole machine"
        if action := state.machine_action():
            yield f"it has {action}, for the whole machine"
        for setting in _NAMES_NOBODY if may_fail else (*_NAMES_NOBODY, "OnFailure"):
            yield from (f"it has {setting}={each}" for each in sorted(units.listed(name, setting)))
        for setting in _NAMES_NOBODY_ACTIVE:
            active = (each for each in units.not_down(units.listed(name, setting)) if each not in self._ended)
            yield from (f"it has {setting}={each}, which is active, and stops it" for each in active)
        for setting, allowed in (*((each, _GROUPING_KINDS) for each in _NAMES_NOBODY_DOWN), ("OnFailure", _KINDS)):
            for other in sorted(units.listed(name, setting)):
                yield from filter(None, [self._against(name, setting, other, allowed, may_fail=False)])
        yield from filter(None, [against_removal(units, name, "yes")])


def against_removal(units: UnitStates, unit: str, *kept: str) -> str:
    """Return what of others the end of this unit removes, in words about "it"; "" for nothing.

    `kept` are the values of `RuntimeDirectoryPreserve=` with which its directories stay. Raises UnseenProcesses.
    """
    if shared := units.shared_directory(unit, *kept):
        return f"it has {shared}, and its end removes that"
    state = units.state(unit)
    if state.value("TTYVHangup") == "yes":
        return "it has TTYVHangup=yes, which hangs up whoever works on its terminal"
    if state.value("RemoveIPC") != "yes":
        return ""
    uid, user = state.value("UID") or "", state.value("User") or ""
    # With a group or an account of its own that is not dynamic, systemd removes what others of these have as well.
    is_dynamic = state.value("DynamicUser") == "yes" and state.value("Group") in {None, "", user}
    if is_dynamic and (int(uid) in _DYNAMIC_UIDS if uid.isdigit() else _is_made_up(user, unit)):
        return ""
    return "it has RemoveIPC=yes, and its end removes the shared memory of all processes of its user"


def _is_made_up(user: str, unit: str) -> bool:
    """Return whether systemd made the name of a dynamic user from that of its unit: no account need be called so."""
    return user in {"", unit.rpartition(".")[0].partition("@")[0]} or user.startswith("_du")
