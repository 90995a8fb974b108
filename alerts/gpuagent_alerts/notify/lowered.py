"""Since when an incident is less urgent than a receiver was told, and when what was told counts as forgotten."""

from __future__ import annotations

from dataclasses import replace

from gpuagent_alerts.notify.state import NotifiedIncident
from gpuagent_alerts.notify.urgency import CALM, GROWS_AGAIN, Urgency, UrgencyStage

LOWERED_SECONDS = 1800.0
"""Time after which a severity that was told and is no longer true counts as forgotten: its return is sent again."""
EASED_SECONDS = 600.0
"""Time after which an incident that goes on without what made it severe is told as what it is; the second time, and
later, that takes `LOWERED_SECONDS`."""


def with_lowered_since(told: NotifiedIncident, current: Urgency, *, is_live: bool, now: float) -> NotifiedIncident:
    """Return what was told, with since when it is less than that: also while no alert of it is true.

    What was told counts as forgotten after `LOWERED_SECONDS`. What has risen again by then is compared with the last
    message, which may have told of less: a receiver that heard of a warning last is told that it is critical again.
    `now` is Unix time.
    """
    heard = _heard_last(told)
    is_lower = told.urgency.rises_above(current)
    if told.lowered_at is None:
        return replace(told, lowered_at=now) if is_lower or (is_live and current.rises_above(heard)) else told
    if not is_live:
        return told
    if now - told.lowered_at >= LOWERED_SECONDS:
        # It may have been less until nothing of it was true, and has returned from that.
        return replace(told, urgency=heard.lowest(current) if is_lower else CALM, lowered_at=None)
    return told if is_lower or current.rises_above(heard) else replace(told, lowered_at=None)


def _heard_last(told: NotifiedIncident) -> Urgency:
    """Return the urgency in the last message, not above what counts as told."""
    if told.shown is None:
        return told.urgency
    shown = GROWS_AGAIN if told.shown == CALM else told.shown
    return shown.lowest(told.urgency)


def is_eased(told: NotifiedIncident, current: Urgency, now: float) -> bool:
    """Return whether the last message misleads: nothing grows, is full or is lost any more, and it is less severe.

    `told` is as `with_lowered_since` returns it, `now` is Unix time.
    """
    shown = told.shown
    if shown is None or current.stage > UrgencyStage.NOTED or shown.stage <= UrgencyStage.NOTED:
        return False
    if shown.severity <= current.severity:
        return False
    if told.lowered_at is None:  # what was told counts as forgotten
        return told.urgency.severity <= current.severity
    return not told.was_eased and now - told.lowered_at >= EASED_SECONDS
