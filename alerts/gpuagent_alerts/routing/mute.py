"""What follows from something worse is not told beside it: built in, there is no language for it.

A GPU that is lost, or that the monitor cannot see, has one alert that says so. Others about the same GPU were true
before or are consequences; they are told if they still fire when it is back. Where the monitor is blind on the whole
node, one alert says that for all GPUs. What caused the loss, an Xid for example, is told all the same, and so is the
loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from gpuagent_alerts.alert import Alert, Status

LOST = "GpuLost"
BLIND = "GpuMonitorBlind"
CAUSES = ("GpuXid", "GpuEccUncorrectable", "GpuRowRemap", "GpuRecoveryAction")
"""What their names begin with."""


def muted_by(alerts: Iterable[Alert]) -> Callable[[Mapping[str, str]], str]:
    """A function from an alert's labels to the name of the alert that mutes it, "" if none does."""
    sources: dict[str, set[str]] = {LOST: set(), BLIND: set()}
    node_is_blind = False
    for alert in alerts:
        if alert.status is Status.FIRING and alert.name in sources:
            gpus = _gpus(alert.labels)
            sources[alert.name].update(gpus)
            node_is_blind |= alert.name == BLIND and not gpus

    def muted(labels: Mapping[str, str]) -> str:
        name, gpus = labels.get("alertname", ""), _gpus(labels)
        if not gpus or name == LOST or name.startswith(CAUSES):
            return ""
        if gpus[0] in sources[LOST]:
            return LOST
        return BLIND if node_is_blind or (name != BLIND and gpus[0] in sources[BLIND]) else ""

    return muted


def _gpus(labels: Mapping[str, str]) -> list[str]:
    """The names that the labels have for a GPU, the one that is its own everywhere first; none for the whole node."""
    return [name for label in ("uuid", "gpu") if (name := labels.get(label, ""))]
