"""An incident in one line, as a push notification shows it, and the facts that its briefing is made of.

`CRITICAL node7 GPU 0: whisper-api (svc-ml, pid 81204) leaking 84.4 GiB/h, full in 8 min`
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from gpuagent.core.displaced import name_displaced
from gpuagent.core.growth import GrowthState, MemoryKey, Verdict
from gpuagent.core.holding import LARGE_SHARE, find_holding, held_by_nobody, is_nobodys, unowned_memory
from gpuagent.core.snapshot import ProcessState, pause_overrun_seconds
from gpuagent.core.units import (
    FORECAST_RANGE_SECONDS,
    GIB,
    MAX_SECONDS,
    format_bytes,
    format_duration,
    format_forecast_range,
)
from gpuagent.core.xids import explain_xid
from gpuagent_alerts.alert import (
    UNKNOWN_END,
    Alert,
    CauseKind,
    Status,
    condition_times,
    kept_words,
    resolved_summary,
    shown_annotations,
)
from gpuagent_alerts.messages.briefing_inputs import BLIND, DEAD, FULL, LEAK, SOON, BriefingInputs
from gpuagent_alerts.messages.incident_end import end_of_all, what_was
from gpuagent_alerts.messages.naming import (
    READ_IT,
    dead_subject,
    group_name,
    held_by_the_dead,
    labels_of,
    process_name,
    subject_name,
    times,
    was_leaking,
    without_place,
)
from gpuagent_alerts.messages.nobodys_growth import nobodys_bytes_per_hour, nobodys_instances, nobodys_state
from gpuagent_alerts.notify.final_reason import is_level_reached
from gpuagent_alerts.notify.urgency import did_nothing, urgency_of

_SEVERITIES = ("critical", "error", "warning", "info", "none")
_ORDER = (
    "GpuLost", "GpuXidCritical", "GpuProcessUnkillable", LEAK, *sorted(FULL), SOON, "GpuMemoryLeak", DEAD,
    "GpuMemoryHigh", "GpuXidWarning",
)  # fmt: skip
"""Alerts in the order in which they name an incident. The leak comes before the full GPU that it led to."""
_TOGETHER_SECONDS = 60.0
"""What ends within this time ends together."""
_LEAST_LEFT = GIB
"""Less than that of a full memory is no room."""
_NOTES = frozenset({"GpuRemedy", "GpuRemedyAnnounced"})
"""Alerts that tell what is done about an incident, and never name one that has something else."""


def main_alert(seen: BriefingInputs) -> Alert | None:
    """Return the alert that names what happened; None for a message without alerts."""
    return min(_candidates(seen), key=lambda pair: pair[0], default=(None, None))[1]


def _candidates(seen: BriefingInputs) -> Iterator[tuple[tuple[object, ...], Alert]]:
    over, restarts = seen.incident.is_over, seen.incident.restarts
    last = max((condition_times(one)[1] or 0.0 for one in seen.conditions), default=0.0)
    for place, alert in enumerate(seen.alerts):
        named = _ORDER.index(alert.name) if alert.name in _ORDER else len(_ORDER)
        severity = alert.labels.get("severity", "")
        yield (
            (
                alert.name in _NOTES,
                not over and not alert.holds,
                # What ended before the last of it did not end the incident.
                over and (condition_times(alert)[1] or 0.0) < last - _TOGETHER_SECONDS,
                # Of processes that ran one after another the last one: its end is that of the incident.
                -(condition_times(alert)[1] or 0.0) if over and restarts and alert.name == LEAK else 0.0,
                over and not alert.end_is_certain and not is_level_reached(alert),
                named,
                -(condition_times(alert)[1] or 0.0) if over and restarts else 0.0,
                over and alert.end_reason in {"", UNKNOWN_END},
                _SEVERITIES.index(severity) if severity in _SEVERITIES else 1,
                place,
            ),
            alert,
        )


_LEAST_BESIDE = 0.1
"""Share of the pace of an incident's own processes from which on another one that grows is mentioned ..."""
_STAYS_BESIDE = 0.05
"""... and down to which it stays so: a pace is measured anew every minute, and the line has no noise."""
_NOBODY = MemoryKey("", 0)
"""Stands for memory of no process among those that are mentioned."""
_NOTHING_READ = "the agent cannot read any GPU"
_COARSE_SECONDS = 120.0
"""Time above which a forecast is told in whole minutes."""


