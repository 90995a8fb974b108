"""A collector that takes OTLP over HTTP and keeps what it was sent, decoded by OpenTelemetry's own messages."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

KINDS: dict[str, Any] = {"/v1/metrics": ExportMetricsServiceRequest, "/v1/logs": ExportLogsServiceRequest}


class OtlpCollector:
    """Listens on a free port as long as the block lasts, and answers with `status`."""

    def __init__(self) -> None:
        self.status = 200
        self.answer_after: threading.Event | None = None
        """Set to have requests wait."""
        self.metrics: list[ExportMetricsServiceRequest] = []
        self.logs: list[ExportLogsServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.arrived = threading.Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector._take(self)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def _take(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        if handler.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.headers.append({name.lower(): value for name, value in handler.headers.items()})
        if self.answer_after is not None:
            self.arrived.set()
            self.answer_after.wait(30)
        if self.status == 200:
            message = KINDS[handler.path]()
            message.ParseFromString(body)
            kept: list[Any] = self.metrics if handler.path == "/v1/metrics" else self.logs
            kept.append(message)
        handler.send_response(self.status)
        if self.status == 302:
            handler.send_header("Location", f"{self.url}/elsewhere")
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def points(self) -> dict[str, list[tuple[dict[str, str], float]]]:
        """Attributes and values of the last metrics, by name."""
        found: dict[str, list[tuple[dict[str, str], float]]] = {}
        for scope in self.metrics[-1].resource_metrics[0].scope_metrics:
            for metric in scope.metrics:
                data = metric.gauge if metric.HasField("gauge") else metric.sum
                for point in data.data_points:
                    value = point.as_double if point.HasField("as_double") else float(point.as_int)
                    found.setdefault(metric.name, []).append((attributes(point.attributes), value))
        return found


def attributes(pairs: Any) -> dict[str, str]:
    """Attributes as a dict of texts."""
    return {pair.key: pair.value.string_value for pair in pairs}
