"""The charts of the page: memory of each GPU by process, over the last minutes or the last day.

An hour is kept by 10 s, a day by 5 min.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from gpuagent.core.growth import MemoryKey
from gpuagent.core.palette import ColorAssignment
from gpuagent.core.snapshot import Snapshot
from gpuagent_exporters.history import DAY_INTERVAL_SECONDS, DAY_LENGTH, GpuLines, History

RANGES: Mapping[str, float] = {"15m": 900.0, "1h": 3600.0, "6h": 6 * 3600.0, "1d": 86_400.0}
"""Seconds of the ranges that a chart can have."""
MOST_POINTS = 96
"""More cannot be told apart on a card."""
TOP = 6


@dataclass(frozen=True, slots=True)
class Chart:
    """All GPUs over one range."""

    seconds: float = 0.0
    """Length of the range."""
    known_seconds: float = 0.0
    """For how long anything has been kept, over all ranges."""
    step_seconds: float = 0.0
    """Time of one point; the last one ends now."""
    gpus: Mapping[str, GpuLines] = field(default_factory=dict)
    """By UUID."""
    colors: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """Number of the color of each process that is drawn, by UUID of the GPU and pid."""


class Charts:
    """Keeps the points, and the color of each process that was ever drawn."""

    def __init__(self, hour: History) -> None:
        """`hour` is fed by its owner; the day is kept here."""
        self._hour = hour
        self._day = History(DAY_INTERVAL_SECONDS, DAY_LENGTH)
        self._colors = ColorAssignment()

    def add(self, snapshot: Snapshot) -> None:
        """Note a tick."""
        self._day.add(snapshot)

    def chart(self, range_name: str, first: Collection[MemoryKey] = frozenset()) -> Chart:
        """Return the charts of a range of `RANGES`. `first` are processes that are to be seen, however small."""
        seconds = RANGES[range_name]
        history = self._hour if seconds <= RANGES["1h"] else self._day
        gpus = history.lines(seconds, MOST_POINTS, TOP, first)
        known = self._hour.processes() | self._day.processes()
        together = [[(line.memory.pid, line.who) for line in lines.processes] for lines in gpus.values()]
        given = self._colors.assign(together, known)
        colors = {
            (uuid, line.memory.pid): given[line.memory.pid, line.who]
            for uuid, lines in gpus.items()
            for line in reversed(lines.processes)
        }
        step = next((lines.step_slots for lines in gpus.values()), 1) * history.interval_seconds
        known_seconds = max(self._hour.known_seconds, self._day.known_seconds - DAY_INTERVAL_SECONDS)
        return Chart(seconds, known_seconds, step, gpus, colors)