def headline_of(seen: BriefingInputs, main: Alert | None, node: str) -> str:
    """Return the line: severity, node and GPU, what happened, and what comes of it as long as that is true."""
    unmeasured = f" ({seen.not_measured})" if seen.not_measured else ""
    return f"{_severity(seen)} {place_of(seen, node)}: {_what(seen, main)}{_left_behind(seen)}{unmeasured}"


def decisive_alert(seen: BriefingInputs, main: Alert | None) -> Alert | None:
    """Return the alert that makes an incident as bad as it is, where that is worse than the one that names it."""
    if main is None or seen.incident.is_over:
        return None
    true_now = [one for one in seen.alerts if _is_true(one) and not did_nothing(one.labels)]
    found = max(true_now, key=_gravity, default=main)
    return found if urgency_of(found).rises_above(urgency_of(main)) else None


def _gravity(alert: Alert) -> tuple[int, int, int]:
    urgency = urgency_of(alert)
    return urgency.severity, urgency.action, urgency.stage


def _is_true(alert: Alert) -> bool:
    return alert.status is Status.FIRING and alert.true_until is None


def _severity(seen: BriefingInputs) -> str:
    return "RESOLVED" if seen.incident.is_over else (seen.incident.severity or "firing").upper()


def place_of(seen: BriefingInputs, node: str) -> str:
    """Return the node, and the GPUs that it is about: `node7 GPU 0`."""
    indices = seen.indices
    if not indices or seen.incident.kind is CauseKind.NODE:
        return node
    if names := seen.displaced:
        others = [index for index in seen.indices if index not in {str(gpu.index) for gpu in names}]
        return f"{node} {', '.join([*(name_displaced(gpu) for gpu in names), *(f'GPU {index}' for index in others)])}"
    instance = seen.incident.labels.get("gpu_instance_id", "")
    mig = f" MIG {instance}" if len(indices) == 1 and instance.isdecimal() else ""
    return f"{node} GPU{'s' if len(indices) > 1 else ''} {', '.join(indices)}{mig}"


def _what(seen: BriefingInputs, main: Alert | None) -> str:
    if main is None:
        return f"incident {seen.incident.key}"
    if seen.incident.is_over:
        return what_was(seen, main)
    write = None if main.is_kept else _WRITERS.get(main.name)
    said = summary_of_kept(seen, main) if main.is_kept else _summary(main) if write is None else write(seen, main)
    decisive = decisive_alert(seen, main)
    if seen.incident.restarts and seen.members:
        said += f"; {group_name(seen, main.labels)} was restarted {times(seen.incident.restarts)} and grows again"
    if decisive is None or decisive.name in _SAID_BY.get(main.name, ()):
        return said
    return f"{said}; {_clause(decisive)}"


_FORECASTS = frozenset({SOON, *FULL})
_SAID_BY = dict.fromkeys((LEAK, SOON, "GpuMemoryLeak", *FULL), _FORECASTS) | {
    "GpuLost": frozenset({"GpuXidCritical", BLIND})
}
"""What the text of an alert tells of others already."""


def _clause(alert: Alert) -> str:
    """Return what an alert adds to a headline that names the process already."""
    step, result = alert.labels.get("step", ""), alert.labels.get("result", "").replace("_", " ")
    if alert.name == "GpuRemedy" and step and result:
        return f"remedy {step}: {result}"
    return "a remedy is about to act" if alert.name == "GpuRemedyAnnounced" else _summary(alert)


def _leak(seen: BriefingInputs, main: Alert) -> str:
    states = {each.growth.state for each in seen.members}
    paces = sum(each.bytes_per_hour for each in seen.members)
    past = f" {format_bytes(paces)}/h" if paces else ""
    if states == {GrowthState.FULL}:
        return f"{subject_name(seen, main)} leaked{past} until {_room_left(seen)}{_forecast(seen)}"
    if states == {GrowthState.STOPPED}:
        return f"{subject_name(seen, main)} leaked{past} and has stopped"
    pace = f" {format_bytes(seen.pace)}/h" if seen.pace else ""
    return f"{subject_name(seen, main)} leaking{pace}{_beside(seen)}{_forecast(seen)}"


