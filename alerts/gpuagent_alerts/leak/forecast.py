"""How fast memory grows, how sure that is, and when the GPU is full; and growth that would fill it within minutes.

Fast growth is told at once: 29 GiB to 2.5 GiB in 9 s has been seen. It is growth and not yet a leak: a large model load
after the start looks the same until it stops. So it asks for the same things as the slow judgment, on a scale of
seconds: a good part of what was free, in more than one step, still going on, on ground never held before. The caller
gives no readings of a time at which weights load. As the time to full is 10 min at the most, the growth itself has
taken 4 min at the most.

What tells a late load from a collapse is how it ends, and to wait for that is to tell a collapse when it is over: a
load that slows down has slowed down at its end. The one thing that is known before is what the app says it needs.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from itertools import pairwise
from operator import itemgetter
from typing import Final, NamedTuple

from gpuagent.core.growth import Range
from gpuagent_alerts.leak.blocks import BLOCK_SECONDS, EMPTY, PAGE_BYTES, RECENT, RING, BlockStore

SHORTEST_SECONDS: Final = 600.0
"""A slope over less is a slope of noise."""
LONGEST_SECONDS: Final = 14_400.0
"""A slope over more is one of yesterday's load."""
USUAL_SECONDS: Final = 1_800.0
"""The window where no alarm tells a better one."""
LOW_FACTOR: Final = 0.5
HIGH_FACTOR: Final = 1.5
"""At the alarm, 4 of 5 forecasts were within these of the time that was left."""
FORECAST_LOW: Final = 0.5
FORECAST_HIGH: Final = 2.0
"""Of the shorter and of the longer of two forecasts: under recorded load 4 of 5 leaks of hours and days end between."""
FLAT_SHARE: Final = 0.2
FLAT_SECONDS: Final = 120.0
FLAT_PLATEAUS: Final = 3
"""Flat time after which growth is over: see `stop_of`."""
_LEVEL: Final = 0.01
"""Part of the growth below which the floor counts as flat."""
_OVERDUE_SHARE: Final = 0.1
"""A step that is late is expected after this share of the time between two steps."""
_LEAST_BLOCKS: Final = 5
_PARTS: Final = 8
_T_95: Final = 2.365
"""Student's t for 8 parts, two-sided 95 %."""


def slope_of(store: BlockStore, seconds: float) -> Range | None:
    """Return bytes a second of the floor over the last so many seconds; None where there are too few readings.

    The range is 95 % of what the slopes of 8 parts of the window say of their mean.
    """
    step, values = _blocks(store, seconds)
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


class Stop(NamedTuple):
    """Growth that is over, within a window."""

    slope: float
    """Bytes a second of the floor from where it began to rise to its last rise: the flat time counts for nothing."""


def stop_of(store: BlockStore, seconds: float) -> Stop | None:
    """Return how fast the floor rose within the last so many seconds before it stopped; None where it has not stopped.

    It has stopped when it has been flat for a fifth of the window, for two minutes, and three times as long as it ever
    was between two rises: a leak that comes in steps is flat between them.
    """
    step, values = _blocks(store, seconds)
    rises = _rises_of(values)
    if rises is None:
        return None
    begin, end, flat, plateau, growth = rises
    if flat * step < max(FLAT_SHARE * seconds, FLAT_SECONDS, FLAT_PLATEAUS * plateau * step):
        return None
    return Stop(growth * PAGE_BYTES / ((end - begin) * step))


def growing_slope(store: BlockStore, seconds: float) -> float | None:
    """Return bytes a second of the floor while it rose within the last so many seconds; None where it did not.

    Of what comes in steps, the first one has its time as the others have: n steps take n times what lies between two.
    """
    step, values = _blocks(store, seconds)
    rises = _rises_of(values)
    return None if rises is None else rises.growth * PAGE_BYTES / ((rises.end - rises.begin + rises.plateau) * step)


LEAST_RESUMED_BLOCKS: Final = 4
"""Blocks of growth from which on growth that goes on has a pace of its own."""
LARGEST_STEP: Final = 0.5
"""Share of that growth that one step may have: what rose at once has no pace yet."""


class Resumption(NamedTuple):
    """Growth that goes on after memory stood still, within a window."""

    pace: float | None
    """Bytes a second since it goes on; None while that is too short a time to tell."""


