"""The push to an OpenTelemetry collector: what is pushed and when, and how it is told that it fails.

Its figures stand beside those of receivers, under the name `otlp`: in the same metrics and the
same lines of `gpuagent status`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from gpuagent import __version__
from gpuagent.config.otlp import Otlp
from gpuagent.core.metrics.alerting import AlertingFigures, ReceiverCounts, Undelivered, UndeliveredReason
from gpuagent.service.receivers import PATIENCE_SECONDS
from gpuagent_alerts.alert import Alert
from gpuagent_alerts.notify.incident_record import IncidentRecord
from gpuagent_exporters.exposition import Series
from gpuagent_exporters.otlp.batch import Batch, IncidentEvent
from gpuagent_exporters.otlp.sender import TIMEOUT_SECONDS, Exporter, OtlpSender

NAME = "otlp"
Incidents = Callable[[], Mapping[str, IncidentRecord]]
Alerts = Callable[[], Iterable[Alert]]


class OtlpPush:
    """Hands a batch to the sender every `interval`; nothing where it is not configured. For one event loop."""

    def __init__(
        self, settings: Otlp, node: str, incidents: Incidents, firing: Alerts, now: Callable[[], float]
    ) -> None:
        self.interval_seconds = settings.interval
        self._now = now
        self._firing = firing
        self._changes = IncidentChanges(incidents)
        self._sender: OtlpSender | None = None
        if settings.endpoint is not None:
            about = {"service.name": "gpuagent", "service.version": __version__, "host.name": node}
            self._sender = OtlpSender(_maker(settings.endpoint, about), settings.headers_file, now)

    @property
    def is_on(self) -> bool:
        """Whether there is a collector to push to."""
        return self._sender is not None

    def start(self) -> None:
        """Start the thread that pushes."""
        if self._sender is not None:
            self._sender.start()

    def push(self, series: Series) -> None:
        """Have the series of now pushed, and what incidents have come to; returns at once."""
        if self._sender is not None:
            now = time.time()
            self._sender.offer(Batch(now, list(series), list(self._changes.since_last(self._firing(), now))))

    def added_to(self, figures: AlertingFigures | None) -> AlertingFigures | None:
        """Return figures of receivers with those of the push."""
        if self._sender is None or figures is None:
            return figures
        own = self._sender.figures()
        counts = ReceiverCounts(NAME, own.waiting, 0, None, own.sent, own.failed, own.dropped)
        undelivered = figures.undelivered
        if own.failing_since is not None and self._now() - own.failing_since >= PATIENCE_SECONDS:
            trouble = Undelivered(NAME, UndeliveredReason.FAILING, own.reason, own.failing_since, own.waiting)
            undelivered = (*undelivered, trouble)
        return replace(figures, receivers=(*figures.receivers, counts), undelivered=undelivered)


def _maker(endpoint: str, about: Mapping[str, str]) -> Callable[[Mapping[str, str]], Exporter]:
    def make(headers: Mapping[str, str]) -> Exporter:
        from gpuagent_exporters.otlp.payload import Exporters  # noqa: PLC0415 - an optional package, in the thread

        return Exporters(endpoint, headers, TIMEOUT_SECONDS, about)

    return make


class IncidentChanges:
    """What incidents have come to since the last time. Those that ended before the first time are not told."""

    def __init__(self, incidents: Incidents) -> None:
        self._incidents = incidents
        self._known: dict[str, IncidentRecord] | None = None

    def since_last(self, firing: Iterable[Alert], now: float) -> Iterator[IncidentEvent]:
        """Yield an event for each incident that began, got another severity, or ended. `now` is Unix time."""
        before, current = self._known, dict(self._incidents())
        self._known = current
        alerts = {alert.fingerprint: alert for alert in firing}
        for key, record in current.items():
            last = None if before is None else before.get(key)
            if record.ends_at is not None:
                if last is not None and last.ends_at is None:
                    yield _event("ended", record, alerts, record.ends_at)
            elif last is None or last.ends_at is not None:
                yield _event("began", record, alerts, record.starts_at)
            elif last.severity != record.severity:
                yield _event("changed", record, alerts, now)


def _event(what: str, record: IncidentRecord, alerts: Mapping[str, Alert], at: float) -> IncidentEvent:
    names = [record.gravest, *record.members]
    own = [alerts[name] for name in dict.fromkeys(names) if name in alerts]
    told = record.headline or next((alert.annotations.get("summary", "") for alert in own), "")
    attributes = {
        **record.labels,
        "gpuagent.incident.key": record.key,
        "gpuagent.incident.kind": str(record.kind),
        "gpuagent.incident.alerts": ", ".join(sorted({alert.labels.get("alertname", "") for alert in own})),
    }
    kept = {name: value for name, value in attributes.items() if value}
    return IncidentEvent(
        at, f"gpuagent.incident.{what}", record.severity, told or f"incident {record.key} {what}", kept
    )
