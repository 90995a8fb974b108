"""What an on-call person would have seen of these services: the bars, counted."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from benchmarks.leak.load.arrivals import DAY_SECONDS
from benchmarks.leak.load.families import Group, Run
from benchmarks.leak.load.judge import Said
from gpuagent.core.growth import Evidence

_ONE_ALARM_SECONDS: Final = 1800.0
"""What is told again so soon is the same alarm."""
_SECOND_WEEK: Final = 7 * DAY_SECONDS
_SHORT_SECONDS: Final = 3 * DAY_SECONDS


class Judged(NamedTuple):
    """A service and what was said of each of its lives."""

    run: Run
    said: Sequence[Said]


@dataclass(frozen=True)
class Row:
    """A figure with its count."""

    name: str
    value: float
    of: str


def rows(judged: Sequence[Judged], remedy: Iterable[Evidence]) -> list[Row]:
    """Return the figures; `remedy` are the standards that remedies may go by."""
    grade = frozenset(remedy)
    found: list[Row] = []
    for group in (Group.BENIGN, Group.HEALTHY_POD, Group.FILL):
        found += _quiet(group.value, [one for one in judged if one.run.group is group], grade)
    found += _fills([one for one in judged if one.run.group is Group.FILL], grade)
    for group in (Group.LEAK, Group.CRASH, Group.POD):
        found += _recall(group.value, [said for one in judged if one.run.group is group for said in one.said], grade)
    nightly = [one for one in judged if one.run.group is Group.NIGHTLY]
    first = [said for one in nightly for said in one.said if said.begin < one.said[0].begin + _SECOND_WEEK - 1]
    later = [said for one in nightly for said in one.said if said.begin >= one.said[0].begin + _SECOND_WEEK - 1]
    found += [_share("nightly: lives of the first week told", [bool(_hit(said)) for said in first])]
    found += [_share("nightly: lives of the second week told", [bool(_hit(said)) for said in later])]
    leaks = [said for one in judged if one.run.group in (Group.LEAK, Group.CRASH, Group.POD) for said in one.said]
    return found + _forecasts(leaks)


def _quiet(name: str, judged: Sequence[Judged], grade: frozenset[Evidence]) -> list[Row]:
    days = sum((said.end - said.begin) / DAY_SECONDS for one in judged for said in one.said)
    told = sum(_count(said) for one in judged for said in one.said)
    acted = sum(any(grade & set(alarm.evidence) for alarm in said.told) for one in judged for said in one.said)
    if not days:
        return []
    return [
        Row(f"{name}: false alarms in 100 days", 100 * told / days, f"{told} in {days:.0f} d"),
        Row(f"{name}: lives told at the grade for remedies", acted, f"of {sum(len(one.said) for one in judged)}"),
    ]


def _count(said: Said) -> int:
    last, count = -1e18, 0
    for alarm in said.told:
        if alarm.at - last >= _ONE_ALARM_SECONDS:
            count += 1
        last = alarm.at
    return count


def _fills(judged: Sequence[Judged], grade: frozenset[Evidence]) -> list[Row]:
    def acted(said: Said) -> bool:
        return any(grade & set(alarm.evidence) for alarm in said.told)

    return [
        _share("slow fill: told in the first life", [bool(one.said[0].told) for one in judged]),
        _share("slow fill: told at the grade in the first life", [acted(one.said[0]) for one in judged]),
        _share("slow fill: told in the second life", [bool(s.told) for one in judged for s in one.said[1:]]),
        _share("slow fill: told at the grade in the second life", [acted(s) for one in judged for s in one.said[1:]]),
    ]


def _hit(said: Said, grade: frozenset[Evidence] | None = None) -> float | None:
    """Return when the leak was told first, within its life."""
    if said.leak_seconds is None:
        return None
    for alarm in said.told:
        if alarm.at < said.leak_seconds:
            continue
        for evidence, at in zip(alarm.evidence, alarm.evidence_at, strict=True):
            if grade is None or evidence in grade:
                return at
    return None


def _recall(name: str, said: Sequence[Said], grade: frozenset[Evidence]) -> list[Row]:
    ended = [one for one in said if one.leak_seconds is not None and one.exhausted]
    if not ended:
        return []
    shares = [
        (at - one.leak_seconds) / (one.end - one.leak_seconds)
        for one in ended
        if one.leak_seconds is not None and (at := _hit(one)) is not None
    ]
    return [
        _share(f"{name}: told before the memory is gone", [_hit(one) is not None for one in ended]),
        _share(f"{name}: told at the grade before that", [_hit(one, grade) is not None for one in ended]),
        Row(f"{name}: share of the life that had passed", statistics.median(shares or [1.0]), "median"),
    ]


def _forecasts(said: Iterable[Said]) -> list[Row]:
    held, widths, within = [], [], []
    for one in said:
        hit = next((alarm for alarm in one.told if one.leak_seconds is not None and alarm.at >= one.leak_seconds), None)
        if hit is None or not one.exhausted or one.leak_seconds is None:
            continue
        left = one.end - hit.at
        if hit.exhaustion is None:
            within.append(False)
            continue
        within.append(0.5 <= hit.exhaustion.value / left <= 2.0)
        held.append(hit.exhaustion.low <= left <= hit.exhaustion.high)
        if one.end - one.leak_seconds < _SHORT_SECONDS:
            widths.append(hit.exhaustion.high / max(hit.exhaustion.low, 1.0))
    return [
        _share("forecast: the range holds", held),
        _share("forecast: within a factor of 2", within),
        Row(
            "forecast: width of the range, lives under 3 days",
            statistics.median(widths or [0.0]),
            f"median, most {max(widths, default=0):.1f}",
        ),
    ]


def _share(name: str, hits: Sequence[bool]) -> Row:
    return Row(name, sum(hits) / len(hits) if hits else float("nan"), f"{sum(hits)} of {len(hits)}")
