"""Receivers that are not told what they should be: for every place that a person looks at, since none of them is told.

A receiver may fail for a minute: most failures are over by the second attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from gpuagent.catalogue.alerting import ReceiverCounts, Undelivered, Why
from gpuagent_alerts.notify.outbox.delivery import DeliveryWorker

if TYPE_CHECKING:  # it loads the HTTP client, which a node without receivers need not have
    from gpuagent_alerts.notify.receivers.heartbeat import Heartbeat

PATIENCE_SECONDS = 60.0
"""Time of failures, or age of a message, before it is called a problem."""


def find_undelivered(
    receivers: Iterable[ReceiverCounts],
    workers: Mapping[str, DeliveryWorker],
    heartbeats: Iterable[Heartbeat],
    now_seconds: float,
) -> tuple[Undelivered, ...]:
    """Return what could not be delivered, by receiver; `now_seconds` is CLOCK_BOOTTIME."""
    found = [trouble for counts in receivers for trouble in _of(counts, workers.get(counts.receiver), now_seconds)]
    failing = (beat for beat in heartbeats if _for_long(beat.failing_since, now_seconds))
    return (*found, *(Undelivered(beat.name, Why.FAILING, str(beat.last), beat.failing_since) for beat in failing))


def _of(counts: ReceiverCounts, worker: DeliveryWorker | None, now_seconds: float) -> Iterator[Undelivered]:
    name, last = counts.receiver, "" if worker is None or worker.failing_since is None else str(worker.last)
    oldest = None if counts.oldest_seconds is None else now_seconds - counts.oldest_seconds
    if worker is not None and worker.off is not None:
        yield Undelivered(name, Why.OFF, str(worker.off.outcome), None, counts.queued)
    elif worker is not None and _for_long(worker.failing_since, now_seconds):
        yield Undelivered(name, Why.FAILING, last, worker.failing_since, counts.queued)
    elif counts.queued and _for_long(oldest, now_seconds):
        yield Undelivered(
            name, Why.WAITING, "" if worker is None or worker.failing_since is None else last, oldest, counts.queued
        )
    if counts.dead:
        yield Undelivered(name, Why.DEAD, "", None, counts.dead)


def _for_long(since: float | None, now_seconds: float) -> bool:
    return since is not None and now_seconds - since >= PATIENCE_SECONDS
