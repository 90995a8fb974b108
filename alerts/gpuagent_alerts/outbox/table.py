"""The table of messages, and how its rows are read."""

from __future__ import annotations

from functools import partial

from gpuagent_alerts.alert import Message
from gpuagent_alerts.outbox.body import load_message
from gpuagent_alerts.outbox.entry import Occasion, Queued, State
from gpuagent_alerts.outbox.pacing import MAX_RETRY_AFTER_SECONDS
from gpuagent_alerts.store.checks import array, integer, number, parsed, text, unix_time, word
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.rows import Column, Table

_KEPT = frozenset({State.QUEUED, State.HELD, State.DEAD})
"""In these a message has a body."""
_SETTLED = frozenset[object](str(state) for state in State if state not in _KEPT)
_WITH_BODY = "WHERE state IN ('queued', 'held', 'dead')"
_WITHOUT = "WHERE state NOT IN ('queued', 'held', 'dead')"


def _queued(
    seq: int, name: str, receiver: str, group: str, reason: str, news: str, body: str, size_bytes: int,
    created: float, attempts: int, next_at: float, _wait: float, state: str, last_error: str, _done_at: float | None,
) -> Queued:  # fmt: skip
    state = State(state)
    message = Message(name, receiver, group, ())
    if state in _KEPT:
        message = load_message(body, message_id=name, receiver=receiver, group=group)
        if not message.alerts:
            raise ValueError("a message of no alert")
    told = tuple(word(one) for one in array(parsed(news)))
    return Queued(seq, message, Occasion(reason), state, created, attempts, next_at, last_error, told, size_bytes)


def _done_at(value: object) -> float | None:
    return None if value is None else unix_time(value)


OUTBOX = Table(
    "outbox",
    ("seq",),
    {
        "seq": Column(integer, 64),
        "id": Column(word),
        "receiver": Column(word),
        "group_key": Column(text, 2**16),
        "reason": Column(word),
        "news": Column(text, 2**20),
        "body": Column(text, 16 * 2**20),
        "bytes": Column(integer, 64),
        "created": Column(unix_time, 64),
        "attempts": Column(integer, 64),
        "next_at": Column(unix_time, 64),
        "wait": Column(partial(number, low=0.0, high=MAX_RETRY_AFTER_SECONDS), 64),
        "state": Column(word),
        "last_error": Column(text, 2**16),
        "done_at": Column(_done_at, 64),
    },
    _queued,
)


def set_damaged_aside(store: Store) -> frozenset[tuple[str, str]]:
    """Look at every message before SQL counts and orders them. Raises StoreFailure.

    Returns the receiver and group of each message that waited and is lost: what it told of is taken for untold.
    """
    with store.transaction():
        damaged = [*store.check(OUTBOX, _WITH_BODY), *store.check(OUTBOX, _WITHOUT)]
    waited = [row.cells for row in damaged if row.cells["state"] not in _SETTLED]
    places = [(cells["receiver"], cells["group_key"]) for cells in waited]
    return frozenset((name, group) for name, group in places if isinstance(name, str) and isinstance(group, str))
