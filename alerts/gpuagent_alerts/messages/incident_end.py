"""Why an incident ended, in its last headline, and who runs in place of what ended."""

from __future__ import annotations

import re
from dataclasses import replace

from gpuagent.core.snapshot import GpuState
from gpuagent.core.units import format_bytes, format_duration
from gpuagent_alerts.alert import UNKNOWN_END, Alert, Incident, LastRun, clock_time, condition_times, resolved_summary
from gpuagent_alerts.messages.briefing_inputs import BLIND, DEAD, LEAK, BriefingInputs, Successors
from gpuagent_alerts.messages.end_reasons import WHILE_PAUSED
from gpuagent_alerts.messages.group_end import sum_over_gpus, summarize_ends
from gpuagent_alerts.messages.naming import (
    READ_IT,
    dead_subject,
    group_name,
    held_by_the_dead,
    last_run,
    process_name,
    subject_name,
    times,
    was_leaking,
    without_place,
)


def what_was(seen: BriefingInputs, main: Alert) -> str:
    """Return what an incident was and why it ended, without severity and place."""
    if main.name == LEAK and len(_ended_pids(seen, main)) > 1:
        return f"{was_leaking(subject_name(seen, main))}: {end_reason_of(seen, main)}"
    if (last := _unalerted_last(seen)) is not None:
        return f"{process_name(last.labels)} was leaking memory: {_end_of_last(seen, main, last)}"
    if main.name == DEAD and (many := [one for one in seen.alerts if one.name == DEAD])[1:]:
        who, held = held_by_the_dead(many)
        return f"{dead_subject(seen, who)} had ended and held {format_bytes(held)}: {end_reason_of(seen, main)}"
    said = without_place(resolved_summary(replace(main, end_reason=end_reason_of(seen, main))))
    if main.name == BLIND and len(seen.indices) > 1:
        return READ_IT.sub("read these GPUs", said.partition("; likewise on ")[0])  # "these" are all of them
    if main.name == "GpuLost" and len(seen.indices) > 1:
        of_one = said.partition("; likewise on ")[0]
        return of_one.replace("was lost", "were lost").replace("the GPU answers", "they answer")
    return READ_IT.sub("read the GPU", said, count=1) if main.name == BLIND else said


def end_reason_of(seen: BriefingInputs, main: Alert) -> str:
    """Return why an incident ended, and who runs in place of what ended: that is no all-clear for what comes next."""
    again, restarts = seen.successors, seen.incident.restarts
    if (last := _unalerted_last(seen)) is not None:
        return _end_of_last(seen, main, last)
    told = end_of_all(seen, main)
    reason = _dated(told, _times_of_ends(seen, main), seen.now) + _left_since(seen, main, told)
    was_restarted = f"; {group_name(seen, main.labels, again)} was restarted {times(restarts)}" if restarts else ""
    if again is None:
        return reason + (f"{was_restarted} and does not run now" if restarts else "")
    if not restarts and not main.labels.get("pid"):
        return reason
    if not restarts:
        return f"{reason}; it runs again as pid {again.pids[0]}, with {format_bytes(again.used_bytes)}"
    return f"{reason}{was_restarted} and {running(again)}{_measured(seen.incident)}"


def _unalerted_last(seen: BriefingInputs) -> LastRun | None:
    """Return the process that was started again and grew last, if it has left, and no alert has named it; else None."""
    last, pids = seen.incident.last_run, {one.labels.get("pid", "") for one in seen.conditions}
    is_untold = last.grew and last.left_at is not None and last.labels.get("pid", "") not in pids
    return last if is_untold else None


def _end_of_last(seen: BriefingInputs, main: Alert, last: LastRun) -> str:
    left_at = last.left_at or 0.0
    held = f"; it held {format_bytes(last.held_bytes)}" if last.held_bytes > 0 else ""
    reason = _dated(f"it left the GPU{held}", (left_at, left_at), seen.now)
    again = seen.successors
    now_runs = "does not run now" if again is None else f"{running(again)}{_measured(seen.incident)}"
    return (
        f"{reason}; {group_name(seen, main.labels, again)} was restarted {times(seen.incident.restarts)} and {now_runs}"
    )


def running(again: Successors) -> str:
    """Return what runs in place of what ended: `runs as pid 300, with 5.0 GiB`."""
    held = format_bytes(again.used_bytes)
    if len(again.pids) == 1:
        return f"runs as pid {again.pids[0]}, with {held}"
    return f"runs as {len(again.pids)} processes, with {held} together"


