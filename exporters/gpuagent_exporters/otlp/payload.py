"""Push a batch with OpenTelemetry's own exporters: the only module that imports them.

They block: they are called in a thread of the sender's. What they retry themselves ends with the timeout.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import requests
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk._logs.export import LogRecordExportResult
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Metric as SdkMetric
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from gpuagent_exporters.otlp.batch import IncidentEvent, Metric
from gpuagent_exporters.otlp.names import Kind

_NANOSECONDS = 1_000_000_000
_SEVERITIES = {"critical": SeverityNumber.ERROR, "warning": SeverityNumber.WARN, "info": SeverityNumber.INFO}
_LOGGER = "opentelemetry.exporter.otlp"


class PushFailed(Exception):
    """The collector did not take a batch; the text says why, without its address."""


class _Session(requests.Session):
    """A session that follows no redirect, uses no proxy of the environment, and remembers how the last attempt went."""

    def __init__(self) -> None:
        super().__init__()
        self.trust_env = False
        self.outcome = "no attempt"

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:  # noqa: ANN401
        """Ask once, without following a redirect."""
        options["allow_redirects"] = False
        try:
            response = super().send(request, **options)
        except requests.Timeout:
            self.outcome = "it did not answer in time"
            raise
        except requests.RequestException as error:
            self.outcome = f"it could not be reached ({type(error).__name__})"
            raise
        self.outcome = f"it answered HTTP {response.status_code}"
        if 300 <= response.status_code < 400:  # the exporters take it for a success
            response.status_code = 400
        return response


class Exporters:
    """Exporters of metrics and of logs to one collector, with these headers."""

    def __init__(
        self, endpoint: str, headers: Mapping[str, str], timeout_seconds: float, about: Mapping[str, str]
    ) -> None:
        """`endpoint` is the base URL; `about` are the attributes of the resource."""
        logging.getLogger(_LOGGER).setLevel(logging.CRITICAL + 1)  # the sender says once what it says each time
        base = endpoint.rstrip("/")
        self._session = _Session()
        options: dict[str, Any] = {"headers": dict(headers), "timeout": timeout_seconds, "session": self._session}
        self._timeout_milliseconds = timeout_seconds * 1000
        self._metrics = OTLPMetricExporter(endpoint=f"{base}/v1/metrics", **options)
        self._logs = OTLPLogExporter(endpoint=f"{base}/v1/logs", **options)
        self._resource = Resource(dict(about))
        self._scope = InstrumentationScope("gpuagent", about.get("service.version"))

    def push_metrics(self, metrics: Sequence[Metric], unix_seconds: float) -> None:
        """Push points of one moment.

        Raises:
            PushFailed: the collector did not take them.
        """
        at = int(unix_seconds * _NANOSECONDS)
        scope = ScopeMetrics(self._scope, [_sdk_metric(one, at) for one in metrics], "")
        data = MetricsData([ResourceMetrics(self._resource, [scope], "")])
        if self._metrics.export(data, self._timeout_milliseconds) is not MetricExportResult.SUCCESS:
            raise PushFailed(self._session.outcome)

    def push_events(self, events: Sequence[IncidentEvent]) -> None:
        """Push log records.

        Raises:
            PushFailed: the collector did not take them.
        """
        records = [ReadableLogRecord(_log_record(one), self._resource, self._scope) for one in events]
        if self._logs.export(records) is not LogRecordExportResult.SUCCESS:
            raise PushFailed(self._session.outcome)


def _sdk_metric(metric: Metric, at: int) -> SdkMetric:
    points = [NumberDataPoint(dict(one.attributes), 0, at, one.value) for one in metric.points]
    data: Gauge | Sum
    if metric.name.kind is Kind.GAUGE:
        data = Gauge(points)
    else:
        data = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=metric.name.kind is Kind.COUNTER)
    return SdkMetric(metric.name.name, metric.help, metric.name.unit, data)


def _log_record(event: IncidentEvent) -> LogRecord:
    at = int(event.unix_seconds * _NANOSECONDS)
    return LogRecord(
        timestamp=at,
        observed_timestamp=at,
        severity_text=event.severity or None,
        severity_number=_SEVERITIES.get(event.severity, SeverityNumber.INFO),
        body=event.body,
        attributes=dict(event.attributes),
        event_name=event.name,
    )
