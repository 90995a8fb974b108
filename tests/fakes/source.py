"""A source of everything that the HTTP side tells, made by hand."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from gpuagent.core.growth import MemoryKey
from gpuagent_exporters.api.routes import ChartSource, Points
from gpuagent_exporters.charts import Chart

METRICS = b"# TYPE gpuagent_build_info gauge\ngpuagent_build_info 1\n"
OPENMETRICS = METRICS + b"# EOF\n"


def status_document(**changes: Any) -> dict[str, Any]:
    """A node with one GPU and one process, with `changes` to its top keys."""
    gpu = {
        "index": 0,
        "uuid": "GPU-0000",
        "name": "NVIDIA H100 80GB HBM3",
        "state": "ok",
        "reason": "",
        "memory_total_bytes": 80 * 1024**3,
        "memory_used_bytes": 60 * 1024**3,
        "memory_used_ratio": 0.75,
        "memory_processes_bytes": 58 * 1024**3,
        "memory_dead_processes_bytes": 0,
        "memory_unattributed_bytes": 2 * 1024**3,
        "utilization_ratio": 0.5,
        "temperature_celsius": 61.0,
        "power_watts": 412.3,
        "power_limit_watts": 700.0,
        "throttle_reasons": [],
        "processes": 1,
        "memory_used_history_bytes": [58 * 1024**3, None, 59 * 1024**3, 60 * 1024**3],
        "mig": [],
    }
    process = {
        "gpu": 0,
        "pid": 4242,
        "process": "python3",
        "user": "alice",
        "uid": 1000,
        "state": "live",
        "memory_used_bytes": 58 * 1024**3,
        "sm_utilization_ratio": None,
        "unit": "whisper.service",
        "command": "python3 serve.py --port 8000",
    }
    document = {
        "schema": 1,
        "source": "agent",
        "agent": {
            "version": "0.1.0",
            "uptime_seconds": 60.0,
            "simulated": "",
            "poll_interval_seconds": 1.0,
        },
        "age_seconds": 0.4,
        "node": {"driver_version": "570.86.15", "cuda_version": "12.8"},
        "problems": [],
        "gpus": [gpu],
        "processes": [process],
    }
    return {**document, **changes}


class FakePoints:
    """Points of the charts, as they were given."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.whole = document
        self.asked: list[tuple[str, int]] = []

    def document(self, since: str = "", top: int = 6) -> Mapping[str, Any]:
        self.asked.append((since, top))
        return self.whole


class FakeCharts:
    """Draws nothing, and remembers what it was asked for."""

    def __init__(self, chart: Chart | None = None) -> None:
        self.drawn = chart or Chart()
        self.asked: list[tuple[str, frozenset[MemoryKey]]] = []

    def chart(self, range_name: str, first: Collection[MemoryKey] = frozenset()) -> Chart:
        self.asked.append((range_name, frozenset(first)))
        return self.drawn


class FakeSource:
    """Tells what it was given; an exception in the place of a value is raised."""

    def __init__(
        self,
        *,
        metrics: bytes | Exception = METRICS,
        status: Mapping[str, Any] | None = None,
        healthy: tuple[bool, str] = (True, ""),
        ready: tuple[bool, str] = (True, ""),
    ) -> None:
        self.body = metrics
        self.document = status if status is not None else status_document()
        self.health = healthy
        self.readiness = ready
        self.asked = 0
        self.history: Points = FakePoints({"schema": 1, "gpus": []})
        self.charts: ChartSource = FakeCharts()

    def metrics(self, openmetrics: bool) -> bytes:
        self.asked += 1
        if isinstance(self.body, Exception):
            raise self.body
        return self.body + b"# EOF\n" if openmetrics else self.body

    def status(self) -> Mapping[str, Any]:
        return self.document

    def processes(self) -> Mapping[str, Any]:
        return {key: self.document[key] for key in ("schema", "processes")}

    def healthy(self) -> tuple[bool, str]:
        return self.health

    def ready(self) -> tuple[bool, str]:
        return self.readiness
