"""The document of alerts as an agent answers it, and commands that ask for it."""

from __future__ import annotations

from typing import Any

from typer.testing import CliRunner

from gpuagent.cli.app import app
from tests.fakes.answering import answering, says

NOW = 1_700_000_000.0
ALERT: dict[str, Any] = {
    "name": "GpuMemoryFull",
    "state": "firing",
    "severity": "critical",
    "fingerprint": "0123456789abcdef",
    "labels": {"alertname": "GpuMemoryFull", "gpu": "3", "pid": "4242"},
    "annotations": {"summary": "GPU 3: memory is full"},
    "value": 85899345920.0,
    "active_seconds": 8040.0,
    "starts_at_seconds": NOW - 8000,
    "silenced_by": [],
    "muted_by": "",
    "acknowledged_by": "",
    "receivers": ["pager", "chat"],
}
SILENCE: dict[str, Any] = {
    "id": "023876e1",
    "matchers": ['gpu="3"'],
    "state": "active",
    "starts_at_seconds": NOW - 60,
    "ends_at_seconds": NOW + 3600,
    "comment": "driver work",
    "creator": "alice",
}
RECEIVER: dict[str, Any] = {
    "receiver": "pager",
    "kind": "pagerduty",
    "queued": 2,
    "dead": 1,
    "oldest_seconds": 90.0,
    "sent": 40,
    "failed": 3,
    "dropped": 0,
    "last": "it answered 503",
    "off": "",
    "off_since_seconds": None,
}
HEARTBEAT = {"receiver": "alive", "interval_seconds": 60.0, "sent": 99, "failed": 0, "last": "delivered"}
LETTER = {
    "id": "gpa_7",
    "receiver": "pager",
    "status": "firing",
    "alerts": ["GpuMemoryFull"],
    "created_seconds": NOW - 3600,
    "attempts": 3,
    "error": "it answered 400",
}


def document(**changes: Any) -> dict[str, Any]:
    """Of one alert, one silence and one receiver."""
    return {
        "schema": 1,
        "time_seconds": NOW,
        "alerting": "node",
        "alerts": [ALERT],
        "silences": [SILENCE],
        "receivers": [RECEIVER],
        "heartbeats": [],
        "rules": 19,
        "failing_rules": [],
        "store_problem": "",
    } | changes


def run(*words: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error."""
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.stdout, result.stderr


def asked(answer: Any, *words: str, status: str = "200 OK") -> tuple[int, str, str, bytes]:
    """The same, of an agent that answers so; and what it was asked."""
    requests: list[bytes] = []
    with answering(says(answer, status, requests)) as place:
        result = run(*words, "--socket", str(place))
    return *result, requests[0]
