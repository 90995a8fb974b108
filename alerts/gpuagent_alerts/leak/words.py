"""The detector's reasons, in words for an alert's text."""

from __future__ import annotations

from gpuagent.units import format_bytes, format_duration
from gpuagent_alerts.leak.blocks import PAGE_BYTES
from gpuagent_alerts.leak.judge import Stop
from gpuagent_alerts.leak.standard import Alarm, Ending, Rejection

_AGAINST = {
    Stop.GAPS: "too much of that time has no reading",
    Stop.UNEVEN: "but in a few jumps, not evenly",
    Stop.STOPPED: "but hardly any of it in the last quarter",
    Stop.SLOWS_DOWN: "but slows down, and would end before the GPU is full",
    Stop.LESS_FOR_ITS_WORK: "but ever less for the same work, as a cache does",
    Stop.HELD_BEFORE: "but has held as much before",
    Stop.YOUNG: "but has run for hardly longer than that",
}

GOES_ON = ("it rises evenly, and has not taken enough yet to tell a leak from a cache",)
"""Why it grows, where nothing more is known than that it does."""


def against(stop: Stop) -> str:
    """What speaks against a leak."""
    return _AGAINST[stop]


def pages(count: float) -> str:
    """An amount in words: `1.9 GiB`."""
    return format_bytes(max(count, 0) * PAGE_BYTES)


def rise_of(alarm: Alarm, what: str) -> tuple[str, ...]:
    """Why it grows, or leaks."""
    curve = "it slows down, yet not enough to end before the GPU is full" if alarm.slows_down else "did not slow down"
    lasted = format_duration(alarm.window_seconds)
    return (
        f"floor of {what} rose in {alarm.even_eighths} of 8 parts of {lasted}, {curve}",
        f"+{pages(alarm.growth)} while {pages(alarm.free)} were free",
    )


def end_of(ending: Ending, held: int, free_bytes: float | None) -> tuple[str, ...]:
    """Why it leaks no more; `held` and `free_bytes` are what it held, in pages, and what was free then."""
    alarm = ending.alarm
    rise = f"it had risen by {pages(alarm.growth)} in {format_duration(alarm.window_seconds)}"
    if ending.released:
        return ("gave back more than half of what it had grown by", rise)
    room = "" if free_bytes is None else f" with {format_bytes(free_bytes)} free"
    waited = format_duration(max(alarm.window_seconds, 1800.0))
    return (f"growth stopped at {pages(max(ending.high, held))}{room}: no new high for {waited}", rise)


def rejection_of(rejection: Rejection) -> tuple[str, ...]:
    """Why growth that was large enough is no leak."""
    lasted = format_duration(rejection.window_seconds)
    return (f"rose by {pages(rejection.growth)} in {lasted}, {_AGAINST[rejection.stop]}",)


def cache_of(alarm: Alarm, slack_bytes: float) -> tuple[str, ...]:
    """Why growth is the allocator's cache."""
    return (
        f"rose by {pages(alarm.growth)} in {format_duration(alarm.window_seconds)}; its tensors did not",
        f"{format_bytes(slack_bytes)} of it is the allocator's cache, which it can give back",
    )
