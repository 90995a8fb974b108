"""One detector per process of a trace, the list of what they said, and how that agrees with what people say of it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from gpuagent.core.growth import Evidence, Growth, Range, Verdict
from gpuagent_alerts.leak.detector import MemoryLeakDetector
from gpuagent_alerts.leak.replay.exported import TraceDocument, rows_of
from gpuagent_alerts.leak.replay.rows import OnFault, ProcessFacts, Rows
from gpuagent_alerts.leak.settings import SENSITIVITIES, Sensitivity

MOST_PROCESSES: Final = 4096
"""Detectors that are kept: 50 MiB. When there are more, the process unseen for longest is told and forgotten."""


class Point(NamedTuple):
    """The readings of a stretch of time: the highest of each column, None where it had none."""

    seconds: float
    used_bytes: float | None
    free_bytes: float | None
    allocated_bytes: float | None
    lowest_used_bytes: float | None = None


class DownsampledSeries:
    """Between `most` / 2 and `most` stretches of equal length; when they are too many, each two become one."""

    def __init__(self, most: int = 512) -> None:
        self._most = most
        self._first: float | None = None
        self._stretch = 1.0
        self._columns: dict[int, list[float | None]] = {}
        self._place = -1
        self._current: list[float | None] = []

    def add(self, seconds: float, used: float | None, free: float | None, allocated: float | None) -> None:
        """Note a reading."""
        if self._first is None:
            self._first = seconds
        place = int((seconds - self._first) // self._stretch)
        if place != self._place:
            self._enter(place, seconds)
        current = self._current
        if used is not None and (current[0] is None or used > current[0]):
            current[0] = used
        if free is not None and (current[1] is None or free > current[1]):
            current[1] = free
        if allocated is not None and (current[2] is None or allocated > current[2]):
            current[2] = allocated
        if used is not None and (current[3] is None or used < current[3]):
            current[3] = used

    def _enter(self, place: int, seconds: float) -> None:
        assert self._first is not None  # noqa: S101 - add() has set it
        while place >= self._most:
            merged: dict[int, list[float | None]] = {}
            for old, values in self._columns.items():
                other = merged.get(old // 2)
                merged[old // 2] = values if other is None else _joined(other, values)
            self._columns = merged
            self._stretch *= 2
            place = int((seconds - self._first) // self._stretch)
        self._place = place
        self._current = self._columns.setdefault(place, [None, None, None, None])

    def points(self) -> list[Point]:
        """Return the curve, with a point for each stretch that had no reading too."""
        if self._first is None:
            return []
        last = max(self._columns)
        nothing: list[float | None] = [None, None, None, None]
        return [
            Point(self._first + place * self._stretch, *self._columns.get(place, nothing)) for place in range(last + 1)
        ]


def _joined(one: Sequence[float | None], other: Sequence[float | None]) -> list[float | None]:
    """Return the highest of each column of two stretches; of the last one the lowest."""
    pairs = [[value for value in pair if value is not None] for pair in zip(one, other, strict=True)]
    return [*(max(pair, default=None) for pair in pairs[:-1]), min(pairs[-1], default=None)]


@dataclass(frozen=True, slots=True)
class ReplayedAlarm:
    """A time at which a process would have been called leaking."""

    alarm_seconds: float
    onset_seconds: float
    cleared_seconds: float | None
    evidence: Evidence | None
    slope: Range | None
    exhaustion: Range | None
    reasons: tuple[str, ...]


@dataclass(slots=True)
class Replayed:
    """A process of a trace, and what the detector said of it."""

    process: str
    samples: int = 0
    first_seconds: float = 0.0
    last_seconds: float = 0.0
    growth: Growth = field(default_factory=lambda: Growth(Verdict.LEARNING))
    """The last word."""
    alarms: list[ReplayedAlarm] = field(default_factory=list)
    verdicts: list[tuple[float, Verdict]] = field(default_factory=list)
    """Each verdict with the time at which it began."""
    fast_seconds: list[float] = field(default_factory=list)
    """When the fast tier began to speak."""
    judged: bool = False
    """Whether some row told what is free: without it there is no verdict."""
    sketch: DownsampledSeries = field(default_factory=DownsampledSeries)

    def note(self, seconds: float, growth: Growth) -> None:
        """Record that the detector's verdict has changed."""
        was, self.growth = self.growth, growth
        if not self.verdicts or growth.verdict is not self.verdicts[-1][1]:
            self.verdicts.append((seconds, growth.verdict))
        if growth.fast and not was.fast:
            self.fast_seconds.append(seconds)
        leaks, leaked = growth.verdict is Verdict.LEAKING, was.verdict is Verdict.LEAKING
        if leaks and not leaked:
            onset = seconds if growth.since_seconds is None else growth.since_seconds
            alarm = ReplayedAlarm(
                seconds, onset, None, growth.evidence, growth.slope, growth.exhaustion, growth.reasons
            )
            self.alarms.append(alarm)
        elif leaked and not leaks:
            self.alarms[-1] = replace(self.alarms[-1], cleared_seconds=seconds)


