"""One criterion on one signal: an alarm begins when a window meets it twice, and ends on a release or a plateau.

`reject_reason` says of one window what speaks against a leak; `Criterion` keeps the state of one criterion on one
signal.
"""

from __future__ import annotations

import math
from enum import IntEnum
from functools import cache, lru_cache
from typing import Final, NamedTuple

from gpuagent_alerts.leak.blocks import BLOCK_SECONDS, EMPTY, LEVELS, PAGE_BYTES, RING, SLOTS, BlockStore
from gpuagent_alerts.leak.settings import Evenness, Settings
from gpuagent_alerts.leak.windows import LENGTHS, Window, Windows, window_seconds


class RejectReason(IntEnum):
    """Why a window that rose by enough is no leak. The later, the nearer it came."""

    GAPS = 1
    UNEVEN = 2
    STOPPED = 3
    SLOWS_DOWN = 4
    LESS_FOR_ITS_WORK = 5
    HELD_BEFORE = 6
    YOUNG = 7


def reject_reason(  # noqa: PLR0911 - the tests in their order
    window: Window, settings: Settings, free_pages: float, age_seconds: float
) -> RejectReason | None:
    """Return what speaks against a leak; None if nothing does.

    The amount is the caller's to judge (`is_enough`): it is the cheap test, at which most windows end.
    """
    if window.present < settings.coverage * window.blocks:
        return RejectReason.GAPS
    share = window.growth / max(free_pages, 1.0)
    urgent = share >= settings.urgent_growth_share
    long = window.seconds >= settings.long_seconds
    if not _even(window, settings, settings.even_urgent if urgent else settings.even):
        return RejectReason.UNEVEN
    if window.last_quarter < (settings.last_quarter_long if long else settings.last_quarter):
        return RejectReason.STOPPED
    if long:
        if window.bend < settings.bend_long:
            return RejectReason.SLOWS_DOWN
        if window.bend_by_work is not None and window.bend_by_work < settings.bend_by_work:
            return RejectReason.LESS_FOR_ITS_WORK
    elif share < settings.waive_bend_growth_share and not _fills(window, settings, free_pages):
        return RejectReason.SLOWS_DOWN
    if window.older_high and window.last - window.older_high < settings.new_ground * window.growth:
        return RejectReason.HELD_BEFORE
    lived = age_seconds / window.seconds
    if not long and lived < (settings.life_windows_urgent if urgent else settings.life_windows):
        return RejectReason.YOUNG
    return None


def is_enough(growth_pages: int, seconds: float, settings: Settings, free_pages: float, age_seconds: float) -> bool:
    """Return whether so much growth over so long is worth a look, in proportion to what is free."""
    return growth_pages >= settings.share_over(seconds, age_seconds) * free_pages


def even_eighths(window: Window, settings: Settings) -> int:
    """Return how many of the 8 carry their part of the growth."""
    least = settings.even_part / 8
    return sum(part >= least for part in window.eighths)


def _even(window: Window, settings: Settings, asked: Evenness) -> bool:
    """Spread over the window, by more than a few steps."""
    return (
        window.increments >= asked.increments
        and even_eighths(window, settings) >= asked.eighths
        and max(window.eighths) <= asked.largest_eighth
    )


def _fills(window: Window, settings: Settings, free_pages: float) -> bool:
    """Return whether it goes on, or what an exponential approach would still bring fills the GPU.

    The rate at the end is (G / W) (1 + a). It fell by (1 + a) / (1 - a) = exp(-W / tau) over the window, and what is
    left to come is rate x tau.
    """
    bend = window.bend - settings.bend_errors * window.bend_error
    if bend < settings.bend_stopped:
        return False
    if bend >= settings.bend_slowing:
        return True
    remaining = window.growth * (1 + bend) / math.log((1 - bend) / (1 + bend))
    return remaining >= settings.remaining_share * free_pages


@lru_cache(maxsize=256)
def least_growth_pages(settings: Settings, total_bytes: float) -> int:
    """Growth below which no window is looked at."""
    return math.ceil(settings.least_growth(total_bytes) / PAGE_BYTES)


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
    stop: RejectReason
    window_seconds: float
    growth: int


class BlockContext(NamedTuple):
    """What the judgment of a block needs to know besides the blocks."""

    end_seconds: float
    free: float | None
    """Pages; None while nobody has told."""
    age_seconds: float
    full: bool = False
    """There is no room to grow: see `settings.FULL_SHARE`."""
    leaked_before: bool = False
    """A leak of this signal has ended: ground that it held speaks against another leak, and against no suspicion."""


@cache
def least_shares(settings: Settings) -> tuple[float, ...]:
    """Per level, the least share that any of its windows asks for: that of the longest."""
    return tuple(settings.share_over(window_seconds(level, LENGTHS[-1])) for level in range(LEVELS))


