"""Memory that is taken and given back again and again: how fast its lows rise, and which ground is no news.

Under a saw-tooth the floor up to now holds the rise of the present tooth, of which the next fall gives most back: its
pace would be that of the tooth, and jump with each. From low to low it is that of what stays.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gpuagent_alerts.leak.blocks import BLOCK_SECONDS, EMPTY, PAGE_BYTES, RING, BlockStore
from gpuagent_alerts.leak.forecast import LONGEST_SECONDS

LEAST_FALL: Final = 0.2
"""Share of what a window's memory ranges over that a fall has to give back: less is noise."""
LEAST_RISE: Final = 0.1
"""Share of the height of a tooth that the lows have to rise by: what returns to where it was does not grow."""
LEVEL_SHARE: Final = 0.02
"""The same of one low above the one before: less is no rise of this tooth."""
LONGEST_TOOTH: Final = 2
"""A tooth that takes so many times as long as the last one is none: what it does now is judged by its floor."""
ENOUGH_TEETH: Final = 3
LEAST_TEETH: Final = 2
NEWS_SHARE: Final = 0.2
"""Share of a rise above all that was held before from which on it is news."""
LEAST_ROOM_SHARE: Final = 0.05
"""Free part of the memory, once all is taken again that was held before, below which that may fill it."""
_LOOKS: Final = 4


class Teeth(NamedTuple):
    """A saw-tooth whose lows rise. Memory in bytes."""

    pace: float
    """Bytes a second from low to low."""
    rise_left: float
    """Bytes that the present tooth has still to take to be as high as the last one was."""
    rise_pace: float
    """Bytes a second of a tooth's rise."""
    goes_on: bool
    """Whether the last low lies above the one before: lows that no longer rise are no growth that goes on."""
    top_seconds: float
    """Seconds until the present tooth has risen for as long as the last one; 0 where it has for longer."""

    def seconds_left(self, free_bytes: float) -> float:
        """Return seconds until the memory is full, which it will be at the top of a tooth."""
        room = max(free_bytes, 0.0)
        after_top = max(room - self.rise_left, 0.0) / self.pace
        return max(self.top_seconds + after_top if after_top else 0.0, room / self.rise_pace)


def teeth_of(store: BlockStore, seconds: float) -> Teeth | None:
    """Return the saw-tooth of the last so many seconds, or of longer where these show too few falls.

    None where there is none, or its lows do not rise.
    """
    fewer = None
    now = store.newest(store.first) if store.levels > store.first else EMPTY
    for _ in range(_LOOKS):
        step, values = _blocks_of(store, min(seconds, LONGEST_SECONDS))
        lows, highs = _turns_of(values)
        if len(lows) >= ENOUGH_TEETH:
            return _measure(step, values, (lows, highs), now)
        if len(lows) >= LEAST_TEETH:
            fewer = step, values, (lows, highs), now
        if seconds >= LONGEST_SECONDS:
            break
        seconds *= 2
    return None if fewer is None else _measure(*fewer)


def _measure(step: int, values: list[int], turns: tuple[list[int], list[int]], now: int) -> Teeth | None:
    lows, highs = turns
    first, last = lows[0], lows[-1]
    top = highs[-1]  # the one before the last low
    begin = lows[-2]
    height = values[top] - values[begin]
    rise = values[last] - values[first]
    since = len(values) - 1 - last
    if rise <= 0 or rise < LEAST_RISE * height or top <= begin or since > LONGEST_TOOTH * (last - begin):
        return None
    pace = rise * PAGE_BYTES / ((last - first) * step)
    left = max(0, values[last] + height - (values[-1] if now == EMPTY else now)) * PAGE_BYTES
    rise_pace = max(pace, height * PAGE_BYTES / ((top - begin) * step))
    goes_on = values[last] - values[begin] >= LEVEL_SHARE * height
    return Teeth(pace, float(left), rise_pace, goes_on, float(max(0, top - begin - since) * step))


def _turns_of(values: list[int]) -> tuple[list[int], list[int]]:
    """Return the places of the lows that falls have led to, and of the high before each."""
    if not values:
        return [], []
    least = LEAST_FALL * (max(values) - min(values))
    lows: list[int] = []
    highs: list[int] = []
    high, low, falling = 0, 0, False
    for place, value in enumerate(values):
        if falling:
            if value <= values[low]:
                low = place
            elif value - values[low] >= least:
                lows.append(low)
                highs.append(high)
                high, falling = place, False
        elif value >= values[high]:
            high = place
        elif values[high] - value >= least:
            low, falling = place, True
    return lows, highs


def _blocks_of(store: BlockStore, seconds: float) -> tuple[int, list[int]]:
    """Return the seconds of a block, and the blocks of the last so many seconds; one that is missing is as before."""
    level = store.first
    while (RING - 1) * BLOCK_SECONDS << level < seconds:
        level += 1
    step = BLOCK_SECONDS << level
    if level >= store.levels:
        return step, []
    values: list[int] = []
    for value in store.ring(level, int(seconds / step) + 1):
        if value != EMPTY:
            values.append(value)
        elif values:
            values.append(values[-1])
    return step, values


def is_held_before(store: BlockStore, seconds: float, free_bytes: float | None, total_bytes: float) -> bool:
    """Return whether what rose in the last so many seconds was held before and given back, and there is room for it.

    As far back as is remembered: two days. Where so much would leave next to nothing free, it is news all the same.
    """
    _, values = _blocks_of(store, seconds)
    if free_bytes is None or not values:
        return False
    last, low = values[-1], min(values)
    at = max(place for place, value in enumerate(values) if value == low)
    level = store.first
    while (RING - 1) * BLOCK_SECONDS << level < seconds:
        level += 1
    known = [value for value in store.ring(level)[: len(store.ring(level)) - (len(values) - at)] if value != EMPTY]
    held = max((*known, *store.highs_of(level)), default=0)
    if last - held >= NEWS_SHARE * (last - low):
        return False
    return free_bytes - max(0, held - last) * PAGE_BYTES >= LEAST_ROOM_SHARE * total_bytes
