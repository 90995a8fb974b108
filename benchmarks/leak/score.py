"""The rules of the count: what is a hit, what is a false alarm, and how sure the figures are."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.leak.alarms import Alarm
from benchmarks.leak.trace import Kind, Trace

DAY_SECONDS = 86_400.0
COUNTED = (Kind.BENIGN, Kind.LEAK)
_ONE_ALARM_SECONDS = 1800.0
"""What fires again so soon is the same alarm."""
_LEAD_SECONDS = 600.0
_Z_95 = 1.959964


class Facts(NamedTuple):
    """What the count needs to know of a trace."""

    family: str
    kind: Kind
    begin_seconds: float
    end_seconds: float
    leak_seconds: float | None
    exhausted_seconds: float | None

    @property
    def leak_free_days(self) -> float:
        """Time in which every alarm is false."""
        end = self.end_seconds if self.leak_seconds is None else self.leak_seconds
        return max(0.0, end - self.begin_seconds) / DAY_SECONDS


def facts_of(trace: Trace) -> Facts:
    """Without the samples."""
    return Facts(
        trace.family, trace.kind, trace.begin_seconds, trace.end_seconds, trace.leak_seconds, trace.exhausted_seconds
    )


class Outcome(NamedTuple):
    """One trace and what one method said of it."""

    facts: Facts
    alarms: Sequence[Alarm]

    @property
    def hit(self) -> Alarm | None:
        """The first alarm that began within the leak's life; one that was on before it tells nobody anything new."""
        begin = self.facts.leak_seconds
        if begin is None:
            return None
        return next((alarm for alarm in self.alarms if alarm.at_seconds >= begin), None)

    @property
    def false_alarms(self) -> int:
        """Alarms that began while nothing leaked."""
        begin, last, count = self.facts.leak_seconds, -math.inf, 0
        for alarm in self.alarms:
            if begin is not None and alarm.at_seconds >= begin:
                break
            if alarm.at_seconds - last >= _ONE_ALARM_SECONDS:
                count += 1
            last = alarm.at_seconds
        return count


class Interval(NamedTuple):
    """A figure with its 95 % bounds."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Score:
    """One method's row of the table."""

    name: str
    signal: str
    lives: int
    hits: int
    recall: Interval
    days: float
    false: int
    false_per_day: Interval
    traces: int
    traces_alarmed: int
    """Leak-free traces with any alarm."""
    delay_minutes: tuple[float, float] | None
    """Median and 95th percentile."""
    life_share: float | None
    """Median share of the leak's life that had passed."""
    lead: float | None
    """Share of the leaks that ended out of memory that were known ten minutes before."""
    forecast: tuple[float, float, float, float] | None
    """Forecast over truth at the alarm: median, 10th and 90th percentile, and the share within a factor of 2."""
    update_seconds: float
    """Mean cost of an update."""


def score(name: str, signal: str, outcomes: Sequence[Outcome], update_seconds: float) -> Score:
    """All traces but those of the kinds that are counted apart."""
    outcomes = [outcome for outcome in outcomes if outcome.facts.kind in COUNTED]
    leaks = [outcome for outcome in outcomes if outcome.facts.leak_seconds is not None]
    hits = [(outcome.facts, outcome.hit) for outcome in leaks if outcome.hit]
    delays = [alarm.at_seconds - (facts.leak_seconds or 0.0) for facts, alarm in hits]
    shares = [
        delay / max(1.0, (facts.exhausted_seconds or facts.end_seconds) - (facts.leak_seconds or 0.0))
        for (facts, _), delay in zip(hits, delays, strict=True)
    ]
    exhausted = [outcome for outcome in leaks if outcome.facts.exhausted_seconds is not None]
    benign = [outcome for outcome in outcomes if outcome.facts.kind is Kind.BENIGN]
    days = sum(outcome.facts.leak_free_days for outcome in outcomes)
    false = sum(outcome.false_alarms for outcome in outcomes)
    return Score(
        name=name,
        signal=signal,
        lives=len(leaks),
        hits=len(hits),
        recall=wilson(len(hits), len(leaks)),
        days=days,
        false=false,
        false_per_day=poisson(false, days),
        traces=len(benign),
        traces_alarmed=sum(bool(outcome.false_alarms) for outcome in benign),
        delay_minutes=(statistics.median(delays) / 60, quantile(delays, 0.95) / 60) if delays else None,
        life_share=statistics.median(shares) if shares else None,
        lead=_share(exhausted, _known_in_time),
        forecast=_forecast(hits),
        update_seconds=update_seconds,
    )


