"""Slack's limits, held by every message, and what a person finds in one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuagent_alerts.alert import Alert, Briefing, Holder, News, Status
from gpuagent_alerts.notify.receivers.slack_message import link, payload
from tests.alerts.incident_messages import about, incident
from tests.alerts.messages import CONTEXT, alert, message

TEXTS = st.text(max_size=20) | st.sampled_from(
    ["<!channel>", "&" * 5000, "x" * 5000, "😀" * 3000, "`" * 100, "a\nb" * 900]
)
ALERTS = st.builds(
    Alert,
    labels=st.dictionaries(st.sampled_from(["alertname", "severity", "gpu", "command", "pid"]), TEXTS),
    annotations=st.dictionaries(
        st.sampled_from(["summary", "description", "resolved_summary", "remedy", "runbook_url"]), TEXTS
    ),
    status=st.sampled_from(Status),
    starts_at=st.floats(-1e12, 1e12),
    ends_at=st.none() | st.floats(-1e12, 1e12),
    end_reason=TEXTS,
)
HOLDERS = st.builds(Holder, st.integers(0, 2**31), TEXTS, TEXTS, st.integers(0, 2**40))
BRIEFINGS = st.builds(
    Briefing,
    headline=TEXTS,
    numbers=TEXTS,
    holders=st.lists(st.builds(Holder, st.integers(0, 2**31), TEXTS, TEXTS, st.integers(0, 2**40)), max_size=3).map(
        tuple
    ),
    culprit=TEXTS,
    remedies=st.lists(TEXTS, max_size=9).map(tuple),
    next_command=TEXTS,
    links=st.dictionaries(
        st.sampled_from(["page", "grafana", "runbook", "<x>"]), TEXTS | st.just("https://a/?b=<c>|d")
    ),
    silence_command=TEXTS,
)
_OURS = re.compile(r"<!date\^\d+\^\{date_short_pretty\} \{time\}\|[0-9: -]+ UTC>|<https?://[^\s<>|]+\|[^<>|]+>")
"""The only marks that may stand in a text: dates, and links to the web."""


def units(text: str) -> int:
    """Length as Slack's own code counts it."""
    return len(text.encode("utf-16-le", "replace")) // 2


