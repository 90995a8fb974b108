"""How fast the floor rises, how sure that is, and when the GPU is full."""

from __future__ import annotations

import math
from typing import Final

from gpuagent.core.growth import Range
from gpuagent_alerts.leak.blocks import BLOCK_SECONDS, EMPTY, PAGE_BYTES, RING, BlockStore

SHORTEST_SECONDS: Final = 600.0
"""A slope over less is a slope of noise."""
LONGEST_SECONDS: Final = 14_400.0
"""A slope over more is one of yesterday's load."""
USUAL_SECONDS: Final = 1_800.0
"""The window where no alarm tells a better one."""
LOW_FACTOR: Final = 0.5
HIGH_FACTOR: Final = 1.5
"""At the alarm, 4 of 5 forecasts were within these of the time that was left."""
_LEAST_BLOCKS: Final = 5
_PARTS: Final = 8
_T_95: Final = 2.365
"""Student's t for 8 parts, two-sided 95 %."""


def slope_of(store: BlockStore, seconds: float) -> Range | None:
    """Bytes a second of the floor over the last so many seconds; None where there are too few readings.

    The range is 95 % of what the slopes of 8 parts of the window say of their mean.
    """
    level = 0
    while (RING - 1) * BLOCK_SECONDS << level < seconds:
        level += 1
    if level >= store.levels:
        return None
    step = BLOCK_SECONDS << level
    values = store.ring(level, int(seconds / step) + 1)
    while values and values[-1] == EMPTY:
        values.pop()
    if len(values) - values.count(EMPTY) < _LEAST_BLOCKS:
        return None
    steps = len(values) - 1
    if values[-1] == min(values):
        return Range(0.0, 0.0, 0.0)
    parts = min(_PARTS, steps)
    bounds = [steps * k // parts for k in range(parts)]
    floors = [values[-1]]  # the floor at each bound, from the last to the first
    for begin, end in zip(reversed(bounds), (steps, *reversed(bounds)), strict=False):
        floors.append(min(floors[-1], *values[begin:end]))
    scale = PAGE_BYTES / step
    slopes = [
        (high - low) / (end - begin) * scale
        for high, low, begin, end in zip(floors, floors[1:], reversed(bounds), (steps, *reversed(bounds)), strict=False)
    ]
    mean = (floors[0] - floors[-1]) / steps * scale
    spread = sum((slope - mean) ** 2 for slope in slopes) / (parts - 1)
    error = _T_95 * math.sqrt(spread / parts)
    return Range(mean, max(0.0, mean - error), mean + error)


def exhaustion_of(free_bytes: float, slope: float) -> Range | None:
    """Seconds until the GPU is full; None where nothing grows."""
    if slope <= 0:
        return None
    seconds = max(free_bytes, 0.0) / slope
    return Range(seconds, LOW_FACTOR * seconds, HIGH_FACTOR * seconds)


def forecast_window(window_seconds: float) -> float:
    """Over which time the slope of an alarm with this window is taken.

    Its later half: growth that gets faster is not averaged away, and 8 blocks are left to average over.
    """
    return min(max(window_seconds / 2, SHORTEST_SECONDS), LONGEST_SECONDS)
