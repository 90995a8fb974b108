"""Silences and acknowledgements: what people have said about alerts.

A silence suppresses every alert that matches for a while, as in Alertmanager. An acknowledgement stops the repeats of
one alert or incident until it has ended and begins anew.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gpuagent.core.clock import Clock
from gpuagent.core.matchers import Matcher, Matchers, parse_matcher
from gpuagent_alerts.alert import Alert
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.tables import LATEST_UNIX_SECONDS, Column, Table, array, parsed, text, unix_time, word

KEPT_SECONDS = 5 * 86400.0
"""An expired silence is shown for so long, as Alertmanager does."""
MAX_SILENCES = 1000
INCIDENT_LABEL = "incident"
"""A matcher of this name looks at the key of an alert's incident, which is no label of the alert."""
_MAX_TEXT = 1000
_MAX_MATCHERS = 50


class SilenceState(StrEnum):
    """State of a silence at a moment."""

    PENDING = "pending"
    ACTIVE = "active"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class Silence:
    """One silence; all times are Unix times."""

    id: str
    matchers: tuple[Matcher, ...]
    starts_at: float
    ends_at: float
    comment: str
    creator: str
    created_at: float

    def state(self, now: float) -> SilenceState:
        """Return its state at a Unix time."""
        if now >= self.ends_at:
            return SilenceState.EXPIRED
        return SilenceState.ACTIVE if now >= self.starts_at else SilenceState.PENDING