def blocks(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The blocks of the one attachment."""
    (attachment,) = document["attachments"]
    assert re.fullmatch("#[0-9a-f]{6}", attachment["color"])
    found: list[dict[str, Any]] = attachment["blocks"]
    return found


def text_of(document: Mapping[str, Any]) -> str:
    """All texts, below one another."""
    texts = [text for block in blocks(document) for text in block.get("elements", [block.get("text")])]
    return "\n".join(text["text"] for text in texts)


def validate(document: Mapping[str, Any]) -> None:
    """What Slack refuses, as documented and as reported: see the module of the receiver for the sources."""
    assert 0 < units(document["text"]) <= 1000
    assert 0 < len(blocks(document)) <= 10
    total = units(document["text"])
    for block in blocks(document):
        match block["type"]:
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
            assert_escaped(text["text"])
            total += units(text["text"])
    assert_escaped(document["text"])
    assert total <= 13_200


def assert_escaped(text: str) -> None:
    """Nothing but our own dates and links is a mark, and no escape is cut."""
    rest = _OURS.sub("", text)
    assert "<" not in rest
    assert ">" not in rest
    assert "&" not in rest.replace("&amp;", "").replace("&lt;", "").replace("&gt;", "")


@settings(max_examples=40)
@given(st.lists(ALERTS, min_size=1, max_size=30))
def test_every_message_fits(alerts: list[Alert]) -> None:
    """Whatever is in labels and annotations: no block is too long, nothing is read as a mention, no escape is cut."""
    document = payload(message(*alerts), CONTEXT)

    validate(json.loads(json.dumps(document)))


@pytest.mark.slow
@settings(max_examples=40)
@given(BRIEFINGS, st.lists(ALERTS, min_size=1, max_size=30), st.sampled_from(News))
def test_every_message_of_an_incident_fits(briefing: Briefing, alerts: list[Alert], news: News) -> None:
    """Likewise, whatever a briefing says."""
    document = payload(about(incident(news, briefing=briefing), *alerts), CONTEXT)

    validate(json.loads(json.dumps(document)))


def test_the_push_text_is_the_headline() -> None:
    """What a phone shows says everything; severity has its color."""
    document = payload(about(incident()), CONTEXT)

    assert document["text"] == (
        "CRITICAL node7 GPU 0: whisper-api (svc-ml, pid 81204) leaking 84.4 GiB/h, full in 8 min"
    )
    assert document["attachments"][0]["color"] == "#d1242f"
    simulated = payload(about(incident()), replace(CONTEXT, simulated=True))
    assert simulated["text"].startswith("SIMULATED CRITICAL node7")


def test_below_it_stands_what_helps_to_decide() -> None:
    """Numbers, since when in the reader's own time, holders, the line, the remedy, commands and links; no UUID."""
    text = text_of(payload(about(incident()), CONTEXT))

    since = "<!date^1699999400^{date_short_pretty} {time}|2023-11-14 22:03:20 UTC>"
    grafana = "<https://grafana.example.org/d/gpu?var-node=node7&amp;var-gpu=0|Grafana>"
    assert text.split("\n") == [
        f"process holds 44.1 GiB · 60.0 GiB of 80.0 GiB in use (75 %) · +84.4 GiB/h · since {since}",
        "*Largest holders*",
        "• whisper-api (svc-ml, pid 81204) 44.1 GiB",
        "• python3 (ann, pid 7) 9.0 GiB",
        "*Line* `server.py:41 holds 43.0 GiB in 'cache'`",
        "*Remedy* SIGTERM: dry run, nothing was done",
        "*Next* `gpuagent blame 81204`",
        "*Silence* `gpuagent silence add --incident inc-0123456789ab --for 2h`",
        f"<http://node7:9837/|Page> · {grafana} · <https://example.org/runbooks/GpuProcessMemoryLeak|Runbook>",
        "<http://node7:9837/|gpuagent> · node7 · inc-0123456789ab · gpa_began",
    ]


_CODE = re.compile(r"```[^`]*```|`[^`]*`")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("*b*", "*b*"),
        ("_c_ x", "_c_ x"),
        ("__main__", "__main__"),
        ("~d~", "~d~"),
        ("`rm`", "'rm'"),
        (":fire: x", ":fire: x"),
        ("a\n> b *c*", "a &gt; b *c*"),
        ("x *<!channel>*", "x *&lt;!channel&gt;*"),
    ],
)
def test_a_name_is_not_formatted(name: str, shown: str) -> None:
    """What a user calls a process stands as code, whole, on every line that has it, and ends no mark of ours."""
    said = incident().briefing
    known = replace(
        said, headline=f"CRITICAL node7 GPU 0: {name} leaking", holders=(Holder(7, name, "ann", 2**30),),
        remedies=(f"SIGTERM to {name}",),
    )  # fmt: skip
    about_it = replace(
        alert(process=name), annotations={"summary": f"{name} leaks", "description": f"Stop {name} now."}
    )
    told = payload(about(replace(incident(), briefing=known), about_it, alert("GpuMemoryFull")), CONTEXT)
    single = payload(message(about_it), CONTEXT)

    for text in (told["text"], *text_of(told).split("\n*"), text_of(single)):
        assert shown not in _CODE.sub("", text)
    assert told["text"] == f"`CRITICAL node7 GPU 0: {shown} leaking`"
    assert f"• `{shown} (ann, pid 7)` 1.0 GiB" in text_of(told)
    assert f"*Remedy* `SIGTERM to {shown}`" in text_of(told)
    assert f"`{shown} leaks`" in text_of(told)
    assert "```" in text_of(single)
    assert all(text["verbatim"] for block in blocks(told) for text in block.get("elements", [block.get("text")]))


