"""Alerts in the agent's own log."""

from __future__ import annotations

import logging

import pytest

from gpuagent_alerts.alert import Alert, Status
from gpuagent_alerts.messages.transitions import log_transitions
from gpuagent_alerts.states.machine import Change, Transition

ALERT = Alert(
    labels={"alertname": "GpuLost", "severity": "critical", "gpu": "2", "uuid": "GPU-2", "zone": "a"},
    annotations={"summary": "GPU 2 is lost"},
    status=Status.FIRING,
    starts_at=1.0,
)


def test_a_beginning_and_an_end(caplog: pytest.LogCaptureFixture) -> None:
    """One line for each with what the rule says; that it goes on is no news."""
    with caplog.at_level(logging.INFO):
        log_transitions(Transition(change, ALERT) for change in (Change.STARTED, Change.CONTINUES, Change.ENDED))
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        ("WARNING", "alert GpuLost fires: GPU 2 is lost"),
        ("INFO", "alert GpuLost is over: GPU 2 is lost"),
    ]


def test_fields_to_look_for(caplog: pytest.LogCaptureFixture) -> None:
    """`journalctl GPUAGENT_ALERT=GpuLost`: name, state, identity, and the labels that people search by."""
    log_transitions([Transition(Change.STARTED, ALERT)])
    assert caplog.records[0].__dict__["fields"] == {
        "ALERT": "GpuLost", "ALERT_STATUS": "firing", "FINGERPRINT": ALERT.fingerprint,
        "SEVERITY": "critical", "GPU": "2", "GPU_UUID": "GPU-2",
    }  # fmt: skip


def test_an_alert_without_words(caplog: pytest.LogCaptureFixture) -> None:
    """A rule without a summary is told by its labels."""
    bare = Alert({"alertname": "Mine", "gpu": "1"}, {}, Status.FIRING, 1.0)
    log_transitions([Transition(Change.STARTED, bare)])
    assert caplog.records[0].getMessage() == "alert Mine fires: gpu=1"
