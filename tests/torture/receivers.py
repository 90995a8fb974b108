"""The two who are told: one that is always well, and one that troubles happen to."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from tests.alerts.notify.receivers.sink import Reply, Sink, always


def told(receiver: Sink, name: str) -> list[str]:
    """What it was told of an alert, in order: `firing` or `resolved`, each message once."""
    return [status for _, status in _told(receiver, name)]


def told_of_rings(receiver: Sink) -> dict[str, list[str]]:
    """What it was told of each ring of Bell, in order. Rings are incidents of their own: nothing orders two of them."""
    rings = defaultdict[str, list[str]](list)
    for labels, status in _told(receiver, "Bell"):
        rings[labels["ring"]].append(status)
    return dict(rings)


def _told(receiver: Sink, name: str) -> list[tuple[dict[str, str], str]]:
    found: dict[tuple[str, str], tuple[dict[str, str], str]] = {}
    for request in tuple(receiver.processed):
        for alert in json.loads(request.body)["alerts"]:
            labels, status = alert["labels"], alert["status"]
            if labels["alertname"] == name:
                found[request.headers["webhook-id"], alert["startsAt"] + status] = (labels, status)
    return list(found.values())


@contextmanager
def replying(receiver: Sink, reply: Reply) -> Iterator[None]:
    """It answers everything so."""
    before, receiver.behave = receiver.behave, always(reply)
    try:
        yield
    finally:
        receiver.behave = before
