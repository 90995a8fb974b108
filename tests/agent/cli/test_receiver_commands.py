"""`receivers list` as it is typed, against an agent that answers as it is told."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rich.cells import cell_len

from gpuagent.cli.alert_screen import receiver_lines
from gpuagent.cli.cells import Paint
from tests.agent.cli.alerts_document import HEARTBEAT, NOW, RECEIVER, asked, document


def test_receivers_are_listed() -> None:
    """Each with its kind, what waits, what came of the last attempt; heartbeats too."""
    code, output, errors, request = asked(document(heartbeats=[HEARTBEAT]), "receivers", "list")

    assert (code, errors, request.split()[1]) == (0, "", b"/api/v1/alerts")
    assert output.splitlines() == [
        "pager, pagerduty",
        "         40 sent, 2 queued (oldest 1 min 30 s), 3 failed attempts, 1 dead",
        "         last attempt: it answered 503",
        "alive, heartbeat every 1 min",
        "         99 sent, 0 failed, last: delivered",
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"receivers": [RECEIVER | {"off": "it wants nothing any more (410)", "off_since_seconds": NOW - 7200}]},
            "switched off 2 h ago: it wants nothing any more (410)",
        ),
        ({"receivers": [RECEIVER | {"kind": ""}]}, "pager, no longer configured"),
        ({"receivers": []}, "No receivers are configured: alerts go nowhere."),
        ({"alerting": "prometheus"}, "alerting: prometheus: only heartbeats are sent"),
    ],
)
def test_why_a_receiver_is_not_told(changes: dict[str, Any], words: str) -> None:
    """Switched off, gone from the configuration, or not wanted: it is on the screen."""
    assert words in asked(document(**changes), "receivers", "list")[1]


def test_receivers_as_json() -> None:
    """--json has the agent's own words."""
    printed = json.loads(asked(document(heartbeats=[HEARTBEAT]), "receivers", "list", "--json")[1])

    assert (printed["receivers"], printed["heartbeats"], printed["schema"]) == ([RECEIVER], [HEARTBEAT], 1)


def test_a_long_list_of_receivers_keeps_its_width() -> None:
    """Whatever names and answers are."""
    nasty = "x\x1b[2J" + "很" * 300
    shown = document(
        receivers=[RECEIVER | {"receiver": nasty, "off": nasty, "off_since_seconds": NOW, "kind": nasty}],
        heartbeats=[HEARTBEAT | {"receiver": nasty, "last": nasty}], alerting=nasty,
    )  # fmt: skip
    lines = receiver_lines(shown, 80, Paint())

    assert max(cell_len(line) for line in lines) <= 80
    assert all(line.isprintable() for line in lines)
