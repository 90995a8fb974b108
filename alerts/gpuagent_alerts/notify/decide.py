"""What is to be told now: a comparison of what fires with what each receiver was told, and nothing else.

It looks at states, not at events: what could not be kept the last time is simply still to be done. A resolve is made of
what was told, so it is never told of something that was not; a silence, a new route or a deleted rule leaves nothing
open for ever.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from gpuagent_alerts.alert import Alert, Status
from gpuagent_alerts.notify.incident_group import LONGEST_CRITICAL_WAIT_SECONDS, IncidentGroup
from gpuagent_alerts.notify.outbox.entry import Occasion
from gpuagent_alerts.notify.routes import Recipient
from gpuagent_alerts.notify.state import (
    MAX_ALERTS,
    AlertGroup,
    GroupKey,
    NotificationDecision,
    NotificationInputs,
    NotificationState,
    NotifiedAlert,
    alert_group,
    format_labels,
)
from gpuagent_alerts.notify.urgency import CRITICAL, did_nothing, severity_rank


class Decisions(NamedTuple):
    """Messages to send now, and when to look again."""

    decisions: list[NotificationDecision]
    """Decisions by group, without groups about which nothing is to be said."""
    next_at: float
    """Unix time from which on there may be more to tell although nothing but the time has changed; infinity for never.
    When silences begin and end is for others to know."""


def decide(view: NotificationInputs, told: Mapping[GroupKey, NotificationState]) -> Decisions:
    """Return what is to be told now, and the Unix time at which there may be more."""
    groups = _groups(view, told)
    found: list[NotificationDecision] = []
    times: list[float] = []
    gone = sorted(told.keys() - groups.keys(), key=lambda key: (told[key].told_at, key))  # the same after a restart
    for key in (*groups, *gone):
        recipient = view.recipients.get(key.receiver)
        if recipient is None:
            found.append(NotificationDecision(key, None))  # there is nobody to tell
            continue
        group = _group(view, key, recipient, groups.get(key), told.get(key))
        decision = group.decide()
        if decision is not None:
            found.append(decision)
        times += (time for time in group.times() if time > view.now)
    return Decisions(found, min(times, default=math.inf))


def _group(
    view: NotificationInputs,
    key: GroupKey,
    recipient: Recipient,
    group: AlertGroup | None,
    told: NotificationState | None,
) -> _Group | IncidentGroup:
    is_incident = (group is not None and group.incident is not None) or (told is not None and told.incident is not None)
    return (IncidentGroup if is_incident else _Group)(view, key, recipient, group, told)


def _groups(view: NotificationInputs, told: Mapping[GroupKey, NotificationState]) -> dict[GroupKey, AlertGroup]:
    groups: dict[GroupKey, AlertGroup] = {}
    node = format_labels(view.node_labels)
    known = _known_groups(told)
    incidents = {fingerprint: one for one in view.incidents.values() for fingerprint in one.members}
    waits_since: dict[GroupKey, float] = {}
    for fingerprint, alert in view.firing.items():
        suppressed = view.suppressed(alert, incidents.get(fingerprint))
        for destination in view.destinations(alert.labels):
            incident = incidents.get(fingerprint)
            key, empty = alert_group(fingerprint, alert, destination, node, incident)
            before = known.get((key.receiver, fingerprint), ())
            if before and key not in before:
                # An upgrade, or a reload with other routes: it goes on where its receiver was told of it.
                key, empty = before[0], AlertGroup(destination, told[before[0]].group_labels)
            if alert.is_kept and not _is_known(told.get(key), fingerprint):
                continue  # what is not true now is no news
            is_inhibited = bool(destination.group_by) and view.inhibited(alert)
            if is_inhibited and not _is_known(told.get(key), fingerprint):
                waits_since[key] = min(waits_since.get(key, math.inf), alert.starts_at)
                continue
            if incident is None and did_nothing(alert.labels) and not destination.recipient.one_by_one:
                continue  # a dry run is told with an incident, or not at all
            if suppressed and not _is_refreshed(destination.recipient, told.get(key), fingerprint):
                continue
            groups.setdefault(key, empty).alerts[fingerprint] = alert
    for key in waits_since.keys() & groups.keys():
        groups[key].waits_since = waits_since[key]
    return groups


def _known_groups(told: Mapping[GroupKey, NotificationState]) -> dict[tuple[str, str], list[GroupKey]]:
    """Return the groups in which a receiver takes an alert for firing, by receiver and fingerprint."""
    found: dict[tuple[str, str], list[GroupKey]] = {}
    for key in sorted(told):
        for fingerprint, one in told[key].alerts.items():
            if one.firing:
                found.setdefault((key.receiver, fingerprint), []).append(key)
    return found


def _is_known(told: NotificationState | None, fingerprint: str) -> bool:
    known = told.alerts.get(fingerprint) if told is not None else None
    return known is not None and known.firing


def _is_refreshed(recipient: Recipient, told: NotificationState | None, fingerprint: str) -> bool:
    """Return whether a silence comes too late: a receiver that hears no more of an alert would tell of its end."""
    return recipient.has_to_be_refreshed and _is_known(told, fingerprint)


class _Group:
    """One group at one moment."""

    def __init__(
        self,
        view: NotificationInputs,
        key: GroupKey,
        recipient: Recipient,
        group: AlertGroup | None,
        told: NotificationState | None,
    ) -> None:
        self._view = view
        self._key = key
        self._recipient = recipient
        self._audible = group.alerts if group else {}
        self._repeat_seconds = group.destination.repeat_seconds if group else recipient.repeat_seconds
        self._wait_seconds = group.destination.wait_seconds if group and group.destination.group_by else 0.0
        self._waits_since = group.waits_since if group else math.inf
        self._news_at: float | None = None
        """Unix time until which what is new waits for others of its group; None while nothing does."""
        self._labels = told.group_labels if told else group.labels if group else {}
        self._told_at = told.told_at if told else view.now
        self._known = dict(told.alerts) if told else {}
        self._changed = False

    def decide(self) -> NotificationDecision | None:
        self._forget()
        known = self._known
        over = {
            fingerprint: self._view.as_ended(fingerprint, one.alert)
            for fingerprint, one in known.items()
            if one.firing and self._view.has_ended(fingerprint)
        }
        new = {
            fingerprint: self._view.as_told(alert)
            for fingerprint, alert in self._audible.items()
            if fingerprint not in known or not known[fingerprint].firing
        }
        new = self._waited(new)
        if new or over:
            return self._news_decision(new, over)
        if self._repeat_is_due():
            return self._repeat()
        return NotificationDecision(self._key, self._after(self._told_at)) if self._changed else None

    def times(self) -> Iterator[float]:
        """Yield unix times at which there may be something to tell although nothing else has changed."""
        now = self._view.now
        if self._repeat_seconds is not None and now - self._told_at < self._repeat_seconds:
            yield self._told_at + self._repeat_seconds
        if self._news_at is not None:
            yield self._news_at
        for one in self._known.values():
            if one.ended_at is not None and now - one.ended_at < self._recipient.resolved_for_seconds:
                yield one.ended_at + self._recipient.resolved_for_seconds

    def _waited(self, new: dict[str, Alert]) -> dict[str, Alert]:
        """Return what is new once it has waited for others of its group. A clock that was set ends the wait."""
        if not new:
            return new
        is_critical = any(self._is_critical(alert) for alert in new.values())
        wait = min(self._wait_seconds, LONGEST_CRITICAL_WAIT_SECONDS) if is_critical else self._wait_seconds
        oldest = min(self._waits_since, *(alert.starts_at for alert in new.values()))
        if not 0.0 <= self._view.now - oldest < wait:
            return new
        self._news_at = oldest + wait
        return {}

    def _forget(self) -> None:
        """Drop what is over and needs no more words."""
        for fingerprint, one in list(self._known.items()):
            firing = fingerprint in self._view.firing
            silent = (
                one.firing and self._view.has_ended(fingerprint) and (one.lost or not self._recipient.send_resolved)
            )
            old = one.ended_at is not None and self._view.now - one.ended_at >= self._recipient.resolved_for_seconds
            if silent or (old and not firing):
                del self._known[fingerprint]
                self._changed = True

    def _news_decision(self, new: dict[str, Alert], over: dict[str, Alert]) -> NotificationDecision:
        chosen = dict(list(new.items())[:MAX_ALERTS])
        still = self._still_firing()
        # Whether a group fires is seen by its alerts, so one that does has a place in any case.
        reserved = 1 if still and not chosen else 0
        chosen |= dict(list(over.items())[: max(MAX_ALERTS - len(chosen) - reserved, 0)])
        occasion = Occasion.RESOLVED if any(fingerprint in over for fingerprint in chosen) else Occasion.FIRING
        chosen |= dict(list(still.items())[: MAX_ALERTS - len(chosen)])
        return self._message(chosen, occasion)

    def _repeat_is_due(self) -> bool:
        if self._repeat_seconds is None or self._view.now - self._told_at < self._repeat_seconds:
            return False
        if self._recipient.has_to_be_refreshed:  # an acknowledgement is no end, and nor is a condition that ceased
            return bool(self._still_firing() or self._recently_ended())
        present = (name for name, alert in self._still_firing().items() if alert.holds)
        return any(name not in self._view.acknowledged for name in present) or bool(self._recently_ended())

    def _repeat(self) -> NotificationDecision:
        chosen = dict(list((self._still_firing() | self._recently_ended()).items())[:MAX_ALERTS])
        lost = any(self._known[fingerprint].lost for fingerprint in chosen)
        return self._message(chosen, Occasion.FIRING if lost else Occasion.REPEAT)

    def _message(self, chosen: Mapping[str, Alert], occasion: Occasion) -> NotificationDecision:
        now = self._view.now
        news = tuple(alert.fingerprint for fingerprint, alert in chosen.items() if self._is_news(fingerprint))
        for fingerprint, alert in chosen.items():
            if alert.status is Status.FIRING:
                self._known[fingerprint] = NotifiedAlert(alert)
            elif self._recipient.resolved_for_seconds > 0:
                before = self._known[fingerprint].ended_at
                self._known[fingerprint] = NotifiedAlert(alert, ended_at=now if before is None else before)
            else:
                del self._known[fingerprint]
        urgent = any(
            self._is_critical(alert) and alert.holds and alert.fingerprint in news for alert in chosen.values()
        )
        return NotificationDecision(
            self._key, self._after(now), tuple(chosen.values()), self._labels, occasion, news, urgent=urgent
        )  # fmt: skip

    def _is_critical(self, alert: Alert) -> bool:
        return severity_rank(alert.labels.get("severity", "")) >= CRITICAL

    def _is_news(self, fingerprint: str) -> bool:
        one = self._known.get(fingerprint)
        return one is None or one.lost or (not one.firing and fingerprint in self._view.firing)

    def _after(self, told_at: float) -> NotificationState | None:
        return NotificationState(told_at, self._labels, self._known) if self._known else None

    def _still_firing(self) -> dict[str, Alert]:
        """Return still-firing, already-notified alerts with their original labels and start time."""
        return {
            fingerprint: self._view.as_told(alert, self._known[fingerprint])
            for fingerprint, alert in self._audible.items()
            if fingerprint in self._known and self._known[fingerprint].firing
        }

    def _recently_ended(self) -> dict[str, Alert]:
        """Return alerts whose end was sent and is repeated for a while."""
        return {
            fingerprint: one.alert
            for fingerprint, one in self._known.items()
            if not one.firing and fingerprint not in self._view.firing
        }


def by_status(alerts: Iterable[Alert]) -> tuple[dict[str, Alert], dict[str, Alert]]:
    """Return those that fire and those that ended, by fingerprint."""
    firing: dict[str, Alert] = {}
    ended: dict[str, Alert] = {}
    for alert in alerts:
        (firing if alert.status is Status.FIRING else ended)[alert.fingerprint] = alert
    return firing, {name: alert for name, alert in ended.items() if name not in firing}
