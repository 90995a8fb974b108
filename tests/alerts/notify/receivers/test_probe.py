"""The test message."""

from __future__ import annotations

import asyncio

from gpuagent_alerts.alert import Status
from gpuagent_alerts.notify.outbox.attempt import DeliveryOutcome, Reason
from gpuagent_alerts.notify.receivers.base import send_test_message
from tests.alerts.messages import CONTEXT
from tests.alerts.notify.outbox.parts import ScriptedSender

REFUSED = DeliveryOutcome(Reason.REFUSED, "it refused the message (404)")


def test_it_begins_and_ends() -> None:
    """Two messages of one group, with two ids: an incident that a test opens is closed by it."""
    sender = ScriptedSender()
    outcome = asyncio.run(send_test_message(sender, CONTEXT))
    first, last = sender.sent

    assert outcome.ok
    assert (first.status, last.status, first.group == last.group) == (Status.FIRING, Status.RESOLVED, True)
    assert first.id != last.id
    assert first.alerts[0].labels == last.alerts[0].labels


def test_a_failure_is_what_comes_back() -> None:
    """The first one; what was not begun is not ended."""
    sender = ScriptedSender([REFUSED])

    assert asyncio.run(send_test_message(sender, CONTEXT)) == REFUSED
    assert len(sender.sent) == 1
