"""Going over to `alerting: prometheus`: what this agent has told of is closed, as nobody would close it later.

What waits to be sent is still sent, in its order. Then every receiver that takes an alert for firing is told of its
end, with words that say why. Prometheus tells of what goes on, in its own name.
"""

from __future__ import annotations

from dataclasses import replace

from gpuagent_alerts.alert import Alert, Status

WORDS = (
    "it may go on, and is closed here because the agent no longer notifies (alerting: prometheus); "
    "Prometheus and Alertmanager tell of it from now on"
)


def handed_over(alert: Alert, wall_seconds: float) -> Alert:
    """An alert that fires, as the one that is told last. `wall_seconds` is Unix time."""
    return replace(alert, status=Status.RESOLVED, ends_at=wall_seconds, end_reason=WORDS)