def still_seconds(window_seconds: float) -> float:
    """Return for how long memory has to stand still within a window before that is more than a pause between rises."""
    return max(FLAT_SHARE * window_seconds, FLAT_SECONDS)


def resumption_of(store: BlockStore, seconds: float) -> Resumption | None:
    """Return how the floor goes on rising within the last so many seconds; None where it did not stand still before.

    It stood still if it did so for longer than between any two rises since, by the measure of `stop_of`.
    """
    step, values = _blocks(store, seconds)
    rises = _rises_of(values)
    if rises is None:
        return None
    still = sum(value != EMPTY for value in values[: rises.begin]) * step
    if still < max(still_seconds(seconds), FLAT_PLATEAUS * rises.plateau * step):
        return None
    since = [value for value in values[rises.begin :] if value != EMPTY]
    for at in range(len(since) - 2, -1, -1):
        since[at] = min(since[at], since[at + 1])
    largest = max((after - before for before, after in pairwise(since)), default=0)
    if rises.end - rises.begin < LEAST_RESUMED_BLOCKS or largest > LARGEST_STEP * rises.growth:
        return Resumption(None)
    return Resumption(rises.growth * PAGE_BYTES / ((rises.end - rises.begin + rises.plateau) * step))


class Steps(NamedTuple):
    """Growth that comes in steps, and stands still between them."""

    plateau_seconds: float
    """The longest time between two steps."""
    flat_seconds: float
    """Time since the last one."""


def steps_of(store: BlockStore, seconds: float) -> Steps | None:
    """Return the steps in which the floor rose within the last so many seconds; None where it rises all the time."""
    step, values = _blocks(store, seconds)
    rises = _rises_of(values)
    if rises is None or rises.plateau * step < FLAT_SECONDS:
        return None
    return Steps(float(rises.plateau * step), float(rises.flat * step))


class _Rises(NamedTuple):
    """Where the floor of some blocks rises: places of blocks, and pages."""

    begin: int
    end: int
    flat: int
    """Blocks with a reading after the last rise."""
    plateau: int
    """Most blocks between two rises."""
    growth: int


def _rises_of(values: array[int]) -> _Rises | None:
    """Return where the floor rises; None where it does not, or too little was read. Gaps are no flat time."""
    places = [place for place, value in enumerate(values) if value != EMPTY]
    if len(places) < _LEAST_BLOCKS:
        return None
    floors = [values[place] for place in places]
    for at in range(len(floors) - 2, -1, -1):
        floors[at] = min(floors[at], floors[at + 1])
    growth = floors[-1] - floors[0]
    tolerance = growth * _LEVEL
    end = next(at for at, floor in enumerate(floors) if floor >= floors[-1] - tolerance)
    begin = max((at for at, floor in enumerate(floors[: end + 1]) if floor <= floors[0] + tolerance), default=0)
    if growth <= 0 or end <= begin:
        return None
    plateau, run = 0, 0
    for at in range(begin + 1, end + 1):
        is_flat = floors[at] - floors[at - 1] <= tolerance and places[at] - places[at - 1] == 1
        run = run + 1 if is_flat else 0
        plateau = max(plateau, run)
    return _Rises(places[begin], places[end], len(places) - 1 - end, plateau, floors[end] - floors[begin])


_LATE_BLOCKS: Final = 9
"""Blocks of the last 2 min."""


