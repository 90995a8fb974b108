"""What is pushed of incidents, and how a push that fails is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from gpuagent.config.otlp import Otlp
from gpuagent.core.metrics.alerting import AlertingFigures, Undelivered, UndeliveredReason
from gpuagent.service.otlp import IncidentChanges, OtlpPush
from gpuagent_alerts.alert import CauseKind
from gpuagent_alerts.notify.incident_record import IncidentRecord
from gpuagent_exporters.otlp.batch import Batch
from gpuagent_exporters.otlp.sender import OtlpSender
from tests.fakes.otlp_collector import OtlpCollector, attributes
from tests.integration.agent import running_agent
from tests.integration.waiting import until

RECORD = IncidentRecord(
    "k1", CauseKind.PROCESS, ("pid:7",), {"process": "trainer", "pid": "7"}, 100.0, None, {"f1": True}, "warning", "f1"
)


def changes(*steps: Mapping[str, IncidentRecord]) -> list[list[tuple[str, float, str]]]:
    """Names, times and severities of the events of each step."""
    current: dict[str, IncidentRecord] = {}
    watched = IncidentChanges(lambda: current)
    found = []
    for step in steps:
        current.clear()
        current.update(step)
        events = watched.since_last([], 500.0)
        found.append([(one.name.rpartition(".")[2], one.unix_seconds, one.severity) for one in events])
    return found


def test_the_life_of_an_incident() -> None:
    """It begins, becomes worse, ends and begins again, each told once and at its own time."""
    worse = replace(RECORD, severity="critical")
    over = replace(worse, ends_at=300.0, headline="trainer ended")
    again = replace(worse, starts_at=400.0, reopened=1)

    assert changes(
        {}, {"k1": RECORD}, {"k1": RECORD}, {"k1": worse}, {"k1": over}, {"k1": over}, {"k1": again}, {}
    ) == [
        [],
        [("began", 100.0, "warning")],
        [],
        [("changed", 500.0, "critical")],
        [("ended", 300.0, "critical")],
        [],
        [("began", 400.0, "critical")],
        [],
    ]


def test_an_agent_that_starts_tells_what_goes_on() -> None:
    """What ended before it began is no news."""
    over = replace(RECORD, key="k2", ends_at=90.0)

    assert changes({"k1": RECORD, "k2": over}) == [[("began", 100.0, "warning")]]


def test_words_of_an_event() -> None:
    """An end has its headline, and empty labels are left out."""
    over = replace(RECORD, ends_at=300.0, headline="trainer ended", labels={"process": "trainer", "unit": ""})
    current = {"k1": RECORD}
    watched = IncidentChanges(lambda: current)
    (began,) = watched.since_last([], 1.0)
    current["k1"] = over
    (ended,) = watched.since_last([], 1.0)

    assert (began.body, ended.body) == ("incident k1 began", "trainer ended")
    assert ended.attributes == {
        "process": "trainer",
        "gpuagent.incident.key": "k1",
        "gpuagent.incident.kind": "process",
    }


def test_a_push_that_fails_is_told_like_a_receiver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted from the first failure; a trouble of the status after a minute of them."""
    now = [50.0]
    push = OtlpPush(Otlp(endpoint="http://127.0.0.1:9"), "node1", dict, list, lambda: now[0])
    sender = push._sender
    assert isinstance(sender, OtlpSender)
    sender.push(Batch(0.0, []))
    figures = AlertingFigures(1, 0.0)

    told = push.added_to(figures)
    assert told is not None
    (counts,) = told.receivers
    assert (counts.receiver, counts.sent, counts.failed, told.undelivered) == ("otlp", 0, 1, ())
    now[0] = 110.0
    told = push.added_to(figures)
    assert told is not None
    reason = "it could not be reached (ConnectionError)"
    assert told.undelivered == (Undelivered("otlp", UndeliveredReason.FAILING, reason, 50.0),)


def test_nothing_is_pushed_by_default() -> None:
    """Without an endpoint there is no thread, no figure and no package that is loaded."""
    push = OtlpPush(Otlp(), "node1", dict, list, lambda: 0.0)
    push.start()
    push.push([])

    assert not push.is_on
    figures = AlertingFigures(1, 0.0)
    assert push.added_to(figures) is figures


@pytest.mark.slow
def test_an_agent_pushes(tmp_path: Path) -> None:
    """A running agent pushes the figures of its GPUs and an incident, and counts it on `/metrics`."""
    headers = tmp_path / "headers"
    headers.write_text("X-Token: abc\n")
    headers.chmod(0o600)
    with OtlpCollector() as collector:
        keys = {"endpoint": collector.url, "headers_file": str(headers), "interval": "1s"}
        with running_agent(tmp_path, "lost-gpu", speed=20, otlp=keys) as agent:
            agent.wait_until_ready()
            until(lambda: collector.logs, "an incident is pushed")
            until(
                lambda: 'gpuagent_notifications_sent_total{receiver="otlp"}' in agent.get("/metrics").text,
                "it is counted",
            )
            points = collector.points()
    assert collector.headers[0]["x-token"] == "abc"
    assert {one["hw.type"] for one, _ in points["hw.gpu.memory.usage"]} == {"gpu"}
    assert ({}, 1.0) in points["gpuagent_nvml_up"]
    record = collector.logs[0].resource_logs[0].scope_logs[0].log_records[0]
    assert record.event_name == "gpuagent.incident.began"
    assert attributes(record.attributes)["gpuagent.incident.alerts"]