@pytest.mark.parametrize("name", ["train_gpt_2.py", "a*b", "api:8000", "vllm 0.9 (x)", "10:14:20 UTC"])
def test_an_ordinary_name_is_no_code(name: str) -> None:
    """A mark within a word formats nothing at Slack."""
    said = replace(incident().briefing, headline=f"CRITICAL node7 GPU 0: {name} leaking")
    assert payload(about(replace(incident(), briefing=said)), CONTEXT)["text"] == said.headline


def test_an_incident_of_several_alerts_lists_them() -> None:
    """A line for each, whether it fires or has ended, in words of that state."""
    document = payload(about(incident(), alert(), alert("GpuMemoryFull", ended=True)), CONTEXT)

    assert "• *FIRING* GpuLost · critical The GPU is gone." in text_of(document)
    assert "• *RESOLVED* GpuMemoryFull · critical The GPU was gone: the GPU answers again" in text_of(document)


def test_the_end_of_an_incident_is_green() -> None:
    """Headline with the reason, from when to when, and nothing of the time before."""
    document = payload(about(incident(News.ENDED)), CONTEXT)

    assert document["attachments"][0]["color"] == "#2da44e"
    assert document["text"].startswith("RESOLVED node7 GPU 0")
    assert "UTC> (9 min 50 s)" in text_of(document)
    assert "84.4" not in json.dumps(document)


def test_an_alert_of_no_incident_reads_well_too() -> None:
    """Severity and node in one line, name, what it means and what to do, since when, and the id; no UUID."""
    document = payload(message(alert(user="alice <root>", uuid="GPU-1"), name="gpa_7"), CONTEXT)
    text = text_of(document)

    assert document["text"] == "CRITICAL node7: The GPU is gone."
    for part in (
        "*FIRING* GpuLost · critical",
        "Drain the node",
        "`gpu=0`",
        "alice &lt;root&gt;",
        "since <!date^1699999400^",
        "<https://example.org/GpuLost|Runbook>",
        "gpa_7",
    ):
        assert part in text
    assert "GPU-1" not in json.dumps(document)


def test_an_end_says_so_and_how_long_it_took() -> None:
    """RESOLVED in words with the reason, and both times of the condition."""
    ended = replace(alert(ended=True), true_from=1_699_999_340.0, true_until=1_699_999_880.0)
    document = payload(message(ended), CONTEXT)

    assert document["text"] == "RESOLVED node7: The GPU was gone: the GPU answers again after a reboot"
    assert "<!date^1699999340^" in text_of(document)
    assert "2023-11-14 22:11:20 UTC> (9 min)" in text_of(document)
    assert "Drain" not in json.dumps(document)


@pytest.mark.parametrize(("age", "is_reminder"), [(3600.0, True), (30.0, False)])
def test_what_has_just_begun_is_no_reminder(*, age: float, is_reminder: bool) -> None:
    """A message that says that a process has ended and still holds its memory tells something new."""
    told = about(incident(News.REMINDER))
    told = replace(told, written_at=max(one.starts_at for one in told.alerts) + age)
    assert ("reminder, since" in text_of(payload(told, CONTEXT))) is is_reminder


def test_of_many_alerts_none_is_forgotten() -> None:
    """What has no room of its own has a line, and what has no line is counted."""
    few = payload(message(*(alert(gpu=str(n)) for n in range(20))), CONTEXT)
    many = payload(message(*(alert(gpu=str(n)) for n in range(500))), CONTEXT)

    assert text_of(few).count("*FIRING* GpuLost") == 20
    shown = text_of(many).count("*FIRING* GpuLost")
    assert f"and {500 - shown} more, {500 - shown} of them firing" in text_of(many)
    over = payload(message(*(alert(ended=True, gpu=str(n)) for n in range(500))), CONTEXT)
    assert " more" in text_of(over)
    assert "of them firing" not in text_of(over)
    validate(many)


@pytest.mark.parametrize("url", ["javascript:alert(1)", "", "https://a b", "ftp://x", "https://" + "x" * 2000])
def test_what_is_no_web_address_is_no_link(url: str) -> None:
    """A URL comes from a rule or the configuration, and a bad one costs the link alone."""
    assert link(url, "Runbook") == ("Runbook" if url != "https://a b" else "<https://a%20b|Runbook>")
