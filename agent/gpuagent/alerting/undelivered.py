"""Receivers that are not told what they should be: for every place that a person looks at, since none of them is told.

A receiver may fail for a minute: most failures are over by the second attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from gpuagent.core.metrics.alerting import ReceiverCounts, Undelivered, UndeliveredReason
from gpuagent_alerts.outbox.lane import Lane

if TYPE_CHECKING:  # it loads the HTTP client, which a node without receivers need not have
    from gpuagent_alerts.receivers.heartbeat import Heartbeat

PATIENCE_SECONDS = 60.0
"""Time of failures, or age of a message, before it is called a problem."""


def find_undelivered(
    receivers: Iterable[ReceiverCounts],
    lanes: Mapping[str, Lane],
    heartbeats: Iterable[Heartbeat],
    now_seconds: float,
) -> tuple[Undelivered, ...]:
    """Return what could not be delivered, by receiver; `now_seconds` is CLOCK_BOOTTIME."""
    found = [trouble for counts in receivers for trouble in _of(counts, lanes.get(counts.receiver), now_seconds)]
    failing = (beat for beat in heartbeats if _for_long(beat.failing_since, now_seconds))
    return (
        *found,
        *(Undelivered(beat.name, UndeliveredReason.FAILING, str(beat.last), beat.failing_since) for beat in failing),
    )


def _of(counts: ReceiverCounts, lane: Lane | None, now_seconds: float) -> Iterator[Undelivered]:
    name, last = counts.receiver, "" if lane is None or lane.failing_since is None else str(lane.last)
    oldest = None if counts.oldest_seconds is None else now_seconds - counts.oldest_seconds
    if lane is not None and lane.off is not None:
        yield Undelivered(name, UndeliveredReason.OFF, str(lane.off.outcome), None, counts.queued)
    elif lane is not None and _for_long(lane.failing_since, now_seconds):
        yield Undelivered(name, UndeliveredReason.FAILING, last, lane.failing_since, counts.queued)
    elif counts.queued and _for_long(oldest, now_seconds):
        yield Undelivered(
            name,
            UndeliveredReason.WAITING,
            "" if lane is None or lane.failing_since is None else last,
            oldest,
            counts.queued,
        )
    if counts.dead:
        yield Undelivered(name, UndeliveredReason.DEAD, "", None, counts.dead)


def _for_long(since: float | None, now_seconds: float) -> bool:
    return since is not None and now_seconds - since >= PATIENCE_SECONDS