def _nobodys(seen: BriefingInputs, main: Alert) -> str:
    """Return how memory of no process grows, or grew until it stopped: its alert holds for a while after that."""
    instances = [] if seen.instance is not None else _instances_of_nobody(seen)
    state, pace = nobodys_state(seen.snapshot, instances or seen.places)
    paced = f" {format_bytes(pace)}/h" if pace > 0 else ""
    numbers = ", ".join(str(each.gpu_instance_id) for each in instances)
    who = unowned_memory(seen.listed) + (
        f" in MIG instance{'s' if len(instances) > 1 else ''} {numbers}" * bool(instances)
    )
    if state is GrowthState.RISING:
        return f"{who} growing{paced}{_forecast(seen, instances)}"
    if state is GrowthState.STOPPED:
        return f"{who} grew{paced} and has stopped"
    if state is GrowthState.FULL:
        return f"{who} grew{paced} until {_room_left(seen)}{_forecast(seen, instances)}"
    return _summary(main)


def _instances_of_nobody(seen: BriefingInputs) -> list[MemoryKey]:
    return [place for gpu in seen.gpus for place in nobodys_instances(seen.snapshot, gpu.identity.uuid)]


def _soon(seen: BriefingInputs, main: Alert) -> str:
    """Return who grows, where somebody does: whoever is woken asks that first."""
    if not seen.members:
        if (whole := seen.group_growth) is not None:
            pace = 0.0 if whole.slope is None else 3600 * whole.slope.value
            return f"{whole.group} growing {format_bytes(pace)}/h{_forecast(seen)}"
        nobodys = nobodys_bytes_per_hour(seen.snapshot, seen.places)
        if nobodys > 0:
            return f"{unowned_memory(seen.listed)} growing {format_bytes(nobodys)}/h{_forecast(seen)}"
        labels = seen.incident.labels
        if labels.get("pid") and seen.not_measured:  # who grew then is known, though nothing is measured now
            return f"{process_name(labels)} growing{_forecast(seen)}"
        return f"memory running out{_forecast(seen)}"
    verb = "leaking" if any(one.growth.verdict is Verdict.LEAKING for one in seen.members) else "growing"
    return f"{subject_name(seen, main)} {verb} {format_bytes(seen.pace)}/h{_beside(seen)}{_forecast(seen)}"


def _beside(seen: BriefingInputs) -> str:
    """Return who else grows there: the forecast is of all of them together, and each may be an incident of its own."""
    beside = growing_beside(seen)
    others = [each for each in seen.others if each.process.key in beside]
    pids = {each.process.pid for each in others}
    parts = []
    if pids:
        who = process_name(labels_of(others[0].process)) if len(pids) == 1 else f"{len(pids)} other processes"
        parts.append(f"{who} {format_bytes(sum(each.bytes_per_hour for each in others))}/h")
    if _NOBODY in beside:
        nobodys = nobodys_bytes_per_hour(seen.snapshot, seen.places)
        parts.append(f"{unowned_memory(seen.listed)} {format_bytes(nobodys)}/h")
    return f" (and {' and '.join(parts)})" if parts else ""


def _left_behind(seen: BriefingInputs) -> str:
    """Return who grows on of those that were named beside what is over: its end is no all-clear for them."""
    others = seen.left_behind
    if not others:
        return ""
    pids = {each.process.pid for each in others}
    one = process_name(labels_of(others[0].process))
    who = f"{one} goes" if len(pids) == 1 else f"{len(pids)} other processes go"
    return f"; {who} on growing {format_bytes(sum(each.bytes_per_hour for each in others))}/h"


