"""A message as plain text, for e-mail and the like."""

from __future__ import annotations

import json
from dataclasses import replace

from gpuagent_alerts.alert import DigestLine, News
from gpuagent_alerts.notify.outbox.entry import dump_message, load_message
from gpuagent_alerts.notify.receivers.slack_message import payload
from gpuagent_alerts.notify.receivers.text import headline, plain_text
from gpuagent_alerts.notify.receivers.webhook import version_4
from tests.alerts.incident_messages import BRIEFING, about, incident
from tests.alerts.messages import CONTEXT, alert, message


def test_an_incident_reads_like_a_colleagues_note() -> None:
    """Headline, numbers, holders, line, remedy, commands and links, then the alerts."""
    text = plain_text(about(incident()), CONTEXT)

    assert text.split("\n")[:12] == [
        BRIEFING.headline,
        BRIEFING.numbers,
        "Holds memory: whisper-api (svc-ml, pid 81204) 44.1 GiB",
        "Holds memory: python3 (ann, pid 7) 9.0 GiB",
        "Line: server.py:41 holds 43.0 GiB in `cache`",
        "Remedy: SIGTERM: dry run, nothing was done",
        "Next: gpuagent blame 81204",
        f"Silence: {BRIEFING.silence_command}",
        "Page: http://node7:9837/",
        "Grafana: https://grafana.example.org/d/gpu?var-node=node7&var-gpu=0",
        "Runbook: https://example.org/runbooks/GpuProcessMemoryLeak",
        "",
    ]
    assert "FIRING: GpuProcessMemoryLeak (critical)" in text


def test_the_end_says_nothing_of_the_time_before() -> None:
    """Neither the advice nor the numbers of the firing alert."""
    text = plain_text(about(incident(News.ENDED)), CONTEXT)

    assert text.startswith(
        "RESOLVED node7 GPU 0: whisper-api (svc-ml, pid 81204) was leaking memory: the process ended"
    )
    assert "Drain" not in text


def test_headlines_of_alerts_without_an_incident() -> None:
    """Severity or RESOLVED, the node, and what is so; several are counted and named."""
    assert headline(message(), CONTEXT) == "CRITICAL node7: The GPU is gone."
    two = message(alert(severity="warning"), alert("GpuMemoryFull", severity="info"))
    assert headline(two, CONTEXT) == "WARNING node7: 2 alerts: GpuLost, GpuMemoryFull"
    many = message(*(alert(f"A{n}", severity="page") for n in range(6)))
    assert headline(many, CONTEXT) == "PAGE node7: 6 alerts: A0, A1, A2, A3 and 2 more"


DIGEST = (
    DigestLine("CRITICAL node7 GPU 0: api (ann, pid 7) leaking 9.0 GiB/h", 3, False),
    DigestLine("RESOLVED node7 GPU 1: memory was full: memory back to 2.0 GiB (3 %)", 1, True),
)


def test_a_digest_says_what_it_stands_for() -> None:
    """Each incident once, how often it was to be told and whether it goes on; and the command that shows all."""
    told = replace(message(alert("GpuLost")), digest=DIGEST)
    gist = "4 messages were held back by max_messages_per_hour, about 2 incidents: 1 goes on, 1 has ended"
    assert headline(told, CONTEXT).endswith(f"node7: {gist}")
    for text in (plain_text(told, CONTEXT), json.dumps(payload(told, CONTEXT))):
        assert "CRITICAL node7 GPU 0: api (ann, pid 7) leaking 9.0 GiB/h (3 messages, goes on)" in text
        assert "memory back to 2.0 GiB (3 %) (1 message, ended)" in text
        assert "gpuagent alerts" in text
    assert version_4(told, CONTEXT)["digest"][0] == {
        "headline": DIGEST[0].headline, "messages": 3, "status": "firing",
    }  # fmt: skip
    assert load_message(dump_message(told), message_id=told.id, receiver="r", group="g").digest == DIGEST


def test_two_standards_of_one_leak_are_one_line() -> None:
    """Alerts that say the same of the same are told once; the document has both."""
    both = message(alert("GpuProcessMemoryLeak", evidence="balanced"), alert("GpuProcessMemoryLeak", evidence="strict"))
    assert plain_text(both, CONTEXT).count("FIRING: GpuProcessMemoryLeak") == 1
    assert len(version_4(both, CONTEXT)["alerts"]) == 2
