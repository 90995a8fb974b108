"""One detector per process of a trace, and the list of what they said."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from gpuagent.growth import Evidence, Growth, Range, Verdict
from gpuagent_alerts.leak.history import MemoryLeakDetector
from gpuagent_alerts.leak.replay.rows import OnFault, ProcessFacts, Rows
from gpuagent_alerts.leak.replay.sketch import Sketch
from gpuagent_alerts.leak.settings import Sensitivity

MOST_PROCESSES: Final = 4096
"""Detectors that are kept: 50 MiB. When there are more, the process unseen for longest is told and forgotten."""


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
    fast_seconds: list[float] = field(default_factory=list)
    """When the fast tier began to speak."""
    judged: bool = False
    """Whether some row told what is free: without it there is no verdict."""
    sketch: Sketch = field(default_factory=Sketch)

    def note(self, seconds: float, growth: Growth) -> None:
        """The detector's word has changed."""
        was, self.growth = self.growth, growth
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
        """Of the detector, once the GPU's size is known."""
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
    """What would have been said of each process, the first seen first.

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
