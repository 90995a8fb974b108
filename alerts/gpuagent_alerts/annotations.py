"""Which of a rule's texts are for which state of its alerts.

`summary`, `description` and `reasons` speak of an alert that fires. While it is pending, `pending_summary` does, and
once it is over `resolved_summary`, in the past tense, with the reason of its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gpuagent_alerts.alert import Alert, Status

SUMMARY: Final = "summary"
PENDING_SUMMARY: Final = "pending_summary"
RESOLVED_SUMMARY: Final = "resolved_summary"
_OF_OTHER_STATES: Final = frozenset({PENDING_SUMMARY, RESOLVED_SUMMARY})
_OF_FIRING: Final = frozenset({SUMMARY, "description", "reasons"})
UNKNOWN_END: Final = "no longer true"


def shown_annotations(alert: Alert) -> dict[str, str]:
    """Return the annotations that are true of an alert in its state, for a receiver."""
    if alert.status is Status.FIRING:
        return {name: text for name, text in alert.annotations.items() if name not in _OF_OTHER_STATES}
    others = {
        name: text
        for name, text in alert.annotations.items()
        if name not in _OF_OTHER_STATES and name not in _OF_FIRING
    }
    return {SUMMARY: resolved_summary(alert), **others}


def resolved_summary(alert: Alert) -> str:
    """Return what was and why it is over: `GPU 0: memory was full: memory back to 31.0 GiB`."""
    what = alert.annotations.get(RESOLVED_SUMMARY) or f"{alert.name} has ended"
    return f"{what}: {alert.end_reason or UNKNOWN_END}"


def pending_summary(name: str, annotations: Mapping[str, str]) -> str:
    """Return what is true of an alert that does not fire yet."""
    return annotations.get(PENDING_SUMMARY) or f"{name} is true, and fires if it stays so"
