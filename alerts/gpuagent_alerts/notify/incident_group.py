"""When one receiver is told of one incident: as it begins, each time it worsens, from time to time, and as it ends.

What joins it without making it worse, ends while others go on, or changes its evidence is seen with the next message.
That it goes on without the process that was told of is a message: its line would name what has ended.
Only what is true now begins it, makes it worse or is reminded of: an alert that is kept firing is none of that.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import replace

from gpuagent_alerts.alert import Alert, CauseKind, Incident, News, condition_times
from gpuagent_alerts.notify import told_subjects
from gpuagent_alerts.notify.cause import TOGETHER
from gpuagent_alerts.notify.ended_alerts import ended_alerts
from gpuagent_alerts.notify.incident_record import IncidentRecord, name_of_owner
from gpuagent_alerts.notify.lowered import EASED_SECONDS, LOWERED_SECONDS, is_eased, with_lowered_since
from gpuagent_alerts.notify.outbox.entry import Occasion
from gpuagent_alerts.notify.routes import Recipient
from gpuagent_alerts.notify.state import (
    AlertGroup,
    GroupKey,
    NotificationDecision,
    NotificationInputs,
    NotificationState,
    NotifiedAlert,
    NotifiedIncident,
)
from gpuagent_alerts.notify.succession import Restarts, Watch
from gpuagent_alerts.notify.urgency import (
    CRITICAL,
    FAST_TIER,
    GROWS_AGAIN,
    Urgency,
    UrgencyStage,
    by_urgency,
    did_nothing,
    is_remedy_note,
    is_remedy_that_helped,
    urgency_of,
    urgency_of_shared,
    worst,
    worst_severity,
)

LONGEST_CRITICAL_WAIT_SECONDS = 5.0
QUIET_UPDATE_SECONDS = 60.0
"""Time between two messages of an incident of which the later one calls nobody."""
FORECAST_STANDS_SECONDS = 60.0
"""Time after a message that memory is full soon in which it is no news that it is."""
_LOOK_AGAIN_SECONDS = 60.0
"""While what flaps is true again, and does not fire yet."""
_WATCH_SECONDS = 5.0
"""While nothing of it is true, and a restart or what is about to fire holds its end back."""
_READ_SECONDS = 20.0
"""Time within which each GPU is asked for its clocks, so that what came to all of them is one message."""
_NOTE_WAITS_SECONDS = 300.0
"""For so long what a remedy did waits for the end that it may have brought about: no shipped rule keeps for longer."""
_RISES_SECONDS = 75.0
"""What is not critical waits so long for a critical alert that is about to fire: `for` of a forecast of minutes, and
an evaluation."""
_REPEATS = frozenset({News.REMINDER, News.RESTARTED})
"""Messages that may tell of the same alerts again."""
_HOLDS_SECONDS = (0.0, 600.0, 1800.0)
"""For so long nothing must fire before the end is told, by how often the incident began again: one that flaps would be
told without end."""


class IncidentGroup:
    """One incident and one receiver, at one moment."""

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
        self._wait_seconds = group.destination.wait_seconds if group else 0.0
        self._repeat_seconds = group.destination.repeat_seconds if group else recipient.repeat_seconds
        self._record = self._find_record(group, told.incident if told else None)
        goes_on = self._record is not None and self._record.ends_at is None
        self._is_closed = told is not None and told.incident is not None and told.incident.is_closed
        if self._is_closed and goes_on:
            told = None  # it has begun again
        self._told = told.incident if told else None
        self._told_at = told.told_at if told else view.now
        self._known = dict(told.alerts) if told else {}
        self._only_notes = all(is_remedy_note(one.alert.labels) for one in self._known.values()) and not self._is_closed
        alerts = group.alerts if group else {}
        self._notes = {
            name: one for name, one in alerts.items()
            if name not in self._known and is_remedy_note(one.labels) and not did_nothing(one.labels)
        }  # fmt: skip
        """What was done, and this receiver has not heard."""
        self._audible = {
            name: one for name, one in alerts.items()
            if (goes_on and not self._waits_for_end(one)) or (self._only_notes and is_remedy_note(one.labels))
        }  # fmt: skip
        self._present = [alert for alert in self._audible.values() if alert.holds]
        self._live = any(not did_nothing(alert.labels) for alert in self._present)
        self._shared = self._find_shared()
        own = worst(self._present)
        shared = functools.reduce(Urgency.highest, map(urgency_of_shared, self._shared), own)
        self._current = shared if self._live else own

    def decide(self) -> NotificationDecision | None:
        """Return what is to be told or to be noted now; None for nothing."""
        if self._told is not None and self._told.is_closed:
            return None if self._record is not None and self._record.members else NotificationDecision(self._key, None)
        before = dict(self._known)
        self._note_ends()
        if self._told is None:
            return self._begin() if self._live else None
        told = self._with_lowered_since(self._told)
        if self._is_over():
            return self._end(told) if self._hold_is_over(told) else self._note_if_changed(before, told)
        if (news := self._news_of_what_goes_on(told)) is not None:
            return self._message(news, told)
        return self._note_if_changed(before, told)

    def _news_of_what_goes_on(self, told: NotifiedIncident) -> News | None:
        """Return why a message is due of an incident that goes on; None if none is."""
        if not self._live:
            again, now, known = self._grow_again, self._view.now, self._known
            is_quiet = self._is_acknowledged() or told_subjects.are_silenced(known, self._record, self._view.suppressed)
            is_due = again is not None and told_subjects.is_growth_due(again, told.restarts, self._told_at, now)
            return News.RESTARTED if is_due and known and not is_quiet else None
        if self._worsens(told.urgency) and self._has_waited(told.urgency) and not self._was_just_told(told.urgency):
            return News.WORSENED
        failed_since = told_subjects.failed_since(self._known, self._present)
        if failed_since is not None and not 0.0 <= self._view.now - failed_since < self._patience():
            return News.WORSENED
        if self._was_restarted(told):
            return None if self._rises else News.RESTARTED  # what it rises to is told in a moment
        has_eased = is_eased(told, self._current, self._view.now) and not self._is_acknowledged()
        if has_eased or self._repeat_is_due() or self._has_another_subject():
            return News.REMINDER
        return News.UPDATED if self._quiet_update_is_due(told) else None

    def times(self) -> Iterator[float]:
        """Yield Unix times at which there may be something to tell although nothing else has changed."""
        if self._told is not None and self._told.is_closed:
            return
        told = None if self._told is None else self._with_lowered_since(self._told)
        if self._live:
            yield from self._times_of_life(told)
        if told is not None and told.lowered_at is not None and self._live:
            yield from (told.lowered_at + wait for wait in (EASED_SECONDS, LOWERED_SECONDS))
        if told is not None and told.calm_at is not None:
            yield told.calm_at + self._hold_seconds()
            if self._is_coming_back():
                yield self._view.now + _LOOK_AGAIN_SECONDS
        if told is not None and not self._live and self._stirs():
            yield self._view.now + _WATCH_SECONDS

    def _times_of_life(self, told: NotifiedIncident | None) -> Iterator[float]:
        """Yield Unix times at which there may be something to tell of an incident that goes on."""
        oldest = self._oldest(told.urgency if told is not None else None)
        if oldest is not None:
            yield oldest + self._patience()
        if told is not None and (failed_since := told_subjects.failed_since(self._known, self._present)) is not None:
            yield failed_since + self._patience()
        if told is not None and self._has_another_head(told):
            yield self._told_at + QUIET_UPDATE_SECONDS
        if told is not None and self._was_just_told(told.urgency):
            yield self._told_at + FORECAST_STANDS_SECONDS
        if self._repeat_seconds is not None:
            yield self._told_at + self._repeat_seconds
        if told is not None and told.restarts < self._restarts:
            yield self._restart_news_at(told)
        if self._runs.since is not None:
            yield self._runs.since + told_subjects.SUBJECT_SECONDS
        yield from told_subjects.subject_news_times(self._known, self._view.firing)

    def _find_record(self, group: AlertGroup | None, told: NotifiedIncident | None) -> IncidentRecord | None:
        if group is not None and group.incident is not None:
            return group.incident
        return self._view.incidents.get(told.key) if told is not None else None

    def _find_shared(self) -> list[Alert]:
        """Return the alerts of other incidents that are as true of this one, and that this receiver hears of."""
        names = () if self._record is None else self._record.shared
        alerts = [alert for name in names if (alert := self._view.firing.get(name)) is not None]
        return [
            alert for alert in alerts
            if not self._view.suppressed(alert, self._record)
            and any(one.recipient == self._recipient for one in self._view.destinations(alert.labels))
        ]  # fmt: skip

    def _note_ends(self) -> None:
        """Keep with what was told that an alert has ended, until the next message says so."""
        for fingerprint, one in list(self._known.items()):
            if one.firing and (self._view.has_ended(fingerprint) or self._has_moved(fingerprint)):
                ended = self._view.as_ended(fingerprint, one.alert)
                if where := self._has_moved(fingerprint):
                    ended = replace(ended, end_reason=f"it goes on in another incident: {where}")
                self._known[fingerprint] = NotifiedAlert(
                    ended, one.lost, self._view.now, told_subjects.was_told_as_ended(one)
                )
            elif one.end_told and fingerprint in self._audible:
                del self._known[fingerprint]  # it begins again, and that is news
            elif not one.firing and fingerprint in self._audible:
                # It was never told that it had ended: to the receiver it has gone on.
                again = replace(self._view.as_told(self._audible[fingerprint]), starts_at=one.alert.starts_at)
                self._known[fingerprint] = NotifiedAlert(again, one.lost)

    def _with_lowered_since(self, told: NotifiedIncident) -> NotifiedIncident:
        """Return what was told, with since when it is less than that, and since when its end could be told."""
        now = self._view.now
        told = with_lowered_since(told, self._current, is_live=self._live, now=now)
        if not self._live:
            calm_at = told.calm_at if told.calm_at is not None else now
            return replace(told, calm_at=calm_at if self._is_over() else None)
        return replace(told, calm_at=None)

    def _is_over(self) -> bool:
        """Return whether nothing of the incident is true or about to be, whoever hears of that, and nothing told fires.

        Neither a silence nor a route makes an end: receivers are told of it as the incident ends on the screens.
        """
        return (
            not self._live
            and not self._goes_on()
            and (self._record is None or self._record.ends_at is not None or self._view.closing)
            and not self._stirs()
            and not any(
                one.firing
                and not self._view.has_ended(fingerprint)
                and not self._is_past(fingerprint)
                and not self._has_moved(fingerprint)
                for fingerprint, one in self._known.items()
            )
        )

    def _goes_on(self) -> bool:
        """Return whether an alert that keeps the incident open holds, silenced or told to others as it may be."""
        record = self._record
        if record is None or record.ends_at is not None or self._view.closing:
            return False
        members = (self._view.firing.get(name) for name, keeps in record.members.items() if keeps)
        return any(alert is not None and alert.holds for alert in members)

    def _stirs(self) -> bool:
        """Return whether something of the incident is about to fire, or grows again."""
        return not self._view.closing and self._record is not None and self._record.key in self._view.stirring

    def _waits_for_end(self, alert: Alert) -> bool:
        """Return whether what a remedy did is told with an end that is near, and not by itself before it.

        What has helped waits for as long as nothing of the incident is true.
        """
        is_new = 0.0 <= self._view.now - alert.starts_at < _NOTE_WAITS_SECONDS
        waits = is_remedy_note(alert.labels) and (is_new or is_remedy_that_helped(alert.labels))
        return waits and bool(self._told) and not self._goes_on()

    def _has_moved(self, fingerprint: str) -> str:
        """Return the incident that an alert which fires belongs to by now, in words; "" while it is of this one."""
        record = self._record
        if record is None or fingerprint in record.members or fingerprint not in self._view.firing:
            return ""
        return name_of_owner(self._view.incidents, fingerprint)

    def _is_past(self, fingerprint: str) -> bool:
        """Return whether an alert that fires speaks of what is over: its incident has ended, and it does not hold."""
        record = self._record
        if record is None or record.ends_at is None:
            return False
        alert = self._view.firing.get(fingerprint)
        is_note = not record.members.get(fingerprint, True) and not self._only_notes
        return is_note or (alert is not None and not alert.holds)

    def _hold_is_over(self, told: NotifiedIncident) -> bool:
        if self._view.closing:
            return True
        if told.calm_at is None or self._view.now - told.calm_at < self._hold_seconds():
            return False
        return not self._is_coming_back()

    def _is_coming_back(self) -> bool:
        """Return whether it has begun again before, and is true again, though not yet for as long as its rule asks."""
        return self._hold_seconds() > 0 and any(name in self._view.pending for name in self._known)

    def _hold_seconds(self) -> float:
        reopened = self._record.reopened if self._record is not None else 0
        if not reopened and self._was_a_load():
            reopened = 1
        return _HOLDS_SECONDS[min(reopened, len(_HOLDS_SECONDS) - 1)]

    def _was_a_load(self) -> bool:
        """Return whether all that was told is a forecast of seconds, and the growth stopped while its process goes on.

        What loads a model does so in several steps, some minutes apart: each would begin and end the incident.
        """
        known = self._known.values()
        is_fast = all(one.alert.labels.get("tier") == FAST_TIER for one in known)
        return is_fast and any(not one.firing for one in known) and not any(one.alert.end_is_certain for one in known)

    def _worsens(self, told: Urgency) -> bool:
        """Return whether it has become worse; one that somebody is at must have a higher severity for that."""
        if self._is_acknowledged():
            return self._current.severity > told.severity
        return self._current.rises_above(told)

    def _was_just_told(self, told: Urgency) -> bool:
        """Return whether it is full as it was said to be soon, just now: that is one piece of news, not two."""
        current = self._current
        comes_true = told.stage == UrgencyStage.FILLING and current.stage == UrgencyStage.FULL
        is_worse = current.severity > told.severity or current.action > told.action
        return comes_true and not is_worse and 0.0 <= self._view.now - self._told_at < FORECAST_STANDS_SECONDS

    def _quiet_update_is_due(self, told: NotifiedIncident) -> bool:
        is_settled = self._view.now >= self._told_at + QUIET_UPDATE_SECONDS and not self._worsens(told.urgency)
        return is_settled and self._has_another_head(told)

    def _has_another_head(self, told: NotifiedIncident) -> bool:
        """Return whether what somebody is at got worse or better, and its message can be rewritten without a call."""
        is_other = told.shown is not None and told.shown != self._current
        return is_other and self._recipient.updates_quietly and self._is_acknowledged()

    def _is_acknowledged(self) -> bool:
        acknowledged = self._view.acknowledged
        key = self._record.key if self._record is not None else ""
        return key in acknowledged or any(fingerprint in acknowledged for fingerprint in self._audible)

    def _has_waited(self, told: Urgency | None) -> bool:
        """Return whether alerts that come together have had the time to. A clock that was set ends the wait."""
        oldest = self._oldest(told)
        return oldest is None or not 0.0 <= self._view.now - oldest < self._patience()

    def _patience(self) -> float:
        is_critical = self._current.severity >= CRITICAL
        names = () if self._record is None else self._record.identities
        if self._rises:
            return max(self._wait_seconds, _RISES_SECONDS)
        if not is_critical and any(name.startswith(TOGETHER) for name in names):
            return max(self._wait_seconds, _READ_SECONDS)
        return min(self._wait_seconds, LONGEST_CRITICAL_WAIT_SECONDS) if is_critical else self._wait_seconds

    def _oldest(self, told: Urgency | None) -> float | None:
        """Return when the first alert began to fire that makes a message of it; None if none does."""
        news = (
            alert.starts_at
            for alert in self._present
            if not did_nothing(alert.labels) and (told is None or urgency_of(alert).rises_above(told))
        )
        shared = (
            alert.starts_at for alert in self._shared
            if told is not None and urgency_of_shared(alert).rises_above(told)
        )  # fmt: skip
        return min((*news, *shared), default=None)

    def _repeat_is_due(self) -> bool:
        if self._repeat_seconds is None or self._view.now - self._told_at < self._repeat_seconds:
            return False
        return not self._is_acknowledged()

    def _has_another_subject(self) -> bool:
        """Return whether all processes that were told of are out of it, while it goes on: the last message misleads."""
        told, now = self._told, self._view.now
        if told is None or told.restarts < self._restarts:
            return False  # that it was restarted tells more
        has_left = told_subjects.has_another_subject(self._known, self._view.firing, now)
        return (
            has_left or told_subjects.has_last_run_left(told.shown, self._runs, now)
        ) and not self._is_acknowledged()

    @property
    def _rises(self) -> bool:
        """Whether it is not critical, and will be in a moment: that is one message then."""
        return self._record is not None and self._record.rises and self._current.severity < CRITICAL

    @property
    def _runs(self) -> Restarts:
        return Restarts() if self._record is None else self._record.restarts

    @property
    def _restarts(self) -> int:
        return self._runs.count

    def _was_restarted(self, told: NotifiedIncident) -> bool:
        """Return whether its owner was restarted since the last message, and what is true now is of the new process."""
        is_due = told.restarts < self._restarts and self._view.now >= self._restart_news_at(told)
        return is_due and not self._is_acknowledged()

    def _restart_news_at(self, told: NotifiedIncident) -> float:
        oldest = min((one.starts_at for one in self._present), default=self._view.now)
        if not told.restarts:
            return oldest + told_subjects.SUBJECT_SECONDS
        return told_subjects.next_restart_news_at(self._told_at, self._runs, self._current)

    @property
    def _grow_again(self) -> Watch | None:
        return None if self._record is None else self._view.grow_again.get(self._record.key)

    def _begin(self) -> NotificationDecision | None:
        return self._message(News.BEGAN, None) if self._has_waited(None) else None

    def _end(self, told: NotifiedIncident) -> NotificationDecision:
        if not self._recipient.send_resolved or (self._known and all(one.lost for one in self._known.values())):
            return NotificationDecision(self._key, None)
        now = self._view.now
        chosen = ended_alerts(self._view, self._record, self._known, self._notes, self._recipient)
        ends_at = max((end for alert in chosen if (end := condition_times(alert)[1]) is not None), default=now)
        if self._restarts and self._record is not None:  # what was started again may have grown without an alert
            ends_at = max(ends_at, self._record.ends_at or ends_at)
        starts_at = self._starts_at(told)
        incident = self._incident(News.ENDED, told.severity, starts_at, max(ends_at, starts_at))
        closed = NotificationState(now, {}, {}, replace(told, is_closed=True)) if self._has_rest() else None
        return NotificationDecision(self._key, closed, chosen, occasion=Occasion.RESOLVED, incident=incident)

    def _has_rest(self) -> bool:
        """Return whether alerts of the incident still fire after its end."""
        return self._record is not None and self._record.ends_at is not None and bool(self._record.members)

    def _message(self, news: News, told: NotifiedIncident | None) -> NotificationDecision:
        has_moved_on = news is News.RESTARTED or (news is News.REMINDER and self._has_another_subject())
        ended = {fingerprint: one for fingerprint, one in self._known.items() if not one.firing and not one.end_told}
        firing = {
            fingerprint: self._view.as_told(alert, self._known.get(fingerprint))
            for fingerprint, alert in sorted(self._audible.items(), key=by_urgency)
        }
        chosen = dict(list(firing.items())[: self._view.most_alerts])
        told_ends = list(ended)[: self._view.most_alerts - len(chosen)]
        unheard = tuple(
            alert.fingerprint for fingerprint, alert in chosen.items()
            if fingerprint not in self._known or self._known[fingerprint].lost
        )  # fmt: skip
        occasion = Occasion.REPEAT if news in _REPEATS and not unheard else Occasion.FIRING
        occasion = Occasion.RESOLVED if told_ends else occasion
        occasion = Occasion.REPEAT if news is News.UPDATED or not self._live else occasion
        alerts = (*chosen.values(), *(ended[fingerprint].alert for fingerprint in told_ends))
        if not alerts:  # nothing fires of what grows again: its receiver knows it by what was told last
            alerts = tuple(one.alert for one in self._known.values())[-1:]
        self._known = {
            **{fingerprint: one for fingerprint, one in self._known.items() if fingerprint not in told_ends},
            **{fingerprint: NotifiedAlert(alert) for fingerprint, alert in chosen.items()},
            **{name: replace(ended[name], end_told=True) for name in told_ends},
        }
        for name in [name for name, one in self._known.items() if one.end_told][: -self._view.most_alerts]:
            del self._known[name]
        severity = worst_severity(alert.labels for alert in (*self._present, *self._shared))
        if self._record is not None and (not self._live or self._record.rises):
            severity = self._record.severity
        starts_at = self._starts_at(told)
        eased = told is not None and is_eased(told, self._current, self._view.now)
        urgency = self._current if told is None or eased else told.urgency.highest(self._current)
        if news is News.RESTARTED:  # what was told of the process before says nothing of this one
            urgency = GROWS_AGAIN.highest(self._current)
        key = self._record.key if self._record is not None else ""
        lowered_at = None if told is None or not urgency.rises_above(self._current) else told.lowered_at
        noted = NotifiedIncident(
            key, severity, starts_at, urgency, lowered_at, shown=self._current, restarts=self._restarts,
            was_eased=eased or (told is not None and told.was_eased),
        )  # fmt: skip
        after = NotificationState(self._view.now, {}, self._known, noted)
        return NotificationDecision(
            self._key, after, alerts, occasion=occasion, news=unheard,
            incident=self._incident(news, severity, starts_at, None),
            urgent=news in {News.BEGAN, News.WORSENED} and self._is_newly_critical(told),
            tells_more=has_moved_on or eased,
        )  # fmt: skip

    def _is_newly_critical(self, told: NotifiedIncident | None) -> bool:
        """Return whether it is critical, and was not when this receiver was told of it last."""
        return self._current.severity >= CRITICAL and (told is None or told.urgency.severity < CRITICAL)

    def _starts_at(self, told: NotifiedIncident | None) -> float:
        """Return since when it goes on for this receiver: not later than was told before."""
        return min((one.starts_at for one in (told, self._record) if one is not None), default=self._view.now)

    def _incident(self, news: News, severity: str, starts_at: float, ends_at: float | None) -> Incident:
        record = self._record
        key = record.key if record is not None else self._told.key if self._told is not None else ""
        kind = record.kind if record is not None else CauseKind.RULE
        labels = {name: value for name, value in record.labels.items() if value} if record is not None else {}
        shown = {**self._view.node_labels, **labels}
        restarts = self._runs
        again = None if self._grow_again is None else self._grow_again.growth
        return Incident(
            key, kind, shown, severity, starts_at, ends_at, news,
            restarts=restarts.count, restarted_pids=restarts.pids, flat_seconds=restarts.flat_seconds,
            grows_by=restarts.grows_by if again is None or news is News.ENDED else again.bytes_per_second,
            grew_on=() if record is None else record.grew_on,
            grew_together=0 if record is None else record.grew_together, last_run=restarts.last_run,
        )  # fmt: skip

    def _note_if_changed(
        self, before: Mapping[str, NotifiedAlert], told: NotifiedIncident
    ) -> NotificationDecision | None:
        if self._known == before and told == self._told:
            return None
        return NotificationDecision(self._key, NotificationState(self._told_at, {}, self._known, told))
