"""Why nothing is done about an alert that fires and has a ladder: the last reason of each, for as long as it fires."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from gpuagent_alerts.alert import Alert

log = logging.getLogger(__name__)

_DURATION = re.compile(r"(<?\d+(\.\d+)? (d|h|min|s|ms)\b ?)+")
_SIZE = re.compile(r"\d+(\.\d+)? ([KMGT]i)?B(/h)?(?!\w)|\d+(\.\d+)? %")
_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC")
_NEWS_AGAIN_SECONDS = 900.0
_MOST_GISTS = 32
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
        """The same for two reasons that differ in nothing but times, durations and amounts."""
        return _DURATION.sub("#", _SIZE.sub("#", _TIME.sub("#", self.reason)))


class WithheldLadders:
    """For one event loop. In memory only: a restart looks anew."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now` is CLOCK_BOOTTIME."""
        self._now = now
        self._by_alert: Mapping[str, WithheldLadder] = {}
        self._told: dict[str, dict[str, float]] = {}
        """What was logged of each alert that still fires, by gist: when that was the reason last."""

    def update(self, reasons: Mapping[str, tuple[Alert, str]], climbing: Collection[str] = ()) -> None:
        """Take the alerts whose ladders are not begun now, by fingerprint, each with its reason. Logs what is new.

        Of those that are `climbing` the reasons are remembered: a try that comes to the same is nothing new.
        """
        found = {}
        for name, (alert, reason) in reasons.items():
            one, before = WithheldLadder(alert, reason, self._now()), self._by_alert.get(name)
            if before is not None and before.gist == one.gist:
                one = WithheldLadder(alert, reason, before.since_seconds)
            if self._is_news(name, one.gist):
                places = ", ".join(f"{label} {alert.labels[label]}" for label in _PLACES if alert.labels.get(label))
                log.info("nothing is done about %s (%s): %s", alert.name, places or "no place", reason)
            found[name] = one
        self._by_alert = found
        self._told = {name: gists for name, gists in self._told.items() if name in found or name in climbing}

    def _is_news(self, name: str, gist: str) -> bool:
        """Return whether this was not the reason lately: one that comes and goes with every tick is logged once."""
        now, gists = self._now(), self._told.setdefault(name, {})
        last = gists.pop(gist, None)
        gists[gist] = now
        while len(gists) > _MOST_GISTS:
            del gists[next(iter(gists))]
        return last is None or now - last >= _NEWS_AGAIN_SECONDS

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
