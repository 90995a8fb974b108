"""Why nothing is done about an alert that fires and has a ladder: the last reason of each, for as long as it fires."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from gpuagent_alerts.alert import Alert

log = logging.getLogger(__name__)

_DURATION = re.compile(r"(<?\d+(\.\d+)? (d|h|min|s|ms)\b ?)+")
_PLACES = ("gpu", "gpu_instance_id", "pid", "budget")


@dataclass(frozen=True, slots=True)
class WithheldLadder:
    """An alert whose ladder is not begun."""

    alert: Alert
    reason: str
    since_seconds: float
    """CLOCK_BOOTTIME since which this has been the reason, how long it still lasts aside."""

    @property
    def gist(self) -> str:
        """The same for two reasons that differ in nothing but durations."""
        return _DURATION.sub("#", self.reason)


class WithheldLadders:
    """For one event loop. In memory only: a restart looks anew."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now` is CLOCK_BOOTTIME."""
        self._now = now
        self._by_alert: Mapping[str, WithheldLadder] = {}
        self._told: Mapping[str, str] = {}
        """What was logged last of each alert that still fires."""

    def update(self, reasons: Mapping[str, tuple[Alert, str]], climbing: Collection[str] = ()) -> None:
        """Take the alerts whose ladders are not begun now, by fingerprint, each with its reason. Logs what is new.

        Of those that are `climbing` the last reason is remembered: a try that comes to the same is nothing new.
        """
        found = {}
        for name, (alert, reason) in reasons.items():
            one, before = WithheldLadder(alert, reason, self._now()), self._by_alert.get(name)
            if before is not None and before.gist == one.gist:
                one = WithheldLadder(alert, reason, before.since_seconds)
            elif self._told.get(name) != one.gist:
                places = ", ".join(f"{label} {alert.labels[label]}" for label in _PLACES if alert.labels.get(label))
                log.info("nothing is done about %s (%s): %s", alert.name, places or "no place", reason)
            found[name] = one
        self._by_alert = found
        remembered = {name: gist for name, gist in self._told.items() if name in climbing}
        self._told = remembered | {name: one.gist for name, one in found.items()}

    def documents(self, wall_seconds: float) -> list[dict[str, object]]:
        """Return what is withheld now, JSON-ready. `wall_seconds` is Unix time."""
        now = self._now()
        return [
            {
                "fingerprint": each.alert.fingerprint,
                "alertname": each.alert.name,
                "labels": dict(each.alert.labels),
                "reason": each.reason,
                "since_seconds": wall_seconds - (now - each.since_seconds),
            }
            for each in self._by_alert.values()
        ]

    def reason(self, fingerprint: str) -> str:
        """Return why nothing is done about an alert; "" where it has no ladder, or its ladder is under way."""
        one = self._by_alert.get(fingerprint)
        return one.reason if one is not None else ""
