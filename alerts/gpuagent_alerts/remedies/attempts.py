"""The last try for each alert and process, when the next is due, and why nothing is done about an alert."""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from gpuagent.core.identity import ProcessId
from gpuagent.core.units import format_time
from gpuagent_alerts.alert import Alert
from gpuagent_alerts.remedies.outcome import RunOutcome, RunResult
from gpuagent_alerts.remedies.safeguards.refusals import passes_in
from gpuagent_alerts.remedies.target import Target

log = logging.getLogger(__name__)

_SHORTEST_RETRY_SECONDS = 1.0
_RETRY_SECONDS = 60.0
_LONGEST_RETRY_SECONDS = 900.0
_KEPT = 256
"""Tries of one alert that are kept beside those about processes that are listed."""
_KEPT_GISTS = 32
_DURATION = re.compile(r"(<?\d+(\.\d+)? (d|h|min|s|ms)\b ?)+")
_SIZE = re.compile(r"\d+(\.\d+)? ([KMGT]i)?B(/h)?(?!\w)|\d+(\.\d+)? %")
_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC")
_NEWS_AGAIN_SECONDS = 900.0
_MOST_GISTS = 32
_PLACES = ("gpu", "gpu_instance_id", "pid", "budget")


@dataclass(frozen=True, slots=True)
class _Attempt:
    outcome: RunOutcome
    at: float
    wall: float
    """Unix time, for people."""
    wait: float
    gists: tuple[str, ...] = ()
    """What this and the tries before it came to while the alert went on: each is recorded and told once."""


class Attempts:
    """The last try for each alert and process. Tries by hand have "" for the alert; dry runs are counted apart."""

    def __init__(self, now: Callable[[], float], wall: Callable[[], float] = time.time) -> None:
        """`now` is CLOCK_BOOTTIME, `wall` Unix time."""
        self._now = now
        self._wall = wall
        self._last: dict[tuple[str, ProcessId, bool], _Attempt] = {}
        self._meant: dict[str, ProcessId] = {}

    def forget_ended(self, firing: Mapping[str, Sequence[Target]]) -> None:
        """Drop what belongs to alerts that have ended. `firing` has the processes that each alert could be about.

        Of one alert the oldest are dropped where there are many, but none about a process that is still listed: a
        ranking would begin with that again, and nobody behind it would have a turn.
        """
        self._last = {key: each for key, each in self._last.items() if key[0] in firing}
        self._meant = {alert: identity for alert, identity in self._meant.items() if alert in firing}
        for alert, tries in Counter(alert for alert, _, _ in self._last).items():
            if tries > _KEPT:
                listed = {each.id for each in firing[alert]}
                unlisted = [key for key in self._last if key[0] == alert and key[1] not in listed]
                for key in unlisted[:-_KEPT]:
                    del self._last[key]

    def forget_refusals(self) -> None:
        """Forget all but what was done for real: another configuration may mean others, and decides anew."""
        self._last = {key: each for key, each in self._last.items() if each.outcome.acted and not key[2]}

    def forget_refusal(self, alert: str, identity: ProcessId, *, dry_run: bool) -> None:
        """Forget the last try, unless something was done for real: another configuration has come while it ended."""
        key = alert, identity, dry_run
        if (last := self._last.get(key)) is not None and (dry_run or not last.outcome.acted):
            del self._last[key]

    def is_due(self, alert: str, identity: ProcessId, *, dry_run: bool) -> bool:
        """Return whether it may be tried, or tried again."""
        last = self._last.get((alert, identity, dry_run))
        return last is None or self._now() - last.at >= last.wait

    def is_meant(self, alert: str, identity: ProcessId) -> bool:
        """Return whether this is the process that the alert named when it was first seen: it never means another."""
        return self._meant.setdefault(alert, identity) == identity

    def was_refused_itself(self, alert: str, identity: ProcessId, *, dry_run: bool) -> bool:
        """Return whether the last try was refused because of who the process is: then it may be the next one's turn."""
        last = self._last.get((alert, identity, dry_run))
        return last is not None and last.outcome.result is RunResult.REFUSED and not last.outcome.general

    def gists(self, alert: str, identity: ProcessId, *, dry_run: bool) -> tuple[str, ...]:
        """Return what the tries came to since the alert began."""
        last = self._last.get((alert, identity, dry_run))
        return last.gists if last is not None else ()

    def last(self, alert: str, identity: ProcessId, *, dry_run: bool) -> tuple[str, float]:
        """Return when the last try was and what it came to, in words, and in how many seconds the next one is due."""
        last = self._last.get((alert, identity, dry_run))
        if last is None:
            return "", 0.0
        words = str(last.outcome.result).replace("_", " ")
        detail = f" (it was said then: {last.outcome.detail})" if last.outcome.detail else ""
        return f"{words} at {format_time(last.wall)}{detail}", max(last.at + last.wait - self._now(), 0.0)

    def note(self, alert: str, identity: ProcessId, outcome: RunOutcome, *, dry_run: bool) -> bool:
        """Record the end of a try; return whether an earlier one came to the same while the alert went on."""
        key = alert, identity, dry_run
        last = self._last.get(key)
        before = last.gists if last is not None else ()
        is_same = last is not None and last.outcome.gist == outcome.gist
        wait = _wait_after(outcome, last.wait if is_same and last is not None else 0.0)
        gists = (*(gist for gist in before if gist != outcome.gist), outcome.gist)[-_KEPT_GISTS:]
        self._last[key] = _Attempt(outcome, self._now(), self._wall(), wait, gists)
        return is_same or (outcome.result is RunResult.REFUSED and outcome.gist in before)


def _wait_after(outcome: RunOutcome, last: float) -> float:
    passing = passes_in(outcome.reasons)
    if outcome.result is RunResult.REFUSED and passing is not None:
        return max(passing, _SHORTEST_RETRY_SECONDS)
    if outcome.result is RunResult.REFUSED:
        return min(max(2 * last, _RETRY_SECONDS), _LONGEST_RETRY_SECONDS)
    return _LONGEST_RETRY_SECONDS if outcome.acted else _RETRY_SECONDS


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
    """The last reason why nothing is done about each firing alert. In memory only; for one event loop."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now` is CLOCK_BOOTTIME."""
        self._now = now
        self._by_alert: Mapping[str, WithheldLadder] = {}
        self._told: dict[str, dict[str, float]] = {}
        """What was logged of each alert that still fires, by gist: when that was the reason last."""

    def update(self, reasons: Mapping[str, tuple[Alert, str]], running: Collection[str] = ()) -> None:
        """Take the alerts whose ladders are not begun now, by fingerprint, each with its reason. Logs what is new.

        Of those that are `running` the reasons are remembered: a try that comes to the same is nothing new.
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
        self._told = {name: gists for name, gists in self._told.items() if name in found or name in running}

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