class Silences:
    """All silences: kept in the store, and in memory for the asking."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._silences: dict[str, tuple[Silence, Matchers]] = {}
        for silence, compiled in store.load(SILENCES, "ORDER BY created_at"):
            self._silences[silence.id] = (silence, compiled)

    def add(
        self,
        matchers: Sequence[Matcher],
        duration_seconds: float,
        *,
        comment: str,
        creator: str,
        starts_at: float | None = None,
    ) -> Silence:
        """Begin a silence, now or at a Unix time.

        Raises ValueError, in words for the person who asked, and StoreFailure.
        """
        now = self._clock.wall()
        begin = now if starts_at is None else max(starts_at, now)
        compiled = self._check(matchers, begin, duration_seconds, comment, creator)
        name = secrets.token_hex(4)
        end = min(begin + duration_seconds, LATEST_UNIX_SECONDS)
        silence = Silence(name, tuple(matchers), begin, end, comment, creator, now)
        texts = json.dumps(compiled.texts)
        self._store.execute(
            "INSERT INTO silences VALUES (?, ?, ?, ?, ?, ?, ?)",
            (silence.id, texts, silence.starts_at, silence.ends_at, _clean(comment), _clean(creator), now),
        )
        self._silences[silence.id] = (silence, compiled)
        return silence

    def expire(self, silence_id: str) -> Silence:
        """End a silence now. Raises KeyError if there is none of this id, and StoreFailure."""
        silence, compiled = self._silences[silence_id]
        now = self._clock.wall()
        if silence.state(now) is not SilenceState.EXPIRED:
            ended = Silence(
                silence.id, silence.matchers, min(silence.starts_at, now), now,
                silence.comment, silence.creator, silence.created_at,
            )  # fmt: skip
            self._store.execute(
                "UPDATE silences SET starts_at = ?, ends_at = ? WHERE id = ?", (ended.starts_at, now, silence_id)
            )
            self._silences[silence_id] = (ended, compiled)
        return self._silences[silence_id][0]

    def all(self) -> list[Silence]:
        """Return those that are pending or active, and those that expired lately."""
        return [silence for silence, _ in tuple(self._silences.values())]

    def silencing(self, labels: Mapping[str, str]) -> list[Silence]:
        """Return those that are active and match."""
        now = self._clock.wall()
        return [
            silence
            for silence, matches in tuple(self._silences.values())  # one may be added meanwhile, in another thread
            if silence.state(now) is SilenceState.ACTIVE and matches(labels)
        ]

    def next_change(self) -> float:
        """Return the Unix time at which the next one begins or ends by itself; infinity if none does."""
        now = self._clock.wall()
        times = (time for silence in self.all() for time in (silence.starts_at, silence.ends_at))
        return min((time for time in times if time > now), default=math.inf)

    def prune(self) -> None:
        """Forget what expired long ago. Raises StoreFailure."""
        oldest = self._clock.wall() - KEPT_SECONDS
        old = [name for name, (silence, _) in self._silences.items() if silence.ends_at < oldest]
        self._store.execute_many("DELETE FROM silences WHERE id = ?", [(name,) for name in old])
        for name in old:
            del self._silences[name]

    def _check(self, matchers: Sequence[Matcher], begin: float, seconds: float, comment: str, creator: str) -> Matchers:
        if not matchers:
            raise ValueError("a silence needs a matcher: without one it would silence everything")
        if len(matchers) > _MAX_MATCHERS:
            raise ValueError(f"a silence has at most {_MAX_MATCHERS} matchers")
        compiled = Matchers(matchers)
        if _name_nothing(matchers):
            raise ValueError("these matchers hold of every alert that lacks the labels: name one with a value")
        if not 0 < seconds < float("inf"):
            raise ValueError("a silence must last for some time")
        if not begin <= LATEST_UNIX_SECONDS:  # NaN neither
            raise ValueError("a silence cannot begin after the year 9999")
        if max(len(comment), len(creator), *(len(text) for text in compiled.texts)) > _MAX_TEXT:
            raise ValueError(f"a text of a silence has at most {_MAX_TEXT} characters")
        if len(self._silences) >= MAX_SILENCES:
            raise ValueError(f"there are {MAX_SILENCES} silences already: expired ones go after 5 days")
        return compiled


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _name_nothing(matchers: Sequence[Matcher]) -> bool:
    """Return whether no matcher names a value: as at Alertmanager, one at least has to."""
    return all(Matchers([matcher]).match_empty for matcher in matchers)


def _silence(
    name: str, matchers: str, starts_at: float, ends_at: float, comment: str, creator: str, created_at: float
) -> tuple[Silence, Matchers]:
    found = tuple(parse_matcher(text(one)) for one in array(parsed(matchers)))
    if _name_nothing(found):
        raise ValueError("a silence of nearly everything")
    if not starts_at <= ends_at:
        raise ValueError("a silence that ends before it begins")
    return Silence(name, found, starts_at, ends_at, comment, creator, created_at), Matchers(found)


SILENCES = Table(
    "silences",
    ("id",),
    {
        "id": Column(word),
        "matchers": Column(text, 8 * _MAX_MATCHERS * _MAX_TEXT),
        "starts_at": Column(unix_time, 64),
        "ends_at": Column(unix_time, 64),
        "comment": Column(text, 4 * _MAX_TEXT),
        "creator": Column(text, 4 * _MAX_TEXT),
        "created_at": Column(unix_time, 64),
    },
    _silence,
)


@dataclass(frozen=True, slots=True)
class Ack:
    """Acknowledgement of one alert, by its fingerprint, or of an incident, by its key."""

    fingerprint: str
    """Fingerprint of the alert, or key of the incident."""
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
        """Acknowledge an alert. Raises ValueError, in words for the person who asked, and StoreFailure."""
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
        """Remove an acknowledgement; return whether there was one. Raises StoreFailure."""
        if fingerprint not in self._acks:
            return False
        self._store.execute("DELETE FROM acks WHERE fingerprint = ?", (fingerprint,))
        del self._acks[fingerprint]
        return True

    def all(self) -> list[Ack]:
        """Return all of them."""
        return list(self._acks.values())

    def keep(self, firing: Collection[str]) -> None:
        """Forget those of alerts that do not fire any more. Raises StoreFailure."""
        for fingerprint in [known for known in tuple(self._acks) if known not in firing]:
            self.remove(fingerprint)
