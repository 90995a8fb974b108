"""Which message of a Slack channel is the root of an incident's thread, kept over restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from gpuagent_alerts.store.checks import text, unix_time, word
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.problem import StoreFailure
from gpuagent_alerts.store.rows import Column, Table

KEPT_SECONDS = 30 * 86_400.0
"""An incident that is told again after so long begins a thread of its own."""
_MOST = 2000


class Thread(NamedTuple):
    """The root of a thread."""

    ts: str
    """Slack's name for a message in its channel."""
    channel_id: str
    """The channel as Slack answers it: `chat.update` does not take a name."""


class Threads(Protocol):
    """Finds and keeps the roots of threads."""

    async def find(self, receiver: str, channel: str, incident: str) -> Thread | None:
        """Return the root of an incident's thread; None before its first message."""
        ...

    async def keep(self, receiver: str, channel: str, incident: str, thread: Thread, now: float) -> None:
        """Remember a root."""
        ...


class _Key(NamedTuple):
    receiver: str
    channel: str
    incident: str


@dataclass(frozen=True, slots=True)
class MemoryThreads:
    """Forgets with the process."""

    _found: dict[_Key, Thread] = field(default_factory=dict)

    async def find(self, receiver: str, channel: str, incident: str) -> Thread | None:
        """Return the root of an incident's thread."""
        return self._found.get(_Key(receiver, channel, incident))

    async def keep(self, receiver: str, channel: str, incident: str, thread: Thread, now: float) -> None:  # noqa: ARG002
        """Remember a root."""
        self._found[_Key(receiver, channel, incident)] = thread


@dataclass(frozen=True, slots=True)
class StoredThreads:
    """Keeps them in the state file: a restart goes on in the same thread."""

    store: Store

    async def find(self, receiver: str, channel: str, incident: str) -> Thread | None:
        """Return the root of an incident's thread; None where the file cannot be read: then another one begins."""
        return (await asyncio.to_thread(self._load)).get(_Key(receiver, channel, incident))

    async def keep(self, receiver: str, channel: str, incident: str, thread: Thread, now: float) -> None:
        """Remember a root, and forget those that are old or too many. What was sent is sent if that fails."""
        with suppress(StoreFailure):
            await asyncio.to_thread(self._keep, _Key(receiver, channel, incident), thread, max(now, 0.0))

    def _load(self) -> Mapping[_Key, Thread]:
        return dict(self.store.load(SLACK_THREADS))

    def _keep(self, key: _Key, thread: Thread, now: float) -> None:
        with self.store.transaction():
            self.store.execute("INSERT OR REPLACE INTO slack_threads VALUES (?, ?, ?, ?, ?, ?)", (*key, *thread, now))
            self.store.execute("DELETE FROM slack_threads WHERE at < ?", (now - KEPT_SECONDS,))
            self.store.execute(
                "DELETE FROM slack_threads"
                " WHERE rowid NOT IN (SELECT rowid FROM slack_threads ORDER BY at DESC LIMIT ?)",
                (_MOST,),
            )


def _load_thread(
    receiver: str, channel: str, incident: str, ts: str, channel_id: str, at: float
) -> tuple[_Key, Thread]:
    if at < 0:
        raise ValueError("a time before 1970")
    return _Key(receiver, channel, incident), Thread(ts, channel_id)


SLACK_THREADS = Table(
    "slack_threads",
    ("receiver", "channel", "incident"),
    {
        "receiver": Column(word),
        "channel": Column(word),
        "incident": Column(word, 400),
        "ts": Column(word, 64),
        "channel_id": Column(text, 64),
        "at": Column(unix_time, 64),
    },
    _load_thread,
)
