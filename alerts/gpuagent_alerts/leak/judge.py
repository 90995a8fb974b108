"""Whether one window of growth meets a standard, and if not, what speaks against it."""

from __future__ import annotations

import math
from enum import IntEnum
from functools import lru_cache

from gpuagent_alerts.leak.blocks import PAGE_BYTES
from gpuagent_alerts.leak.settings import Evenness, Settings
from gpuagent_alerts.leak.window import Window


class Stop(IntEnum):
    """Why a window that rose by enough is no leak. The later, the nearer it came."""

    GAPS = 1
    UNEVEN = 2
    STOPPED = 3
    SLOWS_DOWN = 4
    LESS_FOR_ITS_WORK = 5
    HELD_BEFORE = 6
    YOUNG = 7


def stop_of(  # noqa: PLR0911 - the tests in their order
    window: Window, settings: Settings, free_pages: float, age_seconds: float
) -> Stop | None:
    """What speaks against a leak; None if nothing does.

    The amount is the caller's to judge (`enough`): it is the cheap test, at which most windows end.
    """
    if window.present < settings.coverage * window.blocks:
        return Stop.GAPS
    share = window.growth / max(free_pages, 1.0)
    urgent = share >= settings.urgent_growth_share
    long = window.seconds >= settings.long_seconds
    if not _even(window, settings, settings.even_urgent if urgent else settings.even_long if long else settings.even):
        return Stop.UNEVEN
    if window.last_quarter < (settings.last_quarter_long if long else settings.last_quarter):
        return Stop.STOPPED
    if long:
        few = not urgent and not _even(window, settings, settings.even)
        if window.bend < (settings.bend_long_few if few else settings.bend_long):
            return Stop.SLOWS_DOWN
        if window.bend_by_work is not None and window.bend_by_work < settings.bend_by_work:
            return Stop.LESS_FOR_ITS_WORK
    elif share < settings.waive_bend_growth_share and not _fills(window, settings, free_pages):
        return Stop.SLOWS_DOWN
    if window.older_high and window.last - window.older_high < settings.new_ground * window.growth:
        return Stop.HELD_BEFORE
    lived = age_seconds / window.seconds
    if not long and lived < (settings.life_windows_urgent if urgent else settings.life_windows):
        return Stop.YOUNG
    return None


def enough(growth_pages: int, seconds: float, settings: Settings, free_pages: float, age_seconds: float) -> bool:
    """Whether so much growth over so long is worth a look, in proportion to what is free."""
    return growth_pages >= settings.share_over(seconds, age_seconds) * free_pages


def even_eighths(window: Window, settings: Settings) -> int:
    """How many of the 8 carry their part of the growth."""
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
    """Whether it goes on, or what an exponential approach would still bring fills the GPU.

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
