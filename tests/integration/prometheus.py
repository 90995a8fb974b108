"""Prometheus itself, scraping agents every second."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tests.integration.waiting import free_port, until

# No proxy: an http_proxy in the environment would be asked for 127.0.0.1 too.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Point(NamedTuple):
    """One series of an answer."""

    labels: dict[str, str]
    value: float


@dataclass(frozen=True)
class Prometheus:
    """A running server."""

    url: str

    def query(self, expr: str) -> list[Point]:
        """The present value of an expression. Raises AssertionError with the server's words where it is wrong."""
        answer = self._get("/api/v1/query", query=expr)
        assert answer["status"] == "success", answer
        data = answer["data"]
        if data["resultType"] == "scalar":
            return [Point({}, float(data["result"][1]))]
        return [Point(each["metric"], float(each["value"][1])) for each in data["result"]]

    def targets(self) -> dict[str, dict[str, Any]]:
        """What it scrapes, by job, as it tells."""
        active = self._get("/api/v1/targets")["data"]["activeTargets"]
        return {target["labels"]["job"]: target for target in active}

    def wait_until(self, expr: str) -> list[Point]:
        """Until the expression has a value that is not 0."""
        return until(lambda: [point for point in self.query(expr) if point.value], expr)

    def over_time(self, expr: str, start: float, end: float, step: float = 5) -> Any:
        """The answer to a range query, as it is."""
        return self._get("/api/v1/query_range", query=expr, start=str(start), end=str(end), step=str(step))

    def at(self, expr: str, end: float) -> Any:
        """The answer to an instant query, as it is."""
        return self._get("/api/v1/query", query=expr, time=str(end))

    def alerts(self) -> list[dict[str, Any]]:
        """What is pending and what fires."""
        found: list[dict[str, Any]] = self._get("/api/v1/alerts")["data"]["alerts"]
        return found

    def is_ready(self) -> bool:
        try:
            self._get("/api/v1/status/buildinfo")
        except (OSError, ValueError):  # while it starts it says in plain text that it is not ready
            return False
        return True

    def _get(self, path: str, **parameters: str) -> Any:
        try:
            with _OPENER.open(f"{self.url}{path}?{urllib.parse.urlencode(parameters)}", timeout=10) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            return json.load(error)


@contextmanager
def running_prometheus(
    folder: Path, jobs: Mapping[str, int], rules: Sequence[Path] = (), interval: str = "1s"
) -> Iterator[Prometheus]:
    """A server that scrapes one port of this machine for each job and evaluates rule files, ended in every case."""
    scrapes = [{"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{at}"]}]} for job, at in jobs.items()]
    document = {
        "global": {"scrape_interval": "1s", "evaluation_interval": interval},
        "rule_files": [str(path) for path in rules],
        "scrape_configs": scrapes,
    }
    with configured_prometheus(folder, document) as server:
        yield server


@contextmanager
def configured_prometheus(folder: Path, document: Mapping[str, Any]) -> Iterator[Prometheus]:
    """A server with this configuration, ended in every case. Its data is in `folder/data`."""
    port = free_port()
    config = folder / "prometheus.yml"
    config.write_text(json.dumps(document), encoding="utf-8")
    command = [
        "prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
    ]  # fmt: skip
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    server = Prometheus(f"http://127.0.0.1:{port}")
    try:
        until(lambda: process.poll() is not None or server.is_ready(), "Prometheus answers")
        assert process.poll() is None, (folder / "prometheus.log").read_text(encoding="utf-8")
        yield server
    finally:
        process.kill()
        process.wait()
