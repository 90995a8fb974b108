"""The configured receivers, what is counted of them, and those that are not told what they should be.

They are made when there are some: the HTTP client costs 10 MiB that most nodes need not spend. Every place that a
person looks at shows a receiver that cannot be reached, since that receiver is not told. A receiver may fail for a
minute: most failures are over by the second attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from gpuagent.core.clock import Clock
from gpuagent.core.metrics.alerting import (
    ENDING,
    AlertCount,
    AlertingFigures,
    ReceiverCounts,
    RuleFailures,
    Undelivered,
    UndeliveredReason,
)
from gpuagent_alerts.alert import Incident
from gpuagent_alerts.notify.outbox.attempt import Sender
from gpuagent_alerts.notify.outbox.delivery import Delivery, DeliveryWorker
from gpuagent_alerts.notify.outbox.queue import DeliveryFigures
from gpuagent_alerts.notify.routes import Recipient
from gpuagent_alerts.states.engine import RuleEngine
from gpuagent_alerts.states.instance import State
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.problem import StoreFailure

if TYPE_CHECKING:  # it loads the HTTP client, which a node without receivers need not have
    from gpuagent.config.alerting import Receiver
    from gpuagent_alerts.masker import Masker
    from gpuagent_alerts.notify.receivers.base import Dependencies, PictureOf
    from gpuagent_alerts.notify.receivers.heartbeat import Heartbeat
    from gpuagent_alerts.notify.receivers.http import HttpClient


class ReceiverFactory:
    """Makes what sends, with one HTTP client for all. For one event loop."""

    def __init__(self, clock: Clock, store: Store) -> None:
        self._clock = clock
        self._store = store
        self._http: HttpClient | None = None
        self._masker: Masker | None = None
        self.picture_of: PictureOf | None = None
        """Draws an incident for receivers that take pictures."""

    def recipients(self, configured: Sequence[Receiver]) -> list[Recipient]:
        """Return what routing has to know of them."""
        if not configured:
            return []
        from gpuagent_alerts.notify.receivers.registry import recipient_of  # noqa: PLC0415

        return [found for receiver in configured if (found := recipient_of(receiver)) is not None]

    def senders(self, configured: Sequence[Receiver]) -> list[Sender]:
        """Return what sends messages; a heartbeat takes none."""
        if not configured:
            return []
        from gpuagent_alerts.notify.receivers.registry import build_receiver  # noqa: PLC0415

        shared = self._shared(configured)
        return [sender for receiver in configured if (sender := build_receiver(receiver, shared)) is not None]

    def heartbeats(self, configured: Sequence[Receiver], alive: Callable[[], bool]) -> list[Heartbeat]:
        """Return what calls a URL while the agent is alive."""
        if not configured:
            return []
        from gpuagent_alerts.notify.receivers.registry import build_heartbeat  # noqa: PLC0415

        shared = self._shared(configured)
        return [beat for receiver in configured if (beat := build_heartbeat(receiver, shared, alive)) is not None]

    async def close(self) -> None:
        """Close the client's connections."""
        if self._http is not None:
            await self._http.close()

    def _shared(self, configured: Sequence[Receiver]) -> Dependencies:
        from gpuagent_alerts.masker import Masker  # noqa: PLC0415
        from gpuagent_alerts.notify.receivers.base import Dependencies  # noqa: PLC0415
        from gpuagent_alerts.notify.receivers.http import HttpClient  # noqa: PLC0415
        from gpuagent_alerts.notify.receivers.registry import secret_arguments_of, secrets_of  # noqa: PLC0415

        if self._masker is None:
            self._masker = Masker()
        # Receivers that stay as they are over a reload share it too: what one of them says may quote any secret.
        self._masker.set_secrets(secrets_of(configured), secret_arguments_of(configured))
        if self._http is None:
            self._http = HttpClient(clock=self._clock, masker=self._masker)
        return Dependencies(self._http, self._clock, self._masker, self._store, picture_of=self._picture_of)

    async def _picture_of(self, incident: Incident) -> bytes:
        return b"" if self.picture_of is None else await self.picture_of(incident)


def count_alerts(
    engine: RuleEngine,
    store: Store,
    receivers: tuple[ReceiverCounts, ...],
    evaluation_seconds: float | None,
) -> AlertingFigures:
    """Return what fires and is pending, what failed, and whether the state is kept."""
    states: dict[tuple[str, str, str], int] = {}
    for running in engine.rules():
        for instance in running.states.instances if running.states is not None else ():
            if instance.state is not State.INACTIVE:
                state = ENDING if instance.is_kept else str(instance.state)
                key = (running.rule.name, state, instance.labels.get("severity", ""))
                states[key] = states.get(key, 0) + 1
    return AlertingFigures(
        rules=sum(1 for _ in engine.rules()),
        evaluation_seconds=evaluation_seconds,
        alerts=tuple(AlertCount(*key, number) for key, number in sorted(states.items())),
        failures=tuple(
            RuleFailures(running.key.group, running.key.rule, running.failures)
            for running in engine.rules()
            if running.failures
        ),
        receivers=receivers,
        store_ok=store.problem is None or not store.problem.in_memory,
        store_problem=store.problem_text,
        rows_set_aside=tuple(sorted(store.set_aside_rows.items())),
    )


def count_messages(delivery: Delivery) -> tuple[ReceiverCounts, ...]:
    """Return what became of messages until now, for each receiver. It asks the store: call it in a thread."""
    try:
        figures: Mapping[str, DeliveryFigures] = delivery.figures()
    except StoreFailure:
        figures = {}
    return tuple(
        ReceiverCounts(
            name, one.queued, one.dead, one.oldest_undelivered_seconds,
            one.counters.sent, one.counters.failed, one.counters.dropped,
            one.counters.held,
        )
        for name, one in sorted(figures.items())
    )  # fmt: skip


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
    return (
        *found,
        *(Undelivered(beat.name, UndeliveredReason.FAILING, str(beat.last), beat.failing_since) for beat in failing),
    )


def _of(counts: ReceiverCounts, worker: DeliveryWorker | None, now_seconds: float) -> Iterator[Undelivered]:
    name, last = counts.receiver, "" if worker is None or worker.failing_since is None else str(worker.last)
    oldest = None if counts.oldest_seconds is None else now_seconds - counts.oldest_seconds
    if worker is not None and worker.off is not None:
        yield Undelivered(name, UndeliveredReason.OFF, str(worker.off.outcome), None, counts.queued)
    elif worker is not None and _for_long(worker.failing_since, now_seconds):
        yield Undelivered(name, UndeliveredReason.FAILING, last, worker.failing_since, counts.queued)
    elif counts.queued and _for_long(oldest, now_seconds):
        yield Undelivered(
            name,
            UndeliveredReason.WAITING,
            "" if worker is None or worker.failing_since is None else last,
            oldest,
            counts.queued,
        )
    if counts.dead:
        yield Undelivered(name, UndeliveredReason.DEAD, "", None, counts.dead)


def _for_long(since: float | None, now_seconds: float) -> bool:
    return since is not None and now_seconds - since >= PATIENCE_SECONDS
