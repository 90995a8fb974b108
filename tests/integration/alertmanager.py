"""Alertmanager itself, alone and on this machine's own address, with a webhook that takes what it tells."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from tests.alerts.notify.receivers.sink import Sink, sink
from tests.integration.waiting import free_port, until

NAMES = ("alertmanager", "prometheus-alertmanager")
"""Upstream's, and that of Debian's package."""

# No proxy: an http_proxy in the environment would be asked for 127.0.0.1 too.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Held(NamedTuple):
    """An alert as Alertmanager has it."""

    labels: dict[str, str]
    annotations: dict[str, str]
    state: str
    """`active`, or `suppressed` by a silence."""
    starts_at: float
    ends_at: float
    """Unix time at which it takes it for over, unless it hears more."""


class Notified(NamedTuple):
    """What it told its own receiver of one alert."""

    status: str
    labels: dict[str, str]
    annotations: dict[str, str]


@dataclass(frozen=True)
class Alertmanager:
    """A running server."""

    url: str
    receiver: Sink

    def alerts(self) -> dict[str, Held]:
        """What it takes for firing, by the name of the alert."""
        with _OPENER.open(f"{self.url}/api/v2/alerts", timeout=10) as response:
            documents = json.load(response)
        return {document["labels"]["alertname"]: _held(document) for document in documents}

    def notified(self, name: str) -> list[Notified]:
        """What it has told of an alert, in order."""
        bodies = [json.loads(request.body) for request in self.receiver.processed]
        return [
            Notified(alert["status"], alert["labels"], alert["annotations"])
            for body in bodies
            for alert in body["alerts"]
            if alert["labels"]["alertname"] == name
        ]

    def amtool(self, *words: str) -> str:
        """What its own command says."""
        command = ["amtool", f"--alertmanager.url={self.url}", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()

    def is_ready(self) -> bool:
        try:
            with _OPENER.open(f"{self.url}/-/ready", timeout=10):
                return True
        except OSError:
            return False


@contextmanager
def running_alertmanager(folder: Path) -> Iterator[Alertmanager]:
    """A server that tells at once of every alert by itself, ended in every case."""
    with sink() as receiver:
        route = {
            "receiver": "hook", "group_by": ["..."],
            "group_wait": "0s", "group_interval": "1s", "repeat_interval": "1h",
        }  # fmt: skip
        hook = {"name": "hook", "webhook_configs": [{"url": receiver.url, "send_resolved": True}]}
        with configured_alertmanager(folder, {"route": route, "receivers": [hook]}, receiver) as server:
            yield server


@contextmanager
def configured_alertmanager(folder: Path, document: Mapping[str, Any], receiver: Sink) -> Iterator[Alertmanager]:
    """A server with this configuration, in which `receiver` stands, ended in every case."""
    port = free_port()
    config = folder / "alertmanager.yml"
    config.write_text(json.dumps(document), encoding="utf-8")
    program = next(path for name in NAMES if (path := shutil.which(name)))
    command = [
        program, f"--config.file={config}", f"--storage.path={folder / 'am'}",
        f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address=", "--log.level=warn",
    ]  # fmt: skip
    with (folder / "alertmanager.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    server = Alertmanager(f"http://127.0.0.1:{port}", receiver)
    try:
        until(lambda: process.poll() is not None or server.is_ready(), "Alertmanager answers")
        assert process.poll() is None, (folder / "alertmanager.log").read_text(encoding="utf-8")
        yield server
    finally:
        process.kill()
        process.wait()


def _held(document: Any) -> Held:
    return Held(
        document["labels"],
        document["annotations"],
        document["status"]["state"],
        _unix(document["startsAt"]),
        _unix(document["endsAt"]),
    )


def _unix(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