def growing_beside(seen: BriefingInputs) -> frozenset[MemoryKey]:
    """Return who else grows on the GPUs of an incident fast enough to be mentioned with it."""
    paces = {each.process.key: each.bytes_per_hour for each in seen.others}
    paces[_NOBODY] = nobodys_bytes_per_hour(seen.snapshot, seen.places)
    least = {key: _STAYS_BESIDE if key in seen.beside_before else _LEAST_BESIDE for key in paces}
    return frozenset(key for key, pace in paces.items() if pace > 0 and pace >= least[key] * seen.pace)


def _full(seen: BriefingInputs, main: Alert) -> str:
    some = len(seen.indices) > 1 and len(seen.full_indices) < len(seen.indices)
    where = f" on {_full_ones(seen)}" if some or (seen.full_instances and seen.instance is None) else ""
    return _summary(main) + where + _largest(seen)


def _full_ones(seen: BriefingInputs) -> str:
    """Return which GPUs of an incident are full: `GPU` of one, `all` of several, or their indices.

    Of GPUs with room, the MIG instances that are full.
    """
    full, every = seen.full_indices, seen.indices
    if not full and (instances := seen.full_instances):
        return f"MIG instance{'s' if len(instances) > 1 else ''} {', '.join(instances)}"
    if len(every) < 2:
        return "GPU"
    return "all" if len(full) == len(every) else f"GPU{'s' if len(full) > 1 else ''} {', '.join(full)}"


def _lost(seen: BriefingInputs, _: Alert) -> str:
    lost = {one.labels.get("gpu", "") for one in seen.alerts if one.name == "GpuLost" and one.holds}
    who = "the GPU is" if len(lost) < 2 else "all are" if len(lost) == len(seen.indices) else f"{len(lost)} of them are"
    said = f"{who} lost" + "".join(f" after Xid {xid} ({explain_xid(xid).meaning})" for xid in seen.xids[:1])
    is_blind = any(one.name == BLIND and one.holds and not one.labels.get("uuid") for one in seen.alerts)
    return f"{said}; {_nothing_read(seen)}" if is_blind else said


def _xid(seen: BriefingInputs, main: Alert) -> str:
    return ", ".join(f"Xid {xid}: {explain_xid(xid).meaning}" for xid in seen.xids) or _summary(main)


def _blind(seen: BriefingInputs, main: Alert) -> str:
    """Return what cannot be read, and that somebody paused the agent, where that is why."""
    if seen.is_paused and seen.snapshot is not None:
        node = seen.snapshot.node
        late = pause_overrun_seconds(node, seen.snapshot.clock_seconds)
        return node.why_unread + (f", and should have begun again {format_duration(late)} ago" if late else "")
    if main.labels.get("scope") == "processes":
        return _summary(main)
    if seen.incident.kind is CauseKind.NODE or not seen.indices:
        return _nothing_read(seen)
    return "the agent cannot read these GPUs" if len(seen.indices) > 1 else READ_IT.sub("read the GPU", _summary(main))


def _nothing_read(seen: BriefingInputs) -> str:
    why = "" if seen.snapshot is None else seen.snapshot.node.why_unread
    return f"{_NOTHING_READ}: {why}" if why else _NOTHING_READ


def _dead(seen: BriefingInputs, _: Alert) -> str:
    who, held = held_by_the_dead(seen.alerts)
    verb = "has ended and still holds" if len(who) == 1 else "have ended and still hold"
    return f"{dead_subject(seen, who)} {verb} {format_bytes(held)}"


def _budget(seen: BriefingInputs, main: Alert) -> str:
    limit = seen.budgets.get(main.labels.get("budget", ""))
    return _summary(main) + (f" of {format_bytes(limit)}" if limit else "")


_WRITERS: dict[str, Callable[[BriefingInputs, Alert], str]] = {
    LEAK: _leak,
    SOON: _soon,
    "GpuMemoryLeak": _nobodys,
    **dict.fromkeys(FULL, _full),
    DEAD: _dead,
    "GpuLost": _lost,
    "GpuXidCritical": _xid,
    "GpuXidWarning": _xid,
    BLIND: _blind,
    "GpuBudgetExceeded": _budget,
}


