"""The reasons of a verdict, in words: what rose, how it ended, and why growth that was large enough is no leak."""

from __future__ import annotations

from typing import Final

from gpuagent.core.units import format_bytes, format_duration
from gpuagent_alerts.leak.blocks import PAGE_BYTES
from gpuagent_alerts.leak.course import LIVES_ROSE
from gpuagent_alerts.leak.criterion import Alarm, Ending, Rejection, RejectReason
from gpuagent_alerts.leak.second_life import LEAKS_AGAIN
from gpuagent_alerts.leak.settings import SUSPECTED

_REJECTIONS = {
    RejectReason.GAPS: "too much of that time has no reading",
    RejectReason.UNEVEN: "but in a few jumps, not evenly",
    RejectReason.STOPPED: "but hardly any of it in the last quarter",
    RejectReason.SLOWS_DOWN: "but slows down, and would end before the GPU is full",
    RejectReason.LESS_FOR_ITS_WORK: "but ever less for the same work, as a cache does",
    RejectReason.HELD_BEFORE: "but has held as much before",
    RejectReason.YOUNG: "but has run for hardly longer than that",
}

ON_HELD_GROUND = "it rises evenly, but has held as much before"
GOES_ON = ("it rises evenly, and has not taken enough yet to tell a leak from a cache",)
"""Why it grows, where nothing more is known than that it does."""
FAR_FROM_FULL: Final = "it would take more than a week to fill the memory"
LEAKED_BEFORE: Final = "an earlier life of this service leaked until its end"
LIVES_CUT_SHORT: Final = "it rises evenly, as each of the lives before did until it was restarted"
BY_LIVES_ALONE: Final = frozenset({LIVES_CUT_SHORT, LEAKS_AGAIN, LIVES_ROSE})
"""Reasons for a leak that say nothing to the lives that come after."""
GAVE_BACK: Final = "it gave back "
"""What the reason for the end of a leak begins with, where its memory came back ..."""
NO_NEW_HIGH: Final = ": no new high for "
"""... and what stands before the proof, where it stopped."""
STILL_HELD_SHARE: Final = 0.95
"""The share of its high that it still holds: what holds less has given some of it back."""
PLATEAU_SECONDS: Final = SUSPECTED.plateau_seconds


def describe_against(reason: RejectReason) -> str:
    """Return what speaks against a leak."""
    return _REJECTIONS[reason]


def format_pages(count: float) -> str:
    """Return an amount in words: `1.9 GiB`."""
    return format_bytes(max(count, 0) * PAGE_BYTES)


def describe_rise(alarm: Alarm, what: str, free_bytes: float | None = None) -> tuple[str, ...]:
    """Return why it grows, or leaks; `free_bytes` is what is left now, not known: what was at the alarm."""
    curve = "it slows down, yet not enough to end before the GPU is full" if alarm.slows_down else "did not slow down"
    lasted = format_duration(alarm.window_seconds)
    left = format_pages(alarm.free) if free_bytes is None else format_bytes(max(free_bytes, 0.0))
    return (
        f"floor of {what} rose in {alarm.even_eighths} of 8 parts of {lasted}, {curve}",
        f"+{format_pages(alarm.growth)}, with {left} left",
    )


def describe_end(ending: Ending, held: int, free_bytes: float | None) -> tuple[str, ...]:
    """Return why it leaks no more; `held` and `free_bytes` are what it held, in pages, and what was free then."""
    alarm = ending.alarm
    rise = f"it had risen by {format_pages(alarm.growth)} in {format_duration(alarm.window_seconds)}"
    if ending.released:
        return (f"{GAVE_BACK}{format_pages(ending.high - held)}, and held {format_pages(held)} then", rise)
    room = "" if free_bytes is None else f" with {format_bytes(free_bytes)} free"
    if held < STILL_HELD_SHARE * ending.high:
        room = f", of which it held {format_pages(held)} later{room}"
    waited = format_duration(max(alarm.window_seconds, PLATEAU_SECONDS))
    return (f"growth stopped at {format_pages(max(ending.high, held))}{room}{NO_NEW_HIGH}{waited}", rise)


def describe_rejection(rejection: Rejection) -> tuple[str, ...]:
    """Return why growth that was large enough is no leak."""
    lasted = format_duration(rejection.window_seconds)
    return (f"rose by {format_pages(rejection.growth)} in {lasted}, {_REJECTIONS[rejection.stop]}",)


def describe_cache(alarm: Alarm, slack_bytes: float) -> tuple[str, ...]:
    """Return why growth is the allocator's cache."""
    return (
        f"rose by {format_pages(alarm.growth)} in {format_duration(alarm.window_seconds)}; its tensors did not",
        f"{format_bytes(slack_bytes)} of it is the allocator's cache, which it can give back",
    )