def held_of(store: BlockStore, seconds: float) -> int:
    """Return the most pages that were held for so many seconds without a break, of late; 0 where that is not known."""
    level = store.first
    while (RING // 2 - 1) * BLOCK_SECONDS << level < seconds:
        level += 1
    if level >= store.levels:
        return 0
    values, blocks = store.ring(level), max(2, math.ceil(seconds / (BLOCK_SECONDS << level)))
    lows = (min(values[begin : begin + blocks]) for begin in range(len(values) - blocks + 1))
    return max((low for low in lows if low != EMPTY), default=0)


UNREAD_SECONDS: Final = 240
"""Readings that come once a minute leave blocks empty between them; what is empty for longer was not read."""


def is_unread(store: BlockStore) -> bool:
    """Return whether the newest blocks have no reading, for longer than there may be between two of them."""
    blocks = max(1, UNREAD_SECONDS // (BLOCK_SECONDS << store.first))
    newest = store.ring(store.first, blocks) if store.levels > store.first else ()
    return len(newest) == blocks and all(value == EMPTY for value in newest)


ALL_SHARE: Final = 0.9
"""Share of all its growth that has come back from which on all of it has."""
LEAST_ROOM_SHARE: Final = 0.05
"""Free part of the memory below which there is no room for what was held before: to take that again fills it."""


def is_suspect(criterion: Criterion, store: BlockStore, now: BlockContext, total_pages: float) -> bool:
    """Return whether growth is suspected also on ground that a leak held which has ended.

    It is not where all of that leak was given back and there is room for as much again: a saw-tooth looks like that.
    """
    ending, bar = criterion.ending, criterion.bar_now(store)
    if ending is None or not bar:
        return False
    value = store.newest(store.first)
    if now.free is None or value == EMPTY or now.free - max(0, bar - value) < LEAST_ROOM_SHARE * total_pages:
        return True
    base = ending.alarm.floor - ending.alarm.growth
    return _lowest_since(store, now.end_seconds - ending.seconds) > ending.high - ALL_SHARE * (ending.high - base)


def _lowest_since(store: BlockStore, seconds: float) -> int:
    """Return the lowest block of the last so many seconds, as far as is known; none is older."""
    level = store.first
    while (RING - 1) * BLOCK_SECONDS << level < seconds and level + 1 < store.levels:
        level += 1
    blocks = store.ring(level, max(1, int(seconds / (BLOCK_SECONDS << level))))
    return min((value for value in blocks if value != EMPTY), default=EMPTY)


class Criterion:
    """The state of one criterion; the blocks are shared with the other criteria of the signal."""

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
        """Per level, windows in a row that met the criterion; None while that is none anywhere, or an alarm is on."""
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

    def update_alarm(self, value: int, store: BlockStore, end_seconds: float, *, full: bool = False) -> bool:
        """End the alarm on this block, if so; whether it ended.

        While there is no room to grow (`full`), that nothing grows says nothing: the plateau begins when there is. Nor
        does a time without readings: it is no part of the plateau.
        """
        alarm, settings = self.alarm, self.settings
        if alarm is None:
            return False
        if value == EMPTY:
            if is_unread(store):
                self.skip(1, store)
            return False
        if value > self.high + settings.new_high * alarm.growth:
            self.high, self.high_seconds = value, end_seconds
        elif full:
            self.high_seconds = end_seconds
        released = value < alarm.floor - settings.released * alarm.growth or self._gave_back(alarm, value, store)
        if not released and end_seconds - self.high_seconds <= max(alarm.window_seconds, settings.plateau_seconds):
            return False
        self.ending = Ending(end_seconds, released, alarm, self.high)
        self.alarm = None
        self.epoch = store.base_count
        self.repeats = None
        self.bar, self.bar_slot = self.high, store.slot
        return True

    def skip(self, blocks: int, store: BlockStore) -> None:
        """Leave so many blocks of the store's lowest level, of which nothing was read, out of the plateau."""
        if self.alarm is not None:
            self.high_seconds += blocks * (BLOCK_SECONDS << store.first)

    def _gave_back(self, alarm: Alarm, value: int, store: BlockStore) -> bool:
        """Return whether the half is gone of all that it has grown by, also since the alarm.

        What it held for half of the alarm's window counts, and not what it held for a moment.
        """
        base = alarm.floor - alarm.growth
        if value >= self.high - self.settings.released * (self.high - base):  # the cheap test: no floor lies above it
            return False
        held = held_of(store, alarm.window_seconds / 2)
        return held > alarm.floor and value < held - self.settings.released * (held - base)

    def reset(self, level: int) -> None:
        """Record that the newest window of this level does not meet the criterion."""
        if self.repeats is not None:
            self.repeats[level] = 0

    def least_growth(self, level: int, free: float) -> float:
        """Growth in pages below which no window of this level can meet the criterion."""
        return max(self.least, self.shares[level] * free)

    def judge(self, store: BlockStore, windows: Windows, now: BlockContext, free: float) -> bool:
        """Judge a level's newest block, which rose by `least_growth`; whether an alarm was raised."""
        level = windows.level
        passed, count = self._passing_window(store, windows, now, free)
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
        self.repeats = None  # nothing is counted while the alarm is on
        return True

    def bar_now(self, store: BlockStore) -> int:
        """Return the height above which growth is new ground; 0 for none."""
        return self.bar if store.slot - self.bar_slot < SLOTS else 0

    def _passing_window(
        self, store: BlockStore, windows: Windows, now: BlockContext, free: float
    ) -> tuple[Window | None, int]:
        """Return the shortest window that meets the criterion, and how many do, as far as they count."""
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
            if growth < self.least or not is_enough(growth, seconds, self.settings, free, now.age_seconds):
                continue
            window = windows.of(blocks)
            if now.leaked_before and self.settings.suspects_what_leaked:
                window = window._replace(older_high=0)
            elif bar > window.older_high:
                window = window._replace(older_high=bar)
            stop = reject_reason(window, self.settings, free, now.age_seconds)
            if stop is not None:
                self.rejection = Rejection(now.end_seconds, stop, seconds, growth)
                continue
            passed = passed or window
            count += 1
            if count == self.settings.most_lengths:
                break
        return passed, count
