"""One standard on one signal: raises an alarm when a window meets it twice, and ends it on a release or a plateau."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from gpuagent_alerts.leak.blocks import EMPTY, LEVELS, SLOTS, BlockStore
from gpuagent_alerts.leak.judge import Stop, enough, even_eighths, least_growth_pages, stop_of
from gpuagent_alerts.leak.settings import Settings
from gpuagent_alerts.leak.window import LENGTHS, Window, Windows, window_seconds


class Alarm(NamedTuple):
    """What an alarm was raised on. Memory in pages."""

    seconds: float
    """The block's end at which it was raised."""
    onset_seconds: float
    window_seconds: float
    growth: int
    floor: int
    free: int
    even_eighths: int
    slows_down: bool


class Ending(NamedTuple):
    """How the last alarm ended."""

    seconds: float
    released: bool
    """Given back; else it found no new high."""
    alarm: Alarm
    high: int


class Rejection(NamedTuple):
    """A window that rose by enough and was not called a leak."""

    seconds: float
    stop: Stop
    window_seconds: float
    growth: int


class Now(NamedTuple):
    """What the judgement of a block needs to know besides the blocks."""

    end_seconds: float
    free: float | None
    """Pages; None while nobody has told."""
    age_seconds: float
    full: bool = False
    """There is no room to grow: see `settings.FULL_SHARE`."""


@cache
def least_shares(settings: Settings) -> tuple[float, ...]:
    """Per level, the least share that any of its windows asks for: that of the longest."""
    return tuple(settings.share_over(window_seconds(level, LENGTHS[-1])) for level in range(LEVELS))


class Standard:
    """The state of one standard; the blocks are shared with the other standards of the signal."""

    __slots__ = (
        "alarm",
        "bar",
        "bar_slot",
        "ending",
        "epoch",
        "high",
        "high_seconds",
        "least",
        "rejection",
        "repeats",
        "settings",
        "shares",
    )

    def __init__(self, settings: Settings, total_bytes: float, epoch: int = 0) -> None:
        self.use(settings, total_bytes)
        self.epoch = epoch
        """Number of the first base block that a window may reach back to."""
        self.repeats: bytearray | None = None
        """Per level, windows in a row that met the standard; None while that is none anywhere."""
        self.alarm: Alarm | None = None
        self.high = 0
        """Highest block since the alarm, and its end."""
        self.high_seconds = 0.0
        self.bar = 0
        """The high of the last alarm: the next needs ground above it, so that a plateau that wobbles does not flap."""
        self.bar_slot = 0
        self.ending: Ending | None = None
        self.rejection: Rejection | None = None

    def use(self, settings: Settings, total_bytes: float) -> None:
        """Judge by these from now on. An alarm that is on stays, until it ends by them."""
        self.settings = settings
        self.least = least_growth_pages(settings, total_bytes)
        self.shares = least_shares(settings)

    def look_at(self, value: int, store: BlockStore, end_seconds: float, *, full: bool = False) -> bool:
        """End the alarm on this block, if so; whether it ended.

        While there is no room to grow (`full`), that nothing grows says nothing: the plateau begins when there is.
        """
        alarm, settings = self.alarm, self.settings
        if alarm is None or value == EMPTY:
            return False
        if value > self.high + settings.new_high * alarm.growth:
            self.high, self.high_seconds = value, end_seconds
        elif full:
            self.high_seconds = end_seconds
        released = value < alarm.floor - settings.released * alarm.growth
        if not released and end_seconds - self.high_seconds <= max(alarm.window_seconds, settings.plateau_seconds):
            return False
        self.ending = Ending(end_seconds, released, alarm, self.high)
        self.alarm = None
        self.epoch = store.base_count
        self.repeats = None
        self.bar, self.bar_slot = self.high, store.slot
        return True

    def reset(self, level: int) -> None:
        """The newest window of this level does not meet it."""
        if self.repeats is not None:
            self.repeats[level] = 0

    def least_growth(self, level: int, free: float) -> float:
        """Growth in pages below which no window of this level can meet the standard."""
        return max(self.least, self.shares[level] * free)

    def judge(self, store: BlockStore, windows: Windows, now: Now, free: float) -> bool:
        """Judge a level's newest block, which rose by `least_growth`; whether an alarm was raised."""
        level = windows.level
        passed, count = self._that_meet(store, windows, now, free)
        if passed is None:
            self.reset(level)
            return False
        if self.repeats is None:
            self.repeats = bytearray(LEVELS)
        self.repeats[level] += count
        if self.repeats[level] < self.settings.repeats:
            return False
        self.alarm = Alarm(
            now.end_seconds,
            now.end_seconds - passed.onset_seconds,
            passed.seconds,
            passed.growth,
            passed.last,
            int(free),
            even_eighths(passed, self.settings),
            passed.bend < self.settings.bend_slowing,
        )
        self.high, self.high_seconds = passed.last, now.end_seconds
        self.rejection = None
        return True

    def bar_now(self, store: BlockStore) -> int:
        """The height above which growth is new ground; 0 for none."""
        return self.bar if store.slot - self.bar_slot < SLOTS else 0

    def _that_meet(self, store: BlockStore, windows: Windows, now: Now, free: float) -> tuple[Window | None, int]:
        """The shortest window that meets the standard, and how many do, as far as they count."""
        passed: Window | None = None
        count = 0
        ring, level = windows.ring, windows.level
        last = ring[-1]
        bar = self.bar_now(store)
        for blocks in LENGTHS:
            if blocks > len(ring) or store.base_count - (blocks << level) < self.epoch:
                break
            growth = last - min(ring[-blocks:])
            seconds = window_seconds(level, blocks)
            if growth < self.least or not enough(growth, seconds, self.settings, free, now.age_seconds):
                continue
            window = windows.of(blocks)
            if bar > window.older_high:
                window = window._replace(older_high=bar)
            stop = stop_of(window, self.settings, free, now.age_seconds)
            if stop is not None:
                self.rejection = Rejection(now.end_seconds, stop, seconds, growth)
                continue
            passed = passed or window
            count += 1
            if count == self.settings.most_lengths:
                break
        return passed, count
