"""Acknowledgements: somebody is at it, so the alert is not told again until it has ended and begins anew."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from gpuagent.core.clock import Clock
from gpuagent_alerts.alert import Alert
from gpuagent_alerts.store.checks import text, unix_time, word
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.rows import Column, Table

_MAX_TEXT = 1000


@dataclass(frozen=True, slots=True)
class Ack:
    """Of one alert, by its fingerprint, or of an incident, by its key."""

    fingerprint: str
    """For an incident: its key."""
    alertname: str
    comment: str
    creator: str
    created_at: float
    """Unix time."""


ACKS = Table(
    "acks",
    ("fingerprint",),
    {
        "fingerprint": Column(word),
        "alertname": Column(text, 2**16),
        "comment": Column(text, 4 * _MAX_TEXT),
        "creator": Column(text, 4 * _MAX_TEXT),
        "created_at": Column(unix_time, 64),
    },
    Ack,
)


class Acks:
    """All acknowledgements: kept in the store, and in memory for the asking."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._acks = {ack.fingerprint: ack for ack in store.load(ACKS)}

    def __contains__(self, fingerprint: object) -> bool:
        return fingerprint in self._acks

    def add(self, alert: Alert, *, comment: str, creator: str) -> Ack:
        """Somebody is at it. Raises ValueError, in words for the person who asked, and StoreFailure."""
        return self._add(alert.fingerprint, alert.name, comment, creator)

    def add_incident(self, key: str, *, comment: str, creator: str) -> Ack:
        """Note that somebody is at an incident, whatever joins it. Raises ValueError and StoreFailure."""
        return self._add(key, "", comment, creator)

    def _add(self, known_as: str, name: str, comment: str, creator: str) -> Ack:
        if max(len(comment), len(creator)) > _MAX_TEXT:
            raise ValueError(f"a text of an acknowledgement has at most {_MAX_TEXT} characters")
        ack = Ack(known_as, _clean(name), _clean(comment), _clean(creator), self._clock.wall())
        self._store.execute(
            "INSERT OR REPLACE INTO acks VALUES (?, ?, ?, ?, ?)",
            (ack.fingerprint, ack.alertname, ack.comment, ack.creator, ack.created_at),
        )
        self._acks[ack.fingerprint] = ack
        return ack

    def remove(self, fingerprint: str) -> bool:
        """Nobody is at it any more; returns whether there was one. Raises StoreFailure."""
        if fingerprint not in self._acks:
            return False
        self._store.execute("DELETE FROM acks WHERE fingerprint = ?", (fingerprint,))
        del self._acks[fingerprint]
        return True

    def all(self) -> list[Ack]:
        """Every one."""
        return list(self._acks.values())

    def keep(self, firing: Collection[str]) -> None:
        """Forget those of alerts that do not fire any more. Raises StoreFailure."""
        for fingerprint in [known for known in tuple(self._acks) if known not in firing]:
            self.remove(fingerprint)


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