def _measured(incident: Incident) -> str:
    """Return what was measured of the growth of what runs now: a verdict on a young process is no proof."""
    if incident.flat_seconds:
        return f", and has not grown for {format_duration(incident.flat_seconds)}"
    if incident.grows_by:
        return f", and grows {format_bytes(incident.grows_by * 3600)}/h"
    return ", and it is not known yet whether that grows"


def _ended_pids(seen: BriefingInputs, main: Alert) -> set[str] | set[int]:
    if not seen.incident.restarts:
        return seen.pids
    return {pid for one in last_run(seen, main) if one.name == LEAK and (pid := one.labels.get("pid", ""))}


def end_of_all(seen: BriefingInputs, main: Alert) -> str:
    """Return why it ended: of several processes or GPUs to which the same happened, what became of all."""
    alike = {(one.labels.get("uuid", ""), one.labels.get("pid", "")): one for one in last_run(seen, main)
             if one.name == main.name and one.end_reason not in {"", UNKNOWN_END}}  # fmt: skip
    if main.name == DEAD and len(alike) > 1:
        gone = [one for one in alike.values() if one.end_reason.endswith("came back")]
        back = f"; {format_bytes(held_by_the_dead(gone)[1])} came back" if gone else ""
        head = main.end_reason.partition(";")[0] or UNKNOWN_END
        return head.replace("the ended process", "them") + back
    if main.name == LEAK and len(pids := {pid for _, pid in alike}) > 1:
        return summarize_ends([one.end_reason for one in alike.values()], of=len(pids))
    if main.name == LEAK and (of_all := sum_over_gpus([one.end_reason for one in alike.values()])):
        return of_all
    own = main.labels.get("uuid", "")  # the node's alert has none, and is no further GPU
    # One that was lost before it told its UUID has an alert under its index alone.
    index = main.labels.get("gpu", "") if not own else ""
    likewise = {
        one.labels.get("uuid", own)
        for one in alike.values()
        if one.end_is_certain and (not index or one.labels.get("gpu", "") != index)
    }
    is_of_node = not own and not index
    others = 0 if is_of_node else len(likewise - {own, ""})  # the node's own end is that of all of its GPUs
    more = f"; likewise on {others} more GPU{'s' if others > 1 else ''}" if others and main.end_is_certain else ""
    return (main.end_reason or UNKNOWN_END) + more


_STOPPED = re.compile(r"growth stopped(?:: .* \(pid (\d+)\) had)?")


def _left_since(seen: BriefingInputs, main: Alert, reason: str) -> str:
    """Return that the process of which growth had stopped has gone since, in words; "" while that is not known."""
    found = _STOPPED.match(reason)
    pid = (found[1] or main.labels.get("pid", "")) if found is not None else ""
    gpus = () if seen.snapshot is None else seen.snapshot.gpus
    uuid = main.labels.get("uuid", "")
    is_read = any(one.identity.uuid == uuid and one.state is GpuState.OK and one.processes_known for one in gpus)
    if not pid or not is_read or seen.snapshot is None:
        return ""
    is_listed = any(str(one.pid) == pid and one.gpu_uuid == uuid for one in seen.snapshot.processes)
    return "" if is_listed else "; it has left the GPU since"


_LATE_SECONDS = 300.0
"""From this age on an end is told with its time."""


_FORECAST = re.compile(r"goes on( growing)?, full in .* at the earliest$")
"""End of a reason that was true when it was found, and has a forecast that is no longer."""


def _times_of_ends(seen: BriefingInputs, main: Alert) -> tuple[float, float] | None:
    """Return the Unix times of the first and the last end that its reason tells of; None where they are not known."""
    many = main.name == LEAK and len(_ended_pids(seen, main)) > 1
    alike = [one for one in last_run(seen, main) if one.name == main.name] if many else [main]
    ends = [end for one in alike if (end := condition_times(one)[1]) is not None]
    return (min(ends), max(ends)) if ends else None


def _dated(reason: str, times: tuple[float, float] | None, now: float | None) -> str:
    """Return the reason of an end with its time, where that was a while ago, or with both, where it took a while."""
    if times is None or now is None:
        return reason
    first, last = times
    took_long = last - first > _LATE_SECONDS
    if not took_long and now - last <= _LATE_SECONDS:
        return reason
    head, mark, rest = reason.partition(";")
    if head.endswith((" UTC)", WHILE_PAUSED)):  # when it ended is not known: what is, is when measuring went on
        return reason
    when = f"{clock_time(first)} to {clock_time(last)}" if took_long else clock_time(last)
    head = _FORECAST.sub(r"went on\1", head)
    return f"{head} ({when} UTC){mark}{rest}"
