"""An alert that is only kept firing, on every surface: it is spoken of in the past tense, and counts for nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuagent.cli.alert_screen import alert_screen
from gpuagent.cli.cells import Paint
from gpuagent.core.clock import ManualClock
from gpuagent_alerts.alert import Status, shown_annotations
from gpuagent_alerts.notify.receivers.pagerduty import event
from gpuagent_alerts.notify.receivers.slack_message import payload
from gpuagent_alerts.notify.receivers.text import plain_text
from gpuagent_exporters.page.alerts import alerts, going_on
from tests.agent.service.alerting.bench import BUSY, CALM, Bench, alerting, config, rules, run
from tests.alerts.incident_messages import about, incident
from tests.alerts.messages import CONTEXT
from tests.alerts.messages import alert as make

KEPT = (
    "alert: Full, expr: gpuagent_gpu_memory_used_ratio > 0.9, keep_firing_for: 2m, labels: {severity: critical}, "
    'annotations: {summary: "GPU 0 is full", resolved_summary: "GPU 0 was full", description: "Nothing is left."}'
)


async def ending(bench: Bench) -> dict[str, Any]:
    """The document while the alert is only kept, for ten seconds of two minutes."""
    await bench.show(BUSY, times=3)
    await bench.show(CALM, times=3)
    return await bench.commands.alerts()


def test_no_surface_says_that_it_is_so(tmp_path: Path) -> None:
    """The API, the command, the page and the metrics call it ending, and say since when and until when."""

    async def test() -> None:
        async with alerting(config(tmp_path, None), rules(KEPT), ManualClock(), tmp_path / "s") as bench:
            document = await ending(bench)
            (alert,) = document["alerts"]
            assert alert["state"] == "ending"
            assert document["time_seconds"] - alert["not_true_since_seconds"] == 10.0
            assert alert["kept_until_seconds"] - document["time_seconds"] == 110.0
            assert alert["end_reason"].startswith("no longer true")
            assert "is full" not in alert["annotations"]["summary"]

            (row,) = document["incidents"]
            assert (row["ending"], row["ends_at_seconds"]) == (True, None)

            screen = "\n".join(alert_screen(document, 120, Paint(color=False)))
            assert "0 firing, 1 ending, 0 pending" in screen
            assert "not true for 10 s, its end is told in 1 min 50 s" in screen
            assert "GPU 0 was full: no longer true" in screen
            assert "ending: nothing of it is true now" in screen
            page = alerts(document, hidden=False)
            assert going_on(document) == 0
            assert "ENDING" in page
            for text in (screen, page):
                assert "is full" not in text
                assert "FIRING" not in text

            figures = bench.alerting.figures()
            assert figures is not None
            assert [(one.alertstate, one.number) for one in figures.alerts] == [("ending", 1)]
            (about,) = figures.firing
            assert about.is_ending, "status and check take no severity from it"
            assert about.severity == "info"
            assert "is full" not in about.summary

            await bench.show(BUSY)
            assert (await bench.state())["state"] == "firing", "it is true again"

    run(test)


def test_no_message_says_that_it_is_so() -> None:
    """Beside one that is true: each receiver has it in the past tense, and the severity is that of what is true."""
    holds = make("GpuMemoryHigh", severity="warning")
    begun = holds.starts_at
    kept = replace(make("GpuMemoryFull"), true_until=begun + 60.0, kept_until=begun + 240.0)
    assert (kept.status, kept.state, kept.holds) == (Status.FIRING, "ending", False)
    assert shown_annotations(kept)["summary"].startswith("The GPU was gone: no longer true (over at ")

    told = about(incident(severity="warning"), holds, kept)
    slack = json.dumps(payload(told, CONTEXT))
    pager = event(told, CONTEXT, "k").decode()
    assert "*ENDING* GpuMemoryFull" in slack
    assert '"status": "ending"' in pager
    assert "ENDING: GpuMemoryFull" in plain_text(told, CONTEXT)
    for text in (slack, pager, plain_text(told, CONTEXT)):
        assert text.count("The GPU is gone.") == 1, "of the one that is true"
