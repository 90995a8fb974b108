"""An incident of which nothing is true now, and whose end is held back: what is waited for, in one line.

`CRITICAL node7 GPU 0: api.service was restarted 3 times and runs as pid 300, with 3.0 GiB, for 40 s: waiting to see
whether it grows again`
"""

from __future__ import annotations

from gpuagent.core.units import format_bytes, format_duration
from gpuagent_alerts.messages.briefing_inputs import BriefingInputs, Successors
from gpuagent_alerts.messages.headline import group_name, place_of, process_name, running, times
from gpuagent_alerts.notify.succession import Watch


def held_headline(seen: BriefingInputs, watch: Watch, node: str, now: float) -> str:
    """Return the line of such an incident. `seen` has no alerts, `now` is Unix time."""
    return f"{(seen.incident.severity or 'firing').upper()} {place_of(seen, node)}: {held_text(seen, watch, now)}"


def held_text(seen: BriefingInputs, watch: Watch, now: float) -> str:
    """Return what has become of the owner of its processes, and what is waited for."""
    restarts, labels = watch.restarts, seen.incident.labels
    age = "" if restarts.since is None else format_duration(max(1.0, now - restarts.since))
    who = group_name(seen, labels)
    if restarts.since is None:
        return f"{who}: what was true of it is not true now; waiting to see whether that lasts"
    again = seen.successors if restarts.runs_as else None
    if again is not None:
        began = f"{who} was restarted {times(restarts.count)} and {running(again)}" if restarts.count else (
            f"{who} {running(again)}")  # fmt: skip
        return f"{began}{_on_others(seen, again)}, for {age}{_growth(watch)}"
    if restarts.count:
        return f"{who} was restarted {times(restarts.count)} and left the GPU {age} ago{_WHETHER_RESTARTED}"
    who = process_name(labels) if labels.get("pid") else who
    return f"{who} left the GPU {age} ago{_WHETHER_RESTARTED}"


_WHETHER_RESTARTED = ": waiting to see whether it is started again"


def _on_others(seen: BriefingInputs, again: Successors) -> str:
    indices = [str(index) for index in again.gpus]
    if not seen.indices or set(indices) <= set(seen.indices):
        return ""
    return f" on GPU{'s' if len(indices) > 1 else ''} {', '.join(indices)}"


def _growth(watch: Watch) -> str:
    pace = 0.0 if watch.growth is None else watch.growth.bytes_per_second
    if pace:
        return f", and grows again: {format_bytes(pace * 3600)}/h"
    return ": waiting to see whether it grows again"