class _Track:
    """A process that is being replayed."""

    __slots__ = ("add", "growth", "last", "replayed", "update")

    def __init__(self, process: str) -> None:
        self.replayed = Replayed(process)
        self.add = self.replayed.sketch.add
        self.update: Callable[..., Growth] | None = None
        """The detector's settings, once the GPU's size is known."""
        self.growth = self.replayed.growth
        self.last = float("-inf")


def replay_rows(
    rows: Rows,
    on_fault: OnFault,
    *,
    sensitivity: Sensitivity = "balanced",
    total_bytes: int | None = None,
    facts: Mapping[str, ProcessFacts] | None = None,
) -> Iterator[Replayed]:
    """Yield what would have been said of each process, the first seen first.

    Without `total_bytes`, a GPU's size is taken from the first row that has used and free memory: it is right where the
    process is alone, and less otherwise, which matters only to growth below 0.25 % of it. `facts`, where a trace has
    them, tell the size, and when the process started.
    """
    tracks: OrderedDict[str, _Track] = OrderedDict()
    for seconds, used, free, allocated, reserved, process in rows:
        track = tracks.get(process)
        if track is None:
            if len(tracks) >= MOST_PROCESSES:
                stalest = min(tracks, key=lambda name: tracks[name].last)
                yield _finish(tracks.pop(stalest))
            track = tracks[process] = _Track(process)
            track.replayed.first_seconds = seconds
        if seconds < track.last:
            on_fault(-1, f"{process or 'the process'} goes back in time at {seconds:.0f} s")
            continue
        track.last = seconds
        track.replayed.samples += 1
        track.add(seconds, used, free, allocated)
        if track.update is None:
            known = facts.get(process) if facts else None
            size = total_bytes or (known.total_bytes if known is not None else None)
            size = size or (None if used is None or free is None else int(used + free))
            if not size:
                continue
            started = seconds if known is None or known.started_seconds is None else known.started_seconds
            detector = MemoryLeakDetector(total_bytes=size, started_seconds=started, sensitivity=sensitivity)
            track.update = detector.update
        if free is not None:
            track.replayed.judged = True
        growth = track.update(seconds, used, free, allocated, reserved)
        if growth is not track.growth:
            track.growth = growth
            track.replayed.note(seconds, growth)
    for track in tracks.values():
        yield _finish(track)


def _finish(track: _Track) -> Replayed:
    track.replayed.last_seconds = track.last
    return track.replayed


class Labelled(NamedTuple):
    """A history, and what somebody said of it."""

    name: str
    """Tells it from the others."""
    is_leak: bool
    trace: TraceDocument


class Outcome(NamedTuple):
    """What a sensitivity would have said of one history. Times are Unix time."""

    name: str
    process: str
    is_leak: bool
    alarm_seconds: float | None
    """Time of its first alarm; None if it would have been silent."""
    begin_seconds: float
    """Time at which the history begins."""

    @property
    def right(self) -> bool:
        """An alarm of a leak, or silence of what is none."""
        return self.is_leak is (self.alarm_seconds is not None)


class Score(NamedTuple):
    """How one sensitivity did."""

    sensitivity: Sensitivity
    outcomes: Sequence[Outcome]

    @property
    def true_positives(self) -> int:
        """Leaks with an alarm."""
        return sum(one.is_leak and one.right for one in self.outcomes)

    @property
    def false_positives(self) -> int:
        """Alarms of what is no leak."""
        return sum(not one.is_leak and not one.right for one in self.outcomes)

    @property
    def leaks(self) -> int:
        """How many of the histories are leaks."""
        return sum(one.is_leak for one in self.outcomes)


def score(labelled: Sequence[Labelled], sensitivities: Iterable[Sensitivity] = SENSITIVITIES) -> list[Score]:
    """Replay every history at each sensitivity."""
    return [Score(each, [_outcome(one, each) for one in labelled]) for each in sensitivities]


def _outcome(labelled: Labelled, sensitivity: Sensitivity) -> Outcome:
    trace = labelled.trace
    facts = {trace.process: trace.facts}
    replayed = list(replay_rows(rows_of(trace), lambda *_: None, sensitivity=sensitivity, facts=facts))
    alarms = [alarm.alarm_seconds for one in replayed for alarm in one.alarms]
    begin = min((one.first_seconds for one in replayed), default=trace.origin_seconds)
    return Outcome(labelled.name, trace.process, labelled.is_leak, min(alarms, default=None), begin)
