"""The webhook's document is the one that docs/webhook.schema.json describes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuagent_alerts.alert import Alert, Briefing, CauseKind, Message, News, Report
from gpuagent_alerts.notify.receivers.webhook import SCHEMA, version_4
from tests.alerts.incident_messages import BRIEFING, KEY, about, incident
from tests.alerts.messages import CONTEXT, alert, message
from tests.alerts.notify.receivers.test_slack import ALERTS, BRIEFINGS

DESCRIBED: dict[str, Any] = json.loads((Path(__file__).parents[4] / "docs" / "webhook.schema.json").read_text())


def check(told: Message) -> dict[str, Any]:
    """The document, if it is as it is described."""
    document: dict[str, Any] = json.loads(json.dumps(version_4(told, CONTEXT)))
    jsonschema_rs.validate(DESCRIBED, document)
    return document


def test_the_description_is_of_this_version() -> None:
    """Both carry the number that a reader goes by."""
    assert DESCRIBED["properties"]["schema"]["const"] == SCHEMA


@pytest.mark.parametrize("told", [message(), message(alert(ended=True)), *(about(incident(news)) for news in News)])
def test_every_kind_of_message(told: Message) -> None:
    """Alerts alone, and an incident at each point of its story."""
    check(told)


def test_a_report_is_beside_its_alert() -> None:
    """Whoever reads alerts sees one that is over; the report stands in a field of its own, and in the headline."""
    told = replace(message(alert(ended=True)), report=Report("GPU usage of n1", "| user |", "markdown"))

    found = check(told)
    assert (found["headline"], found["status"]) == ("GPU usage of n1", "resolved")
    assert found["report"] == {"title": "GPU usage of n1", "text": "| user |", "format": "markdown"}


@settings(max_examples=30)
@given(st.lists(ALERTS, min_size=1, max_size=4), BRIEFINGS, st.sampled_from(News))
def test_whatever_is_in_it(alerts: list[Alert], briefing: Briefing, news: News) -> None:
    """Hostile texts change no form."""
    check(about(incident(news, briefing=briefing), *alerts))


def test_an_incident_has_all_that_is_known() -> None:
    """Fields that no person is shown are in the document: UUID, bytes, what kind of thing it happened to."""
    found = check(about(incident()))["incident"]

    assert (found["key"], found["kind"], found["news"]) == (KEY, CauseKind.PROCESS, News.BEGAN)
    assert found["labels"]["uuid"] == "GPU-1"
    assert found["headline"] == BRIEFING.headline
    assert found["holders"][0] == {
        "pid": 81204, "process": "whisper-api", "user": "svc-ml", "used_bytes": 47_352_014_438,
    }  # fmt: skip
    assert (found["status"], found["endsAt"]) == ("firing", None)
    assert check(about(incident(News.ENDED)))["incident"]["end_reason"] == "the process ended; 44.1 GiB came back"
