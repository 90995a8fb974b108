"""What follows from something worse is not told beside it: built in, there is no language for it.

A GPU that is lost, or that the monitor cannot see, has one alert that says so. Others about the same GPU were true
before or are consequences; they are told if they still fire when it is back. What caused the loss, an Xid for example,
is told all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from gpuagent_alerts.alert import Alert, Status

LOST = "GpuLost"
BLIND = "GpuMonitorBlind"
_CAUSES = ("GpuXid", "GpuEccUncorrectable", "GpuRowRemap", "GpuRecoveryAction")
"""What their names begin with."""


def muted_by(alerts: Iterable[Alert]) -> Callable[[Mapping[str, str]], str]:
    """A function from an alert's labels to the name of the alert that mutes it, "" if none does."""
    sources: dict[str, set[str]] = {LOST: set(), BLIND: set()}
    for alert in alerts:
        if alert.status is Status.FIRING and alert.name in sources:
            sources[alert.name].update(alert.labels.get(label, "") for label in ("uuid", "gpu"))

    def muted(labels: Mapping[str, str]) -> str:
        name, gpu = labels.get("alertname", ""), labels.get("uuid") or labels.get("gpu", "")
        if not gpu or name == LOST or name.startswith(_CAUSES):
            return ""
        if gpu in sources[LOST]:
            return LOST
        return BLIND if name != BLIND and gpu in sources[BLIND] else ""

    return muted
