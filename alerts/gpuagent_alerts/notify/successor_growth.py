"""Whether what was started in place of a leaker grows, by what was measured of it and not by a verdict.

The leak detector calls a young process steady before it can know: it leaves out the time in which a model is loaded.
So the memory of each successor is followed by its lower envelope, which the noise of an allocator does not move.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gpuagent.core.units import GIB

MIN_WINDOW_SECONDS = 180.0
MAX_WINDOW_SECONDS = 3600.0
_VISIBLE_BYTES = GIB / 8
"""Growth that is clearly visible: a successor is watched for as long as the old leak needed for it."""
NOISE_BYTES = GIB / 32
"""Rise of a lower envelope that is none: a few segments of an allocator."""
COMPARABLE = 0.25
"""Share of the old leak's pace from which on a successor's growth is taken for the same leak."""
_BLOCK_SECONDS = 30.0
_MOST_PROCESSES = 256


class MeasuredGrowth(NamedTuple):
    """Growth of all successors of an incident together, over a window."""

    window_seconds: float
    rise_bytes: float
    """Of their lower envelopes; what a process gave back counts too."""
    pace: float
    """The same in bytes a second, each over the time between its two lowest points."""
    is_complete: bool
    """Whether each of them was measured over the whole window."""

    @property
    def bytes_per_second(self) -> float:
        """Pace; 0 for what does not rise beyond noise."""
        return max(self.pace, 0.0) if self.rise_bytes > NOISE_BYTES else 0.0

    @property
    def is_flat(self) -> bool:
        """Whether it is measured that they do not grow."""
        return self.is_complete and not self.bytes_per_second

    def is_comparable(self, pace: float) -> bool:
        """Return whether they grow at a pace like the old one, in bytes a second; never where that is not known."""
        return pace > 0 and self.bytes_per_second >= COMPARABLE * pace


def window_seconds(pace: float) -> float:
    """Return for how long a successor is measured, by the pace of the old leak in bytes a second; 0 if unknown."""
    needed = _VISIBLE_BYTES / pace if pace > 0 else 0.0
    return min(max(needed, MIN_WINDOW_SECONDS), MAX_WINDOW_SECONDS)


class MemoryMeter:
    """Lower envelopes of the memory of an incident's successors, in blocks of half a minute. Kept in memory only."""

    def __init__(self, began: float) -> None:
        self.began = began
        """Unix time of the first measurement, or since when they do not grow like the old leak any more."""
        self._blocks: dict[str, list[tuple[float, int]]] = {}
        """Begin of each block and the least that was used in it, by the process's identity."""

    def add(self, used: Mapping[str, int], now: float) -> None:
        """Note what each successor uses, by identity; those that are not there are forgotten. `now` is Unix time."""
        names = sorted(used)[:_MOST_PROCESSES]
        self._blocks = {name: self._blocks.get(name, []) for name in names}
        for name, blocks in self._blocks.items():
            if blocks and 0.0 <= now - blocks[-1][0] < _BLOCK_SECONDS:
                blocks[-1] = (blocks[-1][0], min(blocks[-1][1], used[name]))
            else:
                blocks.append((now, used[name]))
            while blocks[0][0] < now - MAX_WINDOW_SECONDS - 2 * _BLOCK_SECONDS:
                del blocks[0]

    def follow_clock(self, step: float) -> None:
        """Move along with a wall clock that was set by so many seconds."""
        self.began += step
        self._blocks = {
            name: [(time + step, used) for time, used in blocks] for name, blocks in self._blocks.items()
        }  # fmt: skip

    def measure(self, pace: float, now: float) -> MeasuredGrowth:
        """Return how they grow, over the window that follows from the old leak's pace in bytes a second."""
        window = window_seconds(pace)
        rise, pace_of_all, complete = 0.0, 0.0, bool(self._blocks)
        for blocks in self._blocks.values():
            first = [(used, time) for time, used in blocks if now - window <= time <= now - window * 2 / 3]
            last = [(used, time) for time, used in blocks if time >= now - window / 3]
            if first and last and blocks[0][0] <= now - window + _BLOCK_SECONDS:
                (low, low_at), (high, high_at) = min(first), min(last)
                rise += high - low
                pace_of_all += (high - low) / (high_at - low_at)
            else:
                complete = False
        return MeasuredGrowth(window, rise, pace_of_all, complete)
