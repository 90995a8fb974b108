"""PagerDuty's limits, and what makes an incident."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent_alerts.alert import Message, News
from gpuagent_alerts.notify.outbox.attempt import Reason
from gpuagent_alerts.notify.receivers.http import HttpClient
from gpuagent_alerts.notify.receivers.pagerduty import Pagerduty, dedup_key, event
from gpuagent_alerts.secret import Secret
from tests.alerts.incident_messages import BRIEFING, LINKS, about, incident
from tests.alerts.messages import CONTEXT, alert, message
from tests.alerts.notify.receivers.sink import Reply, always, sink
from tests.alerts.notify.receivers.test_slack import ALERTS

KEY = "R0UT1NGKEYR0UT1NGKEYR0UT1NGKEY12"


def read(sent: Message) -> dict[str, Any]:
    """The event, checked against the documented limits."""
    body = event(sent, CONTEXT, KEY)
    document: dict[str, Any] = json.loads(body)
    assert len(body) <= 512_000
    assert document["event_action"] in {"trigger", "resolve"}
    assert 0 < len(document["dedup_key"]) <= 255
    assert document["payload"]["severity"] in {"critical", "error", "warning", "info"}
    assert 0 < len(document["payload"]["summary"]) <= 1024
    assert document["payload"]["source"]
    return document


@given(st.lists(ALERTS, min_size=1, max_size=5))
def test_every_event_is_valid(alerts: list[Any]) -> None:
    """Whatever is in labels and annotations, the event is one that PagerDuty takes."""
    assert read(message(*alerts))["routing_key"] == KEY


def test_the_end_has_the_key_of_the_beginning() -> None:
    """An incident is resolved by the name that it was triggered with, which is that of the group."""
    first, last = read(message(alert(), group="a")), read(message(alert(ended=True), group="a"))
    other = read(message(alert(), group="b"))

    assert (first["event_action"], last["event_action"]) == ("trigger", "resolve")
    assert first["dedup_key"] == last["dedup_key"] != other["dedup_key"]


def test_an_incident_lives_while_one_alert_of_its_group_fires() -> None:
    """One that ended beside one that goes on does not close it."""
    assert read(message(alert(), alert(gpu="1", ended=True)))["event_action"] == "trigger"


@pytest.mark.parametrize(
    ("severity", "theirs"),
    [
        ("critical", "critical"),
        ("warning", "warning"),
        ("info", "info"),
        ("none", "info"),
        ("", "error"),
        ("p1", "error"),
    ],
)
def test_severities_are_theirs(severity: str, theirs: str) -> None:
    """What they do not know becomes an error, never nothing."""
    assert read(message(alert(severity=severity)))["payload"]["severity"] == theirs


def test_the_worst_of_a_group_counts() -> None:
    """A group of a warning and something critical is critical; what ended does not count."""
    mixed = message(alert(severity="info"), alert(severity="warning", gpu="1"), alert(gpu="2", ended=True))

    assert read(mixed)["payload"]["severity"] == "warning"


def test_an_event_that_is_too_large_loses_its_details() -> None:
    """512 KB is their limit: the incident matters more than its details."""
    huge = replace(alert(), annotations={"summary": "Gone.", "description": "x" * 600_000})
    document = read(message(huge))

    assert document["payload"]["summary"].endswith("Gone.")
    assert document["payload"]["custom_details"] == {"alerts": "1, too large to be listed"}


def test_group_names_of_any_length_make_a_key() -> None:
    """255 characters are allowed; a group may be named by much longer labels."""
    assert len(dedup_key(message(group="x" * 10_000))) <= 255


def test_a_refusal_shows_no_routing_key() -> None:
    """Their answer may repeat the key; the outcome does not."""
    refusal = Reply(400, body=f'{{"errors": ["routing key {KEY} is bad"]}}'.encode())

    async def once(url: str) -> Any:
        http = HttpClient()
        try:
            return await Pagerduty(http, Secret("routing key", KEY), url).send(message(), CONTEXT)
        finally:
            await http.close()

    with sink(always(refusal)) as receiver:
        outcome = asyncio.run(once(receiver.url))
        (request,) = receiver.asked

    assert (outcome.reason, KEY in repr(outcome)) == (Reason.REFUSED, False)
    assert json.loads(request.body)["routing_key"] == KEY


def test_a_plot_is_an_image_there() -> None:
    """PagerDuty shows pictures that are served by HTTPS, and no others."""
    for scheme, images in (("https", True), ("http", False)):
        plot = f"{scheme}://node7/api/v1/leaks/7/plot.svg?gpu=GPU-1"
        drawn = replace(BRIEFING, links={**LINKS, "plot": plot})
        document = read(about(incident(briefing=drawn)))
        assert {"href": plot, "text": "Memory over time"} in document["links"]
        shown = [{"src": plot, "href": LINKS["page"], "alt": "Memory over time"}]
        assert document.get("images", []) == (shown if images else [])


def test_an_incident_is_one_there() -> None:
    """Its key, headline, severity, beginning and links; what helps to decide is in the details."""
    first, last = read(about(incident())), read(about(incident(News.ENDED)))

    assert (first["event_action"], last["event_action"]) == ("trigger", "resolve")
    assert first["dedup_key"] == last["dedup_key"] == incident().key
    assert first["payload"]["summary"] == BRIEFING.headline
    assert (first["payload"]["severity"], first["payload"]["timestamp"]) == ("critical", "2023-11-14T22:03:20.000Z")
    assert first["client_url"] == LINKS["page"]
    assert {"href": LINKS["runbook"], "text": "Runbook"} in first["links"]
    assert "images" not in first
    details = first["payload"]["custom_details"]
    assert details["largest holders"] == ["whisper-api (svc-ml, pid 81204) 44.1 GiB", "python3 (ann, pid 7) 9.0 GiB"]
    assert details["next command"] == "gpuagent blame 81204"
    assert last["payload"]["custom_details"]["ended because"] == "the process ended; 44.1 GiB came back"


def test_an_incident_goes_on_though_an_alert_of_it_ended() -> None:
    """A message whose alerts have all ended does not close an incident that goes on."""
    told = about(incident(News.REMINDER), alert("GpuMemoryFull", ended=True))
    assert read(told)["event_action"] == "trigger"


def test_what_was_over_before_it_could_be_told_is_triggered_first() -> None:
    """PagerDuty drops the end of what it does not know: it hears of both, and of both again where one is refused."""

    async def send(url: str, sent: Message) -> Any:
        http = HttpClient()
        try:
            return await Pagerduty(http, Secret("routing key", KEY), url).send(sent, CONTEXT)
        finally:
            await http.close()

    ended = about(incident(News.ENDED))
    for refused, asked in ((False, ["trigger", "resolve"]), (True, ["trigger"])):
        with sink(always(Reply(503)) if refused else None) as receiver:
            outcome = asyncio.run(send(receiver.url, replace(ended, tells_beginning=True)))
            events = [json.loads(one.body) for one in receiver.asked]
        assert [one["event_action"] for one in events] == asked
        assert outcome.ok is not refused
        assert len({one["dedup_key"] for one in events}) == 1
        assert events[0]["payload"]["severity"] == "critical"
    with sink() as receiver:
        asyncio.run(send(receiver.url, ended))
        assert [json.loads(one.body)["event_action"] for one in receiver.asked] == ["resolve"]
