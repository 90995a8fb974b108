"""A test message: whether a receiver can be told, before there is something to tell."""

from __future__ import annotations

from dataclasses import replace

from gpuagent_alerts.alert import Alert, Message, Status
from gpuagent_alerts.outbox.ids import message_id
from gpuagent_alerts.outbox.outcome import Outcome
from gpuagent_alerts.outbox.sender import Context, Sender

ALERTNAME = "GpuagentTest"


async def probe(receiver: Sender, context: Context) -> Outcome:
    """Tell a receiver of an alert, and at once of its end, so that nothing stays open; the first failure counts."""
    labels = {"alertname": ALERTNAME, "severity": "info", "instance": context.node}
    annotations = {
        "summary": "A test of this receiver by gpuagent.",
        "description": "Somebody asked for it. Nothing is wrong, and nothing is to be done.",
    }
    fires = Alert(labels, annotations, Status.FIRING, context.now, None, 1.0)
    group = f'{{instance="{context.node}"}}:{ALERTNAME}'
    outcome = await receiver.send(Message(message_id(context.now), receiver.name, group, (fires,), labels), context)
    if not outcome.ok:
        return outcome
    ended = replace(fires, status=Status.RESOLVED, ends_at=context.now)
    return await receiver.send(Message(message_id(context.now), receiver.name, group, (ended,), labels), context)
