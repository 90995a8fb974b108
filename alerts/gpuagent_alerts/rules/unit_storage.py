"""Samples over time for unit tests of rules: what Prometheus' storage shows of them at any moment."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from gpuagent_alerts.promql.series import SeriesIndex
from gpuagent_alerts.promql.values import Element, LabelSet, without_name
from gpuagent_alerts.states.machine import RuleFailure

LOOK_BACK_MILLISECONDS = 300_000
"""A sample is seen for so long, to the millisecond and with both ends, unless the series is marked stale."""
_Key = tuple[str, frozenset[tuple[str, str]]]


@dataclass(slots=True)
class _Track:
    """One series. None is the marker of staleness."""

    labels: LabelSet
    times: list[int] = field(default_factory=list)
    values: list[float | None] = field(default_factory=list)

    def append(self, time_milliseconds: int, value: float | None) -> str:
        """Returns what is wrong with the sample, in Prometheus' words."""
        if self.times and time_milliseconds < self.times[-1]:
            return "out of order sample"
        if self.times and time_milliseconds == self.times[-1]:
            return "" if _bits(value) == _bits(self.values[-1]) else "duplicate sample for timestamp"
        self.times.append(time_milliseconds)
        self.values.append(value)
        return ""

    def at(self, time_milliseconds: int) -> float | None:
        place = bisect_right(self.times, time_milliseconds) - 1
        if place < 0 or self.times[place] < time_milliseconds - LOOK_BACK_MILLISECONDS:
            return None
        return self.values[place]


class UnitStorage:
    """Input series, which appear as time goes on, and the results of rules."""

    def __init__(self) -> None:
        self._tracks: dict[str, dict[_Key, _Track]] = {}
        self._input: dict[_Key, tuple[LabelSet, list[tuple[int, float | None]]]] = {}
        self._previous: dict[Hashable, set[_Key]] = {}
        self.now_milliseconds = 0

    def set_input(self, labels: Mapping[str, str], samples: Iterable[tuple[int, float | None]]) -> None:
        """A series of the test file. The same series again replaces the first."""
        name, others = without_name(labels)
        self._input[name, others.key()] = others, list(samples)

    def advance(self, time_milliseconds: int) -> None:
        """Let input samples up to this time be seen."""
        self.now_milliseconds = time_milliseconds
        for key, (labels, samples) in self._input.items():
            count = bisect_right(samples, time_milliseconds, key=itemgetter(0))
            for time, value in samples[:count]:
                self._track(key, labels).append(time, value)
            del samples[:count]

    def index(self) -> SeriesIndex:
        """As seen now."""
        return self.index_at(self.now_milliseconds)

    def index_at(self, time_milliseconds: int) -> SeriesIndex:
        """As seen at another time, with what has been loaded so far."""
        return _IndexAt(self._tracks, time_milliseconds)

    def publish(self, owner: Hashable, elements: Sequence[Element]) -> None:
        """Write a rule's result; what it had before and has no longer becomes stale."""
        written: set[_Key] = set()
        problem = ""
        for name, labels, value in elements:
            key = name, labels.key()
            wrong = self._track(key, labels).append(self.now_milliseconds, value)
            if wrong:
                problem = wrong
            else:
                written.add(key)
        for key in self._previous.get(owner, set()) - written:
            self._tracks[key[0]][key].append(self.now_milliseconds, None)
        self._previous[owner] = written
        if problem:
            raise RuleFailure(problem)

    def _track(self, key: _Key, labels: LabelSet) -> _Track:
        return self._tracks.setdefault(key[0], {}).setdefault(key, _Track(labels))


class _IndexAt(SeriesIndex):
    def __init__(self, tracks: Mapping[str, Mapping[_Key, _Track]], time_milliseconds: int) -> None:
        super().__init__()
        self._tracks = tracks
        self._time = time_milliseconds

    def names(self) -> Sequence[str]:
        return list(self._tracks)

    def elements(self, name: str) -> list[Element]:
        return [
            (name, track.labels, value)
            for track in self._tracks.get(name, {}).values()
            if (value := track.at(self._time)) is not None
        ]


def _bits(value: float | None) -> bytes:
    return b"" if value is None else struct.pack("d", value)