def rise_of_late(store: BlockStore) -> int:
    """Return the pages by which memory rose in both halves of the last 2 min; 0 where it did not, or has stopped."""
    values = [value for value in store.ring(0, _LATE_BLOCKS) if value != EMPTY]
    if len(values) < _LEAST_BLOCKS or not values[0] < values[len(values) // 2] < values[-1] or values[-1] < max(values):
        return 0
    return values[-1] - values[0] if values[-1] > values[-2] else 0


def _blocks(store: BlockStore, seconds: float) -> tuple[int, array[int]]:
    """Return the seconds of a block and the blocks of the last so many seconds, from the first reading to the last.

    They are none where the store is too young.
    """
    level = store.first
    while (RING - 1) * BLOCK_SECONDS << level < seconds:
        level += 1
    step = BLOCK_SECONDS << level
    if level >= store.levels:
        return step, array("I")
    values = store.ring(level, int(seconds / step) + 1)
    while values and values[-1] == EMPTY:
        values.pop()
    first = next((place for place, value in enumerate(values) if value != EMPTY), 0)
    return step, values[first:]  # a gap before the first reading is no time in which it did not rise


def exhaustion_of(
    free_bytes: float, slope: float, steps: Steps | None = None, at_mean_pace: float | None = None
) -> Range | None:
    """Return seconds until the GPU is full; None where nothing grows.

    What is free does not change between two steps, and yet the time goes by: it is full at a step, the next one at the
    earliest. `at_mean_pace` are the seconds left at the pace of the whole growth: where it is another than that
    of now, as by day and by night, the range is as much wider.
    """
    if slope <= 0:
        return None
    seconds = max(free_bytes, 0.0) / slope
    if steps is not None:
        at_least = _OVERDUE_SHARE * steps.plateau_seconds
        seconds = max(max(seconds, steps.plateau_seconds) - steps.flat_seconds, min(seconds, at_least))
    other = seconds if at_mean_pace is None else at_mean_pace
    return Range(seconds, FORECAST_LOW * min(seconds, other), FORECAST_HIGH * max(seconds, other))


def forecast_window(window_seconds: float) -> float:
    """Over which time the slope of an alarm with this window is taken.

    Its later half: growth that gets faster is not averaged away, and 8 blocks are left to average over.
    """
    return min(max(window_seconds / 2, SHORTEST_SECONDS), LONGEST_SECONDS)


EXHAUSTION_SECONDS: Final = 600.0
"""Minutes are left, not hours: what is slower has time for the slow evidence."""
GROWTH_SHARE: Final = 0.4
"""Part of what was free that is gone before a word, whatever the pace: with a quarter, jumps of large jobs spoke twice
as often."""
INCREMENTS: Final = 1.9
"""Effective number of steps (2 for two even ones) from which growth is more than a jump: one jump has no pace."""
NEW_GROUND: Final = 0.8
"""Part of the growth above all that was held before: a model that is loaded again is no news."""
SPAN_SECONDS: Final = GROWTH_SHARE * EXHAUSTION_SECONDS
"""What is slower than this over the growth is slower than `EXHAUSTION_SECONDS`: the span of `RECENT` blocks."""
PACE_SECONDS: Final = 10.0
"""It must still be going on over the readings of this time, or the last two."""
HOLD_SECONDS: Final = 30.0
"""It stays on so long after it was last true, for whoever looks in between."""
_SPACING_SECONDS: Final = 0.9
_OWN_SHARE: Final = 0.8
"""Part of its growth by which free memory has to have fallen for all of it to be growth, and none a change of owner."""
_GAP: Final = 3.0
"""Readings that come so many times as late as the ones before tell that nothing was seen meanwhile."""
POINTS: Final = 12
_LIKE_STEP: Final = 1.5
"""What rose by so many times its largest step so far, at once, is more than the next step."""
_ONE_STEP: Final = 0.8
"""Share of the growth that a single step has, and noise has the rest."""


class FastGrowth:
    """The last readings of a process, about a second apart or as they come. Memory in bytes."""

    __slots__ = ("_block_free", "_block_times", "free", "pace", "times", "until_seconds", "used")

    def __init__(self) -> None:
        self.times = array("d")
        self.used = array("d")
        self.free = array("d")
        """Free memory of the GPU at the same readings; NaN where a restart has lost it."""
        self._block_times = array("d")
        self._block_free = array("f")
        """Free memory of the GPU at one reading in each of the last blocks; a restart loses it."""
        self.until_seconds = -math.inf
        """It is on until then."""
        self.pace: float | None = None
        """Bytes a second while it is on, as it was last judged: what others take or give back changes nothing of it."""

    def update(
        self,
        time_seconds: float,
        used_bytes: float,
        free_bytes: float,
        store: BlockStore,
        declared_bytes: float | None = None,
        *,
        grows_in_steps: bool = False,
    ) -> bool:
        """Take a reading; whether it is on. `store` has the blocks of the same readings.

        Of what `grows_in_steps`, a step like those before is no pace: the slow judgment has the one of all steps.
        Growth to `declared_bytes`, what the app says it usually needs, is expected wherever there is room for it.
        """
        times, used = self.times, self.used
        if times and time_seconds - times[-1] < _SPACING_SECONDS:
            return time_seconds < self.until_seconds
        if len(times) == POINTS:
            del times[0], used[0], self.free[0]
        times.append(time_seconds)
        used.append(used_bytes)
        self.free.append(free_bytes)
        if not self._block_times or time_seconds - self._block_times[-1] >= BLOCK_SECONDS:
            if len(self._block_times) > RECENT:
                del self._block_times[0], self._block_free[0]
            self._block_times.append(time_seconds)
            self._block_free.append(free_bytes)
        # The cheapest test first, where nearly every reading ends: it would not do had it begun with nothing.
        if used_bytes < GROWTH_SHARE * (free_bytes + used_bytes):
            return self._is_on(time_seconds)
        # Then the longest look back there is, without any of the conditions.
        rise = max(used_bytes - min(used), used_bytes - PAGE_BYTES * store.recent_low)
        declared = declared_bytes is not None and used_bytes <= declared_bytes <= used_bytes + free_bytes
        counts = rise >= GROWTH_SHARE * (free_bytes + rise) and rise > 0 and not declared
        if counts and not (grows_in_steps and self._is_next_step(store)):
            self._judge(free_bytes, store)
        return self._is_on(time_seconds)

    def _is_on(self, time_seconds: float) -> bool:
        if time_seconds < self.until_seconds:
            return True
        self.pace = None
        return False

    def _is_next_step(self, store: BlockStore) -> bool:
        """Return whether all that rose lately is a single step, no larger than those before it."""
        lows = [*(value * PAGE_BYTES for value in store.ring(0, RECENT) if value != EMPTY), *self.used]
        rises = [high - low for low, high in pairwise(lows) if high > low]
        growth = self.used[-1] - min(lows)
        if steps_of(store, LONGEST_SECONDS) is None or max(rises, default=0.0) < _ONE_STEP * growth:
            return False
        return growth <= _LIKE_STEP * _largest_step(store)

    def _judge(self, free_bytes: float, store: BlockStore) -> None:
        pace = self._pace()
        if pace <= 0 or free_bytes / pace > EXHAUSTION_SECONDS:
            return
        now = self.times[-1]
        near = [(time, used) for time, used in zip(self.times, self.used, strict=True) if now - time <= SPAN_SECONDS]
        far = [near[-1]]
        blocks = enumerate(reversed(store.ring(0, RECENT)), start=1)
        far += [(now - k * BLOCK_SECONDS, value * PAGE_BYTES) for k, value in blocks if value != EMPTY]
        far.reverse()
        growth_pace = max(self._pace_of_fall(path, near, free_bytes, store) for path in (near, far))
        if growth_pace > 0:
            self.until_seconds = now + HOLD_SECONDS
            self.pace = max(pace, growth_pace)

    def _pace(self) -> float:
        """Return bytes a second over the last `PACE_SECONDS`, as far as the GPU's free memory fell with it.

        Memory that only changes its owner leaves the GPU as full as it was, and is no growth. Nor does a single reading
        after a time without any tell that something goes on: it may have been over for long.
        """
        times, used = self.times, self.used
        place = len(times) - 2
        if place > 0 and times[-1] - times[-2] > max(PACE_SECONDS, _GAP * (times[-2] - times[-3])):
            return 0.0
        while place > 0 and times[-1] - times[place - 1] <= PACE_SECONDS:
            place -= 1
        if place < 0:
            return 0.0
        growth, fall = used[-1] - used[place], self.free[place] - self.free[-1]
        return (growth if math.isnan(fall) else min(growth, fall)) / (times[-1] - times[place])

    def _pace_of_fall(
        self, path: list[tuple[float, float]], readings: list[tuple[float, float]], free_bytes: float, store: BlockStore
    ) -> float:
        """Return bytes a second of this growth, as far as the GPU's free memory has fallen with it; 0 where it has not.

        A good part of what was free must have gone: what was taken over from another owner is no part of that.
        """
        pace, start = _pace_of_growth(path, readings, free_bytes, store)
        seconds, free_then = path[-1][0] - start, self._most_free_at(start)
        if pace <= 0 or free_then is None or free_then - free_bytes >= _OWN_SHARE * pace * seconds:
            return pace
        growth = free_then - free_bytes
        return growth / seconds if growth >= GROWTH_SHARE * (free_bytes + growth) else 0.0

    def _most_free_at(self, time_seconds: float) -> float | None:
        """Return the most that was free on the GPU at about this time; None where that is not remembered."""
        readings = (*zip(self.times, self.free, strict=True), *zip(self._block_times, self._block_free, strict=True))
        near = [free for time, free in readings if abs(time - time_seconds) <= BLOCK_SECONDS and not math.isnan(free)]
        return max(near, default=None)


def _largest_step(store: BlockStore) -> float:
    """Return the most bytes by which memory rose from one block to the next within the last hours, before lately."""
    level = 0
    while (RING - 1) * BLOCK_SECONDS << level < LONGEST_SECONDS:
        level += 1
    recent = max(1, RECENT >> level)
    blocks = [value for value in store.ring(level)[:-recent] if value != EMPTY] if level < store.levels else []
    return PAGE_BYTES * max((high - low for low, high in pairwise(blocks)), default=0.0)


def _pace_of_growth(
    path: list[tuple[float, float]], readings: list[tuple[float, float]], free_bytes: float, store: BlockStore
) -> tuple[float, float]:
    """Return bytes a second of points (time, used) from their lowest on, and since when.

    `readings` are the last ones, whose times are exact: they tell whether it slows down if they are of a third of that.
    The pace is 0 where the growth is not what was asked for above.
    """
    lowest = min(used for _, used in path)
    start = max(place for place, (_, used) in enumerate(path) if used == lowest)
    rising = [used for _, used in path[start:]]
    growth = rising[-1] - lowest
    share = growth / max(free_bytes + growth, 1.0)
    since = path[start][0]
    if share < GROWTH_SHARE or growth**2 < INCREMENTS * sum((b - a) ** 2 for a, b in pairwise(rising)):
        return 0.0, since
    # A block's low is as old as the block, or older: how far the reading is from the last one is not known.
    dated = readings if path[-1][0] - readings[0][0] >= (path[-1][0] - since) / 3 else path[:-1]
    if _still_to_come([point for point in dated if point[0] >= since]) < free_bytes + rising[-1] - dated[-1][1]:
        return 0.0, since
    seconds = path[-1][0] - since
    origin, before = _origin_of(path[0][0], lowest, path[-1][0], store)
    if origin == lowest:
        held = max(_held_before(seconds, store), *(used for _, used in path[: start + 1]))
    else:
        held = _held_before(before, store)
    return (growth / seconds if rising[-1] - held >= NEW_GROUND * (rising[-1] - origin) else 0.0), since


def _still_to_come(rising: list[tuple[float, float]]) -> float:
    """Return the bytes that growth (time, used) still takes, if it slows down on as from its first half to its second.

    Infinite where it does not slow down. A warm-up that gets ever slower stops before the GPU is full.
    """
    if len(rising) < 2:
        return math.inf
    middle = (rising[0][0] + rising[-1][0]) / 2
    after = bisect_left(rising, middle, key=itemgetter(0))
    (before_at, before_used), (after_at, after_used) = rising[after - 1], rising[after]
    at_middle = before_used + (after_used - before_used) * (middle - before_at) / (after_at - before_at)
    first, second = at_middle - rising[0][1], rising[-1][1] - at_middle
    return math.inf if second >= first else max(second, 0.0) ** 2 / (first - max(second, 0.0))


def _origin_of(first_at: float, lowest: float, now: float, store: BlockStore) -> tuple[float, float]:
    """Return the bytes from which growth rose that is `lowest` in a window from `first_at` on, and the seconds since.

    The blocks before the window tell: growth that began before its oldest reading is judged from where it began.
    """
    place = math.ceil((now - first_at) / BLOCK_SECONDS) + 1
    blocks = store.ring(0)[::-1]
    while place <= len(blocks) and blocks[place - 1] * PAGE_BYTES < lowest:
        lowest = float(blocks[place - 1] * PAGE_BYTES)
        place += 1
    return lowest, (place - 1) * BLOCK_SECONDS


def _held_before(seconds: float, store: BlockStore) -> float:
    """Return the highest block that is remembered of the time until so many seconds ago."""
    recent = math.ceil(seconds / BLOCK_SECONDS) + 1
    older = (value for value in store.ring(0)[:-recent] if value != EMPTY)
    return float(PAGE_BYTES * max((*older, *store.highs_of(0)), default=0))