def summary_of_kept(seen: BriefingInputs, main: Alert) -> str:
    """Return what an alert that is only kept was, why it is over, and when its incident is.

    That ends when the gravest alert of it is kept no longer, whichever of them names it.
    """
    kept = [one for one in seen.conditions if one.is_kept] or [main]
    gravest = max(kept, key=lambda one: (*urgency_of(one), one.kept_until or 0.0))
    if main.name == LEAK and len({one.labels.get("pid", "") for one in kept if one.name == LEAK}) > 1:
        main = replace(main, kept_until=gravest.kept_until)
        return f"{was_leaking(subject_name(seen, main))}: {end_of_all(seen, main)}{kept_words(main)}"
    return without_place(resolved_summary(replace(main, kept_until=gravest.kept_until)))


def _summary(alert: Alert) -> str:
    return without_place(shown_annotations(alert).get("summary") or alert.name)


def says_full(seen: BriefingInputs, main: Alert | None) -> bool:
    """Return whether the headline of a message with this main alert says that the memory is full now."""
    if main is None or seen.incident.is_over or not main.holds or main.name not in {LEAK, SOON, *FULL}:
        return False
    if main.name == LEAK and {each.growth.state for each in seen.members} == {GrowthState.STOPPED}:
        return False  # no forecast is told of it
    seconds = seen.seconds_to_full
    return seen.is_full or (seconds is not None and 0 <= seconds < 1)


def _room_left(seen: BriefingInputs) -> str:
    """Return how much room a full memory has: the last 2 % of a large GPU are some GiB, and a slow leak goes on."""
    free = [one.free_bytes for one in seen.memories if one.is_full and one.free_bytes is not None]
    left = max(free, default=0)
    return "there was no room" if left < _LEAST_LEFT else f"{format_bytes(left)} was left"


def _forecast(seen: BriefingInputs, instances: Sequence[MemoryKey] = ()) -> str:
    """Return when there is no room: of MIG instances the earliest, where the incident does not name one itself."""
    if seen.is_full:
        return f", {_full_ones(seen)} full now"
    seconds = seen.seconds_to_full
    if instances and seen.snapshot is not None:
        own = [seen.snapshot.growth[place].forecast_seconds for place in instances]
        seconds = min((each for each in own if each is not None), default=None)
    if seconds is None or not 0 <= seconds <= MAX_SECONDS:
        return ""
    if seconds < 1:
        return ", full now"
    whole = seen.range_to_full(seconds, instances) if seconds >= FORECAST_RANGE_SECONDS else None
    if whole is not None and whole.low and whole.high:
        return f", {format_forecast_range(whole.low, whole.high)}"
    return f", full in {format_duration(round(seconds / 60) * 60 if seconds >= _COARSE_SECONDS else seconds)}"


def _largest(seen: BriefingInputs) -> str:
    """Return who holds most of a full GPU, or that nobody does; of an incident about processes, which of those."""
    nobodys, used = seen.unattributed_bytes, sum(memory.used_bytes or 0 for memory in seen.memories)
    about = seen.processes if seen.incident.kind in {CauseKind.PROCESS, CauseKind.GROUP} else []
    if sum(one.used_bytes or 0 for one in about) < LARGE_SHARE * used:
        about = []
    listed = about or seen.listed
    if is_nobodys(nobodys, listed, used):
        return f", {format_bytes(nobodys)} {held_by_nobody(seen.listed)}"
    found = find_holding(listed, used)
    if found is None:
        return ""
    if found.process is None:
        return f", {format_bytes(found.used_bytes)} of it held by {found.text}"
    # Who made it full is not always who holds most: a screen names that one, and of several alike all.
    most = find_holding(seen.listed, used) if about else None
    if most is not None and most.process is None:
        return f", {format_bytes(most.used_bytes)} of it held by {most.text}"
    ended = ", which has ended" if found.process.state is ProcessState.DEAD else ""
    said = f", {format_bytes(found.used_bytes)} of it held by {process_name(labels_of(found.process))}{ended}"
    if most is None or most.process is None or most.process.pid in {one.pid for one in about}:
        return said
    return f"{said}, and {format_bytes(most.used_bytes)} by {process_name(labels_of(most.process))}"
