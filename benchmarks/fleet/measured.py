"""One real Prometheus with all rules that scrapes so many nodes for so long, and what it then says of itself."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from tests.integration.prometheus import Prometheus, configured_prometheus

from benchmarks.fleet.nodes import serving
from gpuagent_alerts.shipped import RULES_FILE

_RULES = Path(__file__).parents[2] / "grafana" / "prometheus"
_MEAN_SECONDS = 60
RULE_FILES = (_RULES / "gpuagent.recording.yaml", _RULES / "gpuagent.fleet.yaml", RULES_FILE)


@dataclass(frozen=True, slots=True)
class Load:
    """Who is scraped, how often, and for how long."""

    scrapes: Sequence[bytes]
    nodes: int
    interval_seconds: int
    minutes: float


@dataclass(frozen=True, slots=True)
class Cost:
    """What Prometheus needed."""

    series: int
    """In its head, those of the rules included."""
    samples_per_second: float
    resident_bytes: int
    cpu_cores: float
    """Mean over the last minute."""
    scrape_seconds: float
    """Median time of a scrape."""
    groups: tuple[tuple[str, float, float], ...]
    """Rule groups by name: their interval, and how long the last evaluation took; seconds, the slowest first."""
    unhealthy: int
    """Nodes whose last scrape failed, and rules that do."""


def measure(load: Load, folder: Path) -> Cost:
    """Scrape for a while."""
    with serving(load.scrapes) as port:
        nodes = [
            {
                "targets": [f"127.0.0.1:{port}"],
                "labels": {"__metrics_path__": f"/node/{number}/metrics", "instance": f"node-{number:04d}"},
            }
            for number in range(load.nodes)
        ]
        document = {
            "global": {
                "scrape_interval": f"{load.interval_seconds}s",
                "evaluation_interval": f"{load.interval_seconds}s",
            },
            "rule_files": [str(path) for path in RULE_FILES],
            "scrape_configs": [{"job_name": "gpuagent", "scrape_timeout": "10s", "static_configs": nodes}],
        }
        with configured_prometheus(folder, document) as server:
            time.sleep(load.minutes * 60)
            return _told(server, load)


def _told(server: Prometheus, load: Load) -> Cost:
    before, began = _own(server), time.monotonic()
    time.sleep(_MEAN_SECONDS)
    after, seconds = _own(server), time.monotonic() - began

    def rate(name: str) -> float:
        return (after[name][0][1] - before[name][0][1]) / seconds

    def by_group(name: str) -> dict[str, float]:
        return {labels["rule_group"].rpartition(";")[2]: value for labels, value in after[name]}

    intervals, took = (
        by_group("prometheus_rule_group_interval_seconds"),
        by_group("prometheus_rule_group_last_duration_seconds"),
    )
    failures = sum(value for _, value in after["prometheus_rule_evaluation_failures_total"])
    return Cost(
        series=int(after["prometheus_tsdb_head_series"][0][1]),
        samples_per_second=rate("prometheus_tsdb_head_samples_appended_total"),
        resident_bytes=int(after["process_resident_memory_bytes"][0][1]),
        cpu_cores=rate("process_cpu_seconds_total"),
        scrape_seconds=server.query("quantile(0.5, scrape_duration_seconds)")[0].value,
        groups=tuple(sorted(((name, intervals[name], took[name]) for name in took), key=lambda one: -one[2])),
        unhealthy=load.nodes - round(server.query("sum(up) or vector(0)")[0].value) + round(failures),
    )


def _own(server: Prometheus) -> dict[str, list[tuple[dict[str, str], float]]]:
    """What the server exports of itself, by the name of the series."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as answer:
        for family in text_string_to_metric_families(answer.read().decode()):
            for sample in family.samples:
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found
