"""The two who are told: one that is always well, and one that troubles happen to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from tests.alerts.receivers.sink import Reply, Sink, always


def told(receiver: Sink, name: str) -> list[str]:
    """What it was told of an alert, in order: `firing` or `resolved`, each message once."""
    found: dict[tuple[str, str], str] = {}
    for request in tuple(receiver.processed):
        for alert in json.loads(request.body)["alerts"]:
            if alert["labels"]["alertname"] == name:
                found[request.headers["webhook-id"], alert["startsAt"] + alert["status"]] = alert["status"]
    return list(found.values())


@contextmanager
def replying(receiver: Sink, reply: Reply) -> Iterator[None]:
    """It answers everything so."""
    before, receiver.behave = receiver.behave, always(reply)
    try:
        yield
    finally:
        receiver.behave = before