def alarmed(outcomes: Iterable[Outcome], family: str) -> tuple[int, int]:
    """Traces of a family with an alarm (within the life, for a leak), and traces in all."""
    of_family = [outcome for outcome in outcomes if outcome.facts.family == family]
    is_leak = [outcome.facts.leak_seconds is not None for outcome in of_family]
    told = [
        outcome.hit is not None if leak else bool(outcome.false_alarms)
        for outcome, leak in zip(of_family, is_leak, strict=True)
    ]
    return sum(told), len(told)


class Collapses(NamedTuple):
    """What the fast path said of memory that is gone within minutes, and where nothing collapsed."""

    told: int
    traces: int
    seconds_before: float | None
    """Median, from the word to the end."""
    words_per_day: Interval
    """In leak-free traces: they may well be right, a model that loads does fill the GPU fast."""


def collapses(outcomes: Iterable[Outcome]) -> Collapses:
    """The fast path's figures."""
    outcomes = list(outcomes)
    sudden = [outcome for outcome in outcomes if outcome.facts.kind is Kind.COLLAPSE]
    before = [
        outcome.facts.exhausted_seconds - outcome.hit.at_seconds
        for outcome in sudden
        if outcome.hit and outcome.facts.exhausted_seconds is not None
    ]
    benign = [outcome for outcome in outcomes if outcome.facts.kind is Kind.BENIGN]
    words = sum(outcome.false_alarms for outcome in benign)
    days = sum(outcome.facts.leak_free_days for outcome in benign)
    return Collapses(len(before), len(sudden), statistics.median(before) if before else None, poisson(words, days))


def _known_in_time(outcome: Outcome) -> bool:
    hit, end = outcome.hit, outcome.facts.exhausted_seconds
    return hit is not None and end is not None and end - hit.at_seconds >= _LEAD_SECONDS


def _forecast(hits: Sequence[tuple[Facts, Alarm | None]]) -> tuple[float, float, float, float] | None:
    ratios = [
        alarm.exhaustion_seconds / (facts.exhausted_seconds - alarm.at_seconds)
        for facts, alarm in hits
        if alarm and alarm.exhaustion_seconds is not None and facts.exhausted_seconds is not None
        and facts.exhausted_seconds > alarm.at_seconds
    ]  # fmt: skip
    if not ratios:
        return None
    within = sum(0.5 <= ratio <= 2.0 for ratio in ratios) / len(ratios)
    return statistics.median(ratios), quantile(ratios, 0.1), quantile(ratios, 0.9), within


def _share(outcomes: Sequence[Outcome], test: Callable[[Outcome], bool]) -> float | None:
    return sum(test(outcome) for outcome in outcomes) / len(outcomes) if outcomes else None


def quantile(values: Iterable[float], share: float) -> float:
    """The value that at least this share does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def wilson(hits: int, count: int) -> Interval:
    """A share with Wilson's bounds (1927): right at 0 and 1 too, where the usual ones have no width."""
    if not count:
        return Interval(math.nan, 0.0, 1.0)
    share = hits / count
    spread = _Z_95**2 / count
    middle = (share + spread / 2) / (1 + spread)
    half = _Z_95 * math.sqrt(share * (1 - share) / count + spread / count / 4) / (1 + spread)
    return Interval(share, max(0.0, middle - half), min(1.0, middle + half))


def poisson(events: int, days: float) -> Interval:
    """Events per day with exact bounds (Garwood, 1936)."""
    if days <= 0:
        return Interval(math.nan, 0.0, math.inf)
    low = 0.0 if not events else _mean_where(lambda mean: 1 - _at_most(events - 1, mean) >= 0.025, events)
    high = _mean_where(lambda mean: _at_most(events, mean) < 0.025, events)
    return Interval(events / days, low / days, high / days)


def _at_most(events: int, mean: float) -> float:
    """Probability of so many events or fewer."""
    if mean == 0:
        return 1.0
    return min(1.0, math.fsum(math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(events + 1)))


def _mean_where(test: Callable[[float], bool], events: int) -> float:
    """The smallest mean that passes a test which larger ones pass too."""
    low, high = 0.0, events + 10 * math.sqrt(events + 1) + 10
    for _ in range(60):
        middle = (low + high) / 2
        if test(middle):
            high = middle
        else:
            low = middle
    return high
