"""What the rules say, for whoever acts on it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from gpuagent_alerts.alert import Alert
from gpuagent_alerts.remedies.grounds import UNKNOWN, Grounds

_NO_LABELS: Mapping[str, str] = MappingProxyType({})


class Judged(NamedTuple):
    """An alert that fires, the expression of its rule, whether that is true, and on data of which time.

    One that is only kept firing (`keep_firing_for`) is told, and is no reason to act.
    """

    alert: Alert
    expression: str
    holds: bool
    measured_seconds: float
    """CLOCK_BOOTTIME of the snapshot that the rule was last evaluated on: groups have intervals of their own."""
    since_seconds: float
    """CLOCK_BOOTTIME at which it began to be true: a process that started later is not the one that it is about."""
    interval_seconds: float = 0.0
    """Between two evaluations of the rule."""
    read_seconds: Mapping[str, float] = MappingProxyType({})
    """By UUID: CLOCK_BOOTTIME of each GPU's reading in that snapshot, which may be older than the snapshot."""
    measured: bool = True
    """False while the data behind it is missing: then it goes on as it was, and nobody knows whether it is true."""
    grounds: Grounds = UNKNOWN
    """Whom the rule's alerts are about, or why they are no reason to disrupt a process."""
    result_labels: Mapping[str, str] = _NO_LABELS
    """Labels that the expression's result has, without those that the rule itself writes."""

    def seen_seconds(self, gpu_uuid: str) -> float:
        """Return the time of the reading of this GPU that the rule was last evaluated on."""
        return self.read_seconds.get(gpu_uuid, self.measured_seconds)
