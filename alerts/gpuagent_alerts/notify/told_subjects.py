"""Whether an incident goes on in another process than its last message named: that message misleads from then on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

from gpuagent_alerts.alert import Alert
from gpuagent_alerts.notify.cause import hardware_failure
from gpuagent_alerts.notify.final_reason import memory_stays, names_a_process, tells_of_an_end
from gpuagent_alerts.notify.incident_record import IncidentRecord
from gpuagent_alerts.notify.state import NotifiedAlert
from gpuagent_alerts.notify.succession import SUCCESSOR_SECONDS, Restarts, Watch
from gpuagent_alerts.notify.urgency import CALM, CRITICAL, FULL_ALERTS, Urgency, UrgencyStage

SUBJECT_SECONDS = 30.0
"""For so long a process has to be out of an incident that goes on before that is told: mostly all of it ends."""

RESTART_NEWS_SECONDS = 1800.0
"""Least time between two messages that say only that it has been restarted: the first one says so at once."""
FILLING_NEWS_SECONDS = 600.0
"""The same where what was started fills the memory in minutes, doubled with each further restart."""
_MOST_DOUBLED = 2


def subject_news_times(known: Mapping[str, NotifiedAlert], firing: Mapping[str, Alert]) -> Iterator[float]:
    """Yield Unix times from which on it is told that processes have left; of those of which that was not told."""
    for name, one in known.items():
        if (left_at := _left_at(one, firing.get(name))) is not None:
            yield left_at + SUBJECT_SECONDS


def has_another_subject(known: Mapping[str, NotifiedAlert], firing: Mapping[str, Alert], now: float) -> bool:
    """Return whether all processes that were told of have left for long enough. `now` is Unix time."""
    stays = any(
        one.firing and not one.alert.is_kept and names_a_process(one.alert)
        and _left_at(one, firing.get(name)) is None
        for name, one in known.items()
    )  # fmt: skip
    return not stays and now >= max(subject_news_times(known, firing), default=math.inf)


def are_silenced(
    known: Mapping[str, NotifiedAlert], record: IncidentRecord | None,
    suppressed: Callable[[Alert, IncidentRecord | None], bool],
) -> bool:  # fmt: skip
    """Return whether all that was told of an incident is silenced, but that a memory is full: that is over."""
    own = [one.alert for one in known.values() if one.alert.name not in FULL_ALERTS]
    return all(suppressed(alert, record) for alert in own or [one.alert for one in known.values()])


def is_growth_due(again: Watch, restarts_told: int, told_at: float, now: float) -> bool:
    """Return whether it is due to tell that what was started again grows, while no alert says so.

    `restarts_told` are those that the last message counted, at Unix time `told_at`.
    """
    if again.news_at is None or now < again.news_at or restarts_told >= again.restarts.count:
        return False
    return not restarts_told or now >= told_at + RESTART_NEWS_SECONDS


def next_restart_news_at(told_at: float, restarts: Restarts, current: Urgency) -> float:
    """Return the Unix time at which another restart is told of, by when a message was sent last and how it is now.

    What has run for minutes and fills the memory in minutes is told sooner: there is time to do something about it. Of
    what does so again and again ever less is told.
    """
    fills = current.severity >= CRITICAL and current.stage >= UrgencyStage.FILLING
    if not fills or restarts.since is None:
        return told_at + RESTART_NEWS_SECONDS
    waited = FILLING_NEWS_SECONDS * (1 << min(max(restarts.count - 1, 0), _MOST_DOUBLED))
    return max(told_at + min(waited, RESTART_NEWS_SECONDS), restarts.since + SUCCESSOR_SECONDS)


def has_last_run_left(shown: Urgency | None, restarts: Restarts, now: float) -> bool:
    """Return whether the last message told that what was started again grows, and that has left for long enough.

    `shown` is the urgency in that message, below that of every alert where none was true.
    """
    has_left = not restarts.runs_as and restarts.since is not None and now >= restarts.since + SUBJECT_SECONDS
    return shown == CALM and has_left


def failed_since(known: Mapping[str, NotifiedAlert], present: Iterable[Alert]) -> float | None:
    """Return the Unix time since which hardware has failed on a GPU of which nothing was told; None if on none."""
    told = [one.alert.labels for one in known.values()]
    failed = (one for one in present if hardware_failure(one.labels))
    untold = (one for one in failed if not any(_is_same_gpu(one.labels, labels) for labels in told))
    return min((one.starts_at for one in untold), default=None)


def _is_same_gpu(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Return whether alerts with these labels are of one GPU; its index counts where one has not told its UUID."""
    names = one.get("uuid", ""), other.get("uuid", "")
    return names[0] == names[1] if all(names) else one.get("gpu", "") == other.get("gpu", "")


def was_told_as_ended(one: NotifiedAlert) -> bool:
    """Return whether the last message said of an alert, which was kept then, that its process had ended."""
    return one.alert.is_kept and tells_of_an_end(one.alert)


def _left_at(one: NotifiedAlert, firing: Alert | None) -> float | None:
    """Return the Unix time at which the process of an alert left; None if it has not, or if that was told.

    `firing` is the alert as it fires now. One that is kept does not wait for a process that has left. Where its memory
    stays, an alert of its own is about to say so.
    """
    if one.end_told or was_told_as_ended(one):
        return None
    if not one.firing:
        return one.ended_at if tells_of_an_end(one.alert) else None
    if firing is None or not firing.is_kept or not tells_of_an_end(firing) or memory_stays(firing.end_reason):
        return None
    return firing.true_until
