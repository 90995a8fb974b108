"""What became of the last try for an alert and a process, and when the next one is due."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from gpuagent.core.identity import ProcessId
from gpuagent.core.units import format_time
from gpuagent_alerts.remedies.outcome import Outcome, Result
from gpuagent_alerts.remedies.refusals import passes_in

_SHORTEST_RETRY_SECONDS = 1.0
_RETRY_SECONDS = 60.0
_LONGEST_RETRY_SECONDS = 900.0
_KEPT = 256
_KEPT_GISTS = 32


@dataclass(frozen=True, slots=True)
class _Attempt:
    outcome: Outcome
    at: float
    wall: float
    """Unix time, for people."""
    wait: float
    gists: tuple[str, ...] = ()
    """What this and the tries before it came to while the alert went on: each is recorded and told once."""


class Attempts:
    """By fingerprint of the alert ("" for what people asked) and identity of the process; dry runs apart."""

    def __init__(self, now: Callable[[], float], wall: Callable[[], float] = time.time) -> None:
        """`now` is CLOCK_BOOTTIME, `wall` Unix time."""
        self._now = now
        self._wall = wall
        self._last: dict[tuple[str, ProcessId, bool], _Attempt] = {}
        self._meant: dict[str, ProcessId] = {}

    def keep(self, firing: Collection[str]) -> None:
        """Drop what belongs to alerts that have ended."""
        self._last = {key: each for key, each in self._last.items() if key[0] in firing}
        self._meant = {alert: identity for alert, identity in self._meant.items() if alert in firing}
        while len(self._last) > _KEPT:
            del self._last[next(iter(self._last))]

    def forget_refusals(self) -> None:
        """Forget all but what was done for real: another configuration may mean others, and decides anew."""
        self._last = {key: each for key, each in self._last.items() if each.outcome.acted and not key[2]}

    def forget_refusal(self, alert: str, identity: ProcessId, *, dry_run: bool) -> None:
        """Forget the last try, unless something was done for real: another configuration has come while it ended."""
        key = alert, identity, dry_run
        if (last := self._last.get(key)) is not None and (dry_run or not last.outcome.acted):
            del self._last[key]

    def is_due(self, alert: str, identity: ProcessId, *, dry_run: bool) -> bool:
        """Whether it may be tried, or tried again."""
        last = self._last.get((alert, identity, dry_run))
        return last is None or self._now() - last.at >= last.wait

    def is_meant(self, alert: str, identity: ProcessId) -> bool:
        """Whether this is the process that the alert named when it was first seen: it never comes to mean another."""
        return self._meant.setdefault(alert, identity) == identity

    def was_refused_itself(self, alert: str, identity: ProcessId, *, dry_run: bool) -> bool:
        """Whether the last try was refused because of who the process is: then it may be the next one's turn."""
        last = self._last.get((alert, identity, dry_run))
        return last is not None and last.outcome.result is Result.REFUSED and not last.outcome.general

    def gists(self, alert: str, identity: ProcessId, *, dry_run: bool) -> tuple[str, ...]:
        """Return what the attempts came to since the alert began."""
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

    def note(self, alert: str, identity: ProcessId, outcome: Outcome, *, dry_run: bool) -> bool:
        """Record the end of an attempt. Return whether an earlier one came to the same while the alert went on."""
        key = alert, identity, dry_run
        last = self._last.get(key)
        before = last.gists if last is not None else ()
        is_same = last is not None and last.outcome.gist == outcome.gist
        wait = _wait_after(outcome, last.wait if is_same and last is not None else 0.0)
        gists = (*(gist for gist in before if gist != outcome.gist), outcome.gist)[-_KEPT_GISTS:]
        self._last[key] = _Attempt(outcome, self._now(), self._wall(), wait, gists)
        return is_same or (outcome.result is Result.REFUSED and outcome.gist in before)


def _wait_after(outcome: Outcome, last: float) -> float:
    passing = passes_in(outcome.reasons)
    if outcome.result is Result.REFUSED and passing is not None:
        return max(passing, _SHORTEST_RETRY_SECONDS)
    if outcome.result is Result.REFUSED:
        return min(max(2 * last, _RETRY_SECONDS), _LONGEST_RETRY_SECONDS)
    return _LONGEST_RETRY_SECONDS if outcome.acted else _RETRY_SECONDS
