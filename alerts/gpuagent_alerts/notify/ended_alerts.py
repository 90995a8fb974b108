"""The alerts that the end of an incident tells one receiver of: what it was told, and what ended with that untold."""

from __future__ import annotations

from collections.abc import Mapping

from gpuagent_alerts.alert import Alert
from gpuagent_alerts.notify.final_reason import with_final_reason
from gpuagent_alerts.notify.incident_record import IncidentRecord
from gpuagent_alerts.notify.routes import Recipient
from gpuagent_alerts.notify.state import NotificationInputs, NotifiedAlert, as_ended
from gpuagent_alerts.notify.urgency import is_remedy_note


def ended_alerts(
    view: NotificationInputs,
    record: IncidentRecord | None,
    known: Mapping[str, NotifiedAlert],
    notes: Mapping[str, Alert],
    recipient: Recipient,
) -> tuple[Alert, ...]:
    """Return the alerts of the last message of an incident, each with what ended it.

    `known` is what the receiver was told, `notes` what remedies did that it has not heard.
    """
    # What a remedy came to may have been learned after the end was noticed.
    ended = {fingerprint: _as_ended(view, record, fingerprint, one) for fingerprint, one in known.items()}
    untold = {**_left_with_it(view, record, known, recipient), **notes}
    ended |= {
        name: as_ended(view.as_told(alert), view.end_within(record, name) or alert, view.now)
        for name, alert in untold.items()
    }
    every = (*ended.values(), *_all_ended(view, record))
    told_last = tuple(ended.values()) or every[-1:]  # what was told may have begun again since, without a message
    return tuple(with_final_reason(one, every) for one in told_last[: view.most_alerts])


def _as_ended(view: NotificationInputs, record: IncidentRecord | None, name: str, one: NotifiedAlert) -> Alert:
    """Return an alert that a receiver was told of, by its fingerprint on the node, as it ended in this incident."""
    last = view.end_within(record, name)
    if one.firing:
        return as_ended(one.alert, last or view.firing.get(name), view.now)
    is_of_later = last is not None and one.alert.ends_at is not None and last.starts_at > one.alert.ends_at
    return one.alert if last is None or is_of_later else as_ended(one.alert, last, view.now)


def _left_with_it(
    view: NotificationInputs, record: IncidentRecord | None, known: Mapping[str, NotifiedAlert], recipient: Recipient
) -> dict[str, Alert]:
    """Return alerts that ended with the incident, and of which this receiver has not heard yet."""
    left = () if record is None else record.left
    found = {name: one for name in left if (one := view.end_within(record, name)) is not None}
    kept = {name: one for name in left if (one := _kept_alert(view, name)) and not is_remedy_note(one.labels)}
    found = {name: one for name, one in (kept | found).items() if name not in known}
    return {
        name: alert for name, alert in found.items()
        if any(one.recipient == recipient for one in view.destinations(alert.labels))
    }  # fmt: skip


def _kept_alert(view: NotificationInputs, fingerprint: str) -> Alert | None:
    """Return an alert that fires only because it is kept; None if it does not."""
    alert = view.firing.get(fingerprint)
    return alert if alert is not None and alert.is_kept else None


def _all_ended(view: NotificationInputs, record: IncidentRecord | None) -> list[Alert]:
    """Return all alerts of the incident that are over, whoever hears of them."""
    left = () if record is None else (*record.left, *record.members)
    found = (view.end_within(record, name) or _kept_alert(view, name) for name in left)
    return [one for one in found if one is not None]
