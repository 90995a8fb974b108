"""What is to be told now: a comparison of what fires with what each receiver was told, and nothing else.

It looks at states, not at events: what could not be kept the last time is simply still to be done. A resolve is made of
what was told, so it is never told of something that was not; a silence, a new route or a deleted rule leaves nothing
open for ever.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gpuagent_alerts.alert import Alert, Status
from gpuagent_alerts.outbox.entry import Occasion
from gpuagent_alerts.routing.groups import Group, group_of, written
from gpuagent_alerts.routing.route import Destination, Recipient
from gpuagent_alerts.routing.told import GroupKey, Told, ToldAlert

MAX_ALERTS = 100
"""In one message. What is new beyond that comes with the next one."""


@dataclass(frozen=True, slots=True)
class View:
    """The moment that is decided on."""

    now: float
    """Unix time."""
    firing: Mapping[str, Alert]
    """By fingerprint; all of them, silenced ones too."""
    ended: Mapping[str, Alert]
    """Those that ended lately."""
    destinations: Callable[[Mapping[str, str]], Sequence[Destination]]
    recipients: Mapping[str, Recipient]
    hushed: Callable[[Alert], bool]
    """Whether an alert is silenced or muted."""
    acknowledged: Collection[str]
    """Fingerprints of alerts that are not repeated."""
    node_labels: Mapping[str, str] = field(default_factory=dict)
    """What tells this node's alerts from others'; added to each where it is not there."""
    pending: Collection[str] = frozenset()
    """Fingerprints of what is true and does not fire yet."""

    def has_ended(self, fingerprint: str) -> bool:
        """Whether an alert that was told is over.

        What fires becomes pending by a reload alone, which ends it first. One that is pending without an end lost its
        state in a restart, and is still true.
        """
        return fingerprint not in self.firing and (fingerprint not in self.pending or fingerprint in self.ended)


@dataclass(frozen=True, slots=True)
class Telling:
    """What happens to one group: a message, unless `alerts` is empty, and what is known as told after it."""

    key: GroupKey
    told: Told | None
    alerts: tuple[Alert, ...] = ()
    group_labels: Mapping[str, str] = field(default_factory=dict)
    occasion: Occasion = Occasion.REPEAT
    news: tuple[str, ...] = ()
    """Fingerprints, as told, of alerts that the receiver has not heard of."""


class Decision(NamedTuple):
    """What is to be told now."""

    tellings: list[Telling]
    """By group; of groups about which nothing is to be said, nothing."""
    next_at: float
    """Unix time from which on there may be more to tell although nothing but the time has changed; infinity for never.
    When silences begin and end is for others to know."""


def decide(view: View, told: Mapping[GroupKey, Told]) -> Decision:
    """What to tell."""
    groups = _groups(view, told)
    found: list[Telling] = []
    times: list[float] = []
    for key in (*groups, *(key for key in told if key not in groups)):
        recipient = view.recipients.get(key.receiver)
        if recipient is None:
            found.append(Telling(key, None))  # there is nobody to tell
            continue
        group = _Group(view, key, recipient, groups.get(key), told.get(key))
        telling = group.telling()
        if telling is not None:
            found.append(telling)
        times += group.times()
    return Decision(found, min(times, default=math.inf))


def _groups(view: View, told: Mapping[GroupKey, Told]) -> dict[GroupKey, Group]:
    groups: dict[GroupKey, Group] = {}
    node = written(view.node_labels)
    for fingerprint, alert in view.firing.items():
        hushed = view.hushed(alert)
        for destination in view.destinations(alert.labels):
            key, empty = group_of(fingerprint, alert, destination, node)
            if hushed and not _is_refreshed(destination.recipient, told.get(key), fingerprint):
                continue
            groups.setdefault(key, empty).alerts[fingerprint] = alert
    return groups


def _is_refreshed(recipient: Recipient, told: Told | None, fingerprint: str) -> bool:
    """Whether a silence or a mute comes too late: a receiver that hears no more of an alert would tell of its end."""
    known = told.alerts.get(fingerprint) if told is not None else None
    return recipient.has_to_be_refreshed and known is not None and known.firing


class _Group:
    """One group at one moment."""

    def __init__(self, view: View, key: GroupKey, recipient: Recipient, group: Group | None, told: Told | None) -> None:
        self._view = view
        self._key = key
        self._recipient = recipient
        self._audible = group.alerts if group else {}
        self._repeat_seconds = group.destination.repeat_seconds if group else recipient.repeat_seconds
        self._labels = told.group_labels if told else group.labels if group else {}
        self._told_at = told.told_at if told else view.now
        self._known = dict(told.alerts) if told else {}
        self._changed = False

    def telling(self) -> Telling | None:
        self._forget()
        known = self._known
        over = {
            fingerprint: _ended(one.alert, self._view.ended.get(fingerprint), self._view.now)
            for fingerprint, one in known.items()
            if one.firing and self._view.has_ended(fingerprint)
        }
        new = {
            fingerprint: self._as_told(alert)
            for fingerprint, alert in self._audible.items()
            if fingerprint not in known or not known[fingerprint].firing
        }
        if new or over:
            return self._tell(new, over)
        if self._repeat_is_due():
            return self._repeat()
        return Telling(self._key, self._after(self._told_at)) if self._changed else None

    def times(self) -> Iterator[float]:
        """Unix times at which there may be something to tell although nothing else has changed."""
        now = self._view.now
        if self._repeat_seconds is not None and now - self._told_at < self._repeat_seconds:
            yield self._told_at + self._repeat_seconds
        for one in self._known.values():
            if one.ended_at is not None and now - one.ended_at < self._recipient.resolved_for_seconds:
                yield one.ended_at + self._recipient.resolved_for_seconds

    def _forget(self) -> None:
        """What is over and needs no more words."""
        for fingerprint, one in list(self._known.items()):
            firing = fingerprint in self._view.firing
            silent = (
                one.firing and self._view.has_ended(fingerprint) and (one.lost or not self._recipient.send_resolved)
            )
            old = one.ended_at is not None and self._view.now - one.ended_at >= self._recipient.resolved_for_seconds
            if silent or (old and not firing):
                del self._known[fingerprint]
                self._changed = True

    def _tell(self, new: dict[str, Alert], over: dict[str, Alert]) -> Telling:
        chosen = dict(list(new.items())[:MAX_ALERTS])
        still = self._still()
        # Whether a group fires is seen by its alerts, so one that does has a place in any case.
        reserved = 1 if still and not chosen else 0
        chosen |= dict(list(over.items())[: max(MAX_ALERTS - len(chosen) - reserved, 0)])
        occasion = Occasion.RESOLVED if any(fingerprint in over for fingerprint in chosen) else Occasion.FIRING
        chosen |= dict(list(still.items())[: MAX_ALERTS - len(chosen)])
        return self._message(chosen, occasion)

    def _repeat_is_due(self) -> bool:
        if self._repeat_seconds is None or self._view.now - self._told_at < self._repeat_seconds:
            return False
        if self._recipient.has_to_be_refreshed:  # an acknowledgement is no end
            return bool(self._still() or self._past())
        return any(f not in self._view.acknowledged for f in self._still()) or bool(self._past())

    def _repeat(self) -> Telling:
        chosen = dict(list((self._still() | self._past()).items())[:MAX_ALERTS])
        lost = any(self._known[fingerprint].lost for fingerprint in chosen)
        return self._message(chosen, Occasion.FIRING if lost else Occasion.REPEAT)

    def _message(self, chosen: Mapping[str, Alert], occasion: Occasion) -> Telling:
        now = self._view.now
        news = tuple(alert.fingerprint for fingerprint, alert in chosen.items() if self._is_news(fingerprint))
        for fingerprint, alert in chosen.items():
            if alert.status is Status.FIRING:
                self._known[fingerprint] = ToldAlert(alert)
            elif self._recipient.resolved_for_seconds > 0:
                before = self._known[fingerprint].ended_at
                self._known[fingerprint] = ToldAlert(alert, ended_at=now if before is None else before)
            else:
                del self._known[fingerprint]
        return Telling(self._key, self._after(now), tuple(chosen.values()), self._labels, occasion, news)

    def _is_news(self, fingerprint: str) -> bool:
        one = self._known.get(fingerprint)
        return one is None or one.lost or (not one.firing and fingerprint in self._view.firing)

    def _after(self, told_at: float) -> Told | None:
        return Told(told_at, self._labels, self._known) if self._known else None

    def _still(self) -> dict[str, Alert]:
        """What fires and was told, as it is now; under the labels and with the beginning that were told."""
        return {
            fingerprint: replace(
                self._known[fingerprint].alert,
                annotations=alert.annotations,
                value=alert.value,
                true_until=alert.true_until,
            )
            for fingerprint, alert in self._audible.items()
            if fingerprint in self._known and self._known[fingerprint].firing
        }

    def _past(self) -> dict[str, Alert]:
        """What ended and was told, and is told again for a while."""
        return {
            fingerprint: one.alert
            for fingerprint, one in self._known.items()
            if not one.firing and fingerprint not in self._view.firing
        }

    def _as_told(self, alert: Alert) -> Alert:
        return replace(alert, labels={**self._view.node_labels, **alert.labels})


def _ended(told: Alert, ended: Alert | None, now: float) -> Alert:
    """An alert that was told and fires no more: as it was told, with its last annotations and its end."""
    ends_at = now if ended is None or ended.ends_at is None else ended.ends_at
    last = told if ended is None else ended
    return replace(
        told, status=Status.RESOLVED, annotations=last.annotations, ends_at=max(ends_at, told.starts_at),
        value=last.value, true_until=last.true_until, end_reason=last.end_reason,
    )  # fmt: skip


def by_status(alerts: Iterable[Alert]) -> tuple[dict[str, Alert], dict[str, Alert]]:
    """Those that fire and those that ended, by fingerprint."""
    firing: dict[str, Alert] = {}
    ended: dict[str, Alert] = {}
    for alert in alerts:
        (firing if alert.status is Status.FIRING else ended)[alert.fingerprint] = alert
    return firing, ended
