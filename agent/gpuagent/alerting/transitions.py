"""Alerts in the agent's own log: what began to fire and what ended, for whoever reads the journal afterwards."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from gpuagent_alerts.alert import Alert, shown_annotations
from gpuagent_alerts.states.machine import Change, Transition

log = logging.getLogger(__name__)

_FIELD_OF = {
    "severity": "SEVERITY",
    "gpu": "GPU",
    "uuid": "GPU_UUID",
    "pid": "PID",
    "process": "PROCESS",
    "user": "USER",
    "unit": "UNIT",
    "container_id": "CONTAINER_ID",
}
"""Labels that somebody looks for, and the fields of their own that they become."""


def log_transitions(transitions: Iterable[Transition]) -> None:
    """One line for each beginning and end; that it goes on is no news."""
    for change, alert in transitions:
        if change is Change.STARTED:
            log.warning("alert %s fires: %s", alert.name, _words(alert), extra={"fields": _fields(alert, "firing")})
        elif change is Change.ENDED:
            log.info("alert %s is over: %s", alert.name, _words(alert), extra={"fields": _fields(alert, "resolved")})


def _words(alert: Alert) -> str:
    """What the rule says of it, or which one it is."""
    labels = ", ".join(f"{name}={value}" for name, value in alert.labels.items() if name in _FIELD_OF)
    return shown_annotations(alert).get("summary") or labels or "-"


def _fields(alert: Alert, status: str) -> dict[str, str]:
    labels = {field: alert.labels[name] for name, field in _FIELD_OF.items() if alert.labels.get(name)}
    return {"ALERT": alert.name, "ALERT_STATUS": status, "FINGERPRINT": alert.fingerprint, **labels}
