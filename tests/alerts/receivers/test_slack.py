"""Slack's limits, held by every message."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuagent_alerts.alert import Alert, Status
from gpuagent_alerts.receivers.slack import payload
from tests.alerts.messages import CONTEXT, alert, message

TEXTS = st.text(max_size=20) | st.sampled_from(
    ["<!channel>", "&" * 5000, "x" * 5000, "😀" * 3000, "`" * 100, "a\nb" * 900]
)
ALERTS = st.builds(
    Alert,
    labels=st.dictionaries(st.sampled_from(["alertname", "severity", "gpu", "command", "pid"]), TEXTS),
    annotations=st.dictionaries(st.sampled_from(["summary", "description"]), TEXTS),
    status=st.sampled_from(Status),
    starts_at=st.floats(-1e12, 1e12),
    ends_at=st.none() | st.floats(-1e12, 1e12),
)


def units(text: str) -> int:
    """Length as Slack's own code counts it."""
    return len(text.encode("utf-16-le", "replace")) // 2


def validate(document: dict[str, Any]) -> None:
    """What Slack refuses, as documented and as reported: see the module of the receiver for the sources."""
    assert 0 < units(document["text"]) <= 40_000
    assert 0 < len(document["blocks"]) <= 10
    total = 0
    for block in document["blocks"]:
        match block["type"]:
            case "header":
                assert block["text"]["type"] == "plain_text"
                assert 0 < units(block["text"]["text"]) <= 150
                total += units(block["text"]["text"])
                continue
            case "section":
                texts = [block["text"]]
            case "context":
                texts = block["elements"]
                assert 0 < len(texts) <= 10
            case other:
                raise AssertionError(other)
        for text in texts:
            assert text["type"] == "mrkdwn"
            assert 0 < units(text["text"]) <= (2900 if block["type"] == "section" else 2000)
            assert "<" not in text["text"]
            assert ">" not in text["text"]
            rest = text["text"].replace("&amp;", "").replace("&lt;", "").replace("&gt;", "")
            assert "&" not in rest
            total += units(text["text"])
    assert total <= 13_200


@settings(max_examples=80)
@given(st.lists(ALERTS, min_size=1, max_size=30))
def test_every_message_fits(alerts: list[Alert]) -> None:
    """Whatever is in labels and annotations: no block is too long, nothing is read as a mention, no escape is cut."""
    document = payload(message(*alerts), CONTEXT)

    validate(json.loads(json.dumps(document)))


def test_what_a_person_needs_is_in_it() -> None:
    """FIRING or RESOLVED in words, name, severity, node, what it means and what to do, since when, and the id."""
    document = payload(message(alert(user="alice <root>"), name="gpa_7"), CONTEXT)
    text = json.dumps(document, ensure_ascii=False)

    assert document["text"] == "FIRING: GpuLost on node7: The GPU is gone."
    for part in (
        "*FIRING* GpuLost · critical",
        "Drain the node",
        "`gpu=0`",
        "alice &lt;root&gt;",
        "since 2023",
        "gpa_7",
    ):
        assert part in text


def test_an_end_says_so_and_how_long_it_took() -> None:
    """RESOLVED in words, with both times."""
    document = payload(message(alert(ended=True)), CONTEXT)

    assert document["text"].startswith("RESOLVED: GpuLost on node7")
    assert "from 2023-11-14 22:03:20 UTC to 2023-11-14 22:13:10 UTC (9 min 50 s)" in json.dumps(document)


def test_of_many_alerts_none_is_forgotten() -> None:
    """What has no room of its own has a line, and what has no line is counted."""
    few = payload(message(*(alert(gpu=str(n)) for n in range(20))), CONTEXT)
    many = payload(message(*(alert(gpu=str(n)) for n in range(500))), CONTEXT)
    few_text, many_text = json.dumps(few), json.dumps(many, ensure_ascii=False)

    assert few_text.count("*FIRING* GpuLost") == 20
    shown = many_text.count("*FIRING* GpuLost")
    assert f"and {500 - shown} more, {500 - shown} of them firing" in many_text
    validate(many)
