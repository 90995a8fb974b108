"""A message as plain text, for e-mail and the like."""

from __future__ import annotations

from gpuagent_alerts.alert import News
from gpuagent_alerts.notify.receivers.text import headline, plain_text
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
        "Remedy: SIGTERM: dry run (dry run: nothing was done)",
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
        "RESOLVED node7 GPU 0: whisper-api (pid 81204, svc-ml) was leaking memory: the process ended"
    )
    assert "Drain" not in text


def test_headlines_of_alerts_without_an_incident() -> None:
    """Severity or RESOLVED, the node, and what is so; several are counted and named."""
    assert headline(message(), CONTEXT) == "CRITICAL node7: The GPU is gone."
    two = message(alert(severity="warning"), alert("GpuMemoryFull", severity="info"))
    assert headline(two, CONTEXT) == "WARNING node7: 2 alerts: GpuLost, GpuMemoryFull"
    many = message(*(alert(f"A{n}", severity="page") for n in range(6)))
    assert headline(many, CONTEXT) == "FIRING node7: 6 alerts: A0, A1, A2, A3 and 2 more"
