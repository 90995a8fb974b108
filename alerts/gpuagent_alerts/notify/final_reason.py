"""What ended an incident about memory, for those of its alerts that ended before it and by something else.

A forecast is over when the GPU is full, and that is no end of the trouble. At the end of the incident such an alert
tells what the others know of its own GPU, with the time of that, also to a receiver that hears of none of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from gpuagent_alerts.alert import PROCESS_ENDED, UNKNOWN_END, Alert, condition_times
from gpuagent_alerts.leak.reasons import GAVE_BACK
from gpuagent_alerts.notify.cause import is_about_memory, is_leak
from gpuagent_alerts.notify.urgency import Action, urgency_of

_STOPPED = "growth stopped: "
_NO_END = (UNKNOWN_END, "the GPU became full", "the MIG instance became full", "it slowed down", _STOPPED)
_ENDED_HOLDING = (") ended (a zombie): its ", ") ended: the driver went on counting ")
_OF_THE_PROCESS = "the process "
_OF_A_REMEDY = "gpuagent "
_WENT = re.compile(r"\bended\b|\bleft the GPU\b|\bby gpuagent\b")
_SLACK_SECONDS = 60.0
"""What ended longer before an alert than this has not ended it."""
_LEVEL = ("growth stopped", "its tensors stopped", GAVE_BACK)


def with_final_reason(alert: Alert, others: Iterable[Alert]) -> Alert:
    """Return an alert that is told at the end of its incident with what ended that, if its own end was none.

    `others` are all alerts of the incident that have ended, or are only kept.
    """
    if not is_about_memory(alert.labels) or is_leak(alert.labels) or not _is_no_end(alert):
        return alert
    told = [
        one
        for one in others
        if is_about_memory(one.labels) and one.end_reason and (is_leak(one.labels) or not _is_no_end(one))
        and _is_of_same_memory(alert, one) and _end_of(one) >= _end_of(alert) - _SLACK_SECONDS
    ]  # fmt: skip
    best = max(told, key=_weight, default=None)
    if best is None:
        return alert
    if is_level_reached(best) and alert.end_reason.startswith(_STOPPED):
        # When it stopped, the forecast has shown first: a verdict takes half an hour more.
        return replace(alert, end_reason=_with_name(best), end_is_certain=best.end_is_certain)
    until = max(_end_of(alert), _end_of(best))
    ends = [time for time in (alert.ends_at, best.ends_at) if time is not None]
    return replace(
        alert, end_reason=_with_name(best), end_is_certain=best.end_is_certain, true_until=until,
        ends_at=max(*ends, until) if ends else None,
    )  # fmt: skip


def _end_of(alert: Alert) -> float:
    return condition_times(alert)[1] or 0.0


def _is_of_same_memory(alert: Alert, other: Alert) -> bool:
    """Return whether another alert tells of the memory of the same GPU; of a MIG instance only one about that."""
    if alert.labels.get("uuid", "") != other.labels.get("uuid", ""):
        return False
    instance = alert.labels.get("gpu_instance_id", "")
    return not instance.isdecimal() or other.labels.get("gpu_instance_id", "") == instance


def names_ended_process(reason: str) -> bool:
    """Return whether a reason says of a process by name that it ended, and that its memory stays."""
    return any(words in reason for words in _ENDED_HOLDING)


def memory_stays(reason: str) -> bool:
    """Return whether a reason says that a process has ended, and that its memory is not back."""
    return any(words.removeprefix(")") in reason for words in _ENDED_HOLDING)


def is_level_reached(alert: Alert) -> bool:
    """Return whether a leak ended as it stopped, and its process goes on."""
    return is_leak(alert.labels) and alert.end_reason.startswith(_LEVEL)


def tells_of_a_process(reason: str) -> bool:
    """Return whether the reason of an end says what became of a process: that is seen once, and not measured again."""
    return reason.startswith(_OF_A_REMEDY) or bool(_WENT.search(reason.partition(";")[0]))


def tells_of_an_end(alert: Alert) -> bool:
    """Return whether an alert has ended with its process, or with the one that its reason names."""
    return (names_a_process(alert) and _ended_with_it(alert)) or names_ended_process(alert.end_reason)


def names_a_process(alert: Alert) -> bool:
    """Return whether an alert is about a process, and no note of a remedy."""
    return bool(alert.labels.get("pid")) and urgency_of(alert).action <= Action.NONE


def _ended_with_it(alert: Alert) -> bool:
    return alert.end_is_certain or alert.end_reason.startswith(PROCESS_ENDED)


def _is_no_end(alert: Alert) -> bool:
    return not alert.end_reason or alert.end_reason.startswith(_NO_END)


def _weight(alert: Alert) -> tuple[bool, bool, float]:
    """Order by who knows most of an end: what became of the leaker, then what is certain, then the latest."""
    return is_leak(alert.labels), alert.end_is_certain, _end_of(alert)


def _with_name(alert: Alert) -> str:
    """Return the reason of an alert about a process for one that names none."""
    reason, pid = alert.end_reason, alert.labels.get("pid", "")
    if not pid:
        return reason
    name = f"{alert.labels.get('process', 'a process')} (pid {pid})"
    if reason.startswith((PROCESS_ENDED, _OF_THE_PROCESS)):
        return f"{name} {reason.removeprefix(_OF_THE_PROCESS)}"
    if reason.startswith(_OF_A_REMEDY):
        return reason.replace(" it ", f" {name} ", 1)
    return f"{name}: {reason}"


def reasons_of_kept(
    members: Iterable[str], before: Mapping[str, tuple[str, bool]], firing: Mapping[str, Alert]
) -> Mapping[str, tuple[str, bool]]:
    """Return what became of the processes of alerts that are only kept, by fingerprint, and whether that is certain.

    The first words stand: figures change.
    """
    kept = {name: alert for name in members if (alert := firing.get(name)) is not None and not alert.holds}
    told = {
        name: (alert.end_reason, alert.end_is_certain)
        for name, alert in kept.items() if tells_of_a_process(alert.end_reason)
    }  # fmt: skip
    return {
        name: before[name] if name in before and _head(before[name][0]) == _head(reason[0]) else reason
        for name, reason in told.items()
    }


def _head(reason: str) -> str:
    return reason.partition(";")[0]
