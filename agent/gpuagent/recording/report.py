"""What a recording tells at its end."""

from __future__ import annotations

from collections.abc import Iterable

from gpuagent.growth import Verdict
from gpuagent.recording.track import Track
from gpuagent.units import format_bytes, format_duration, format_rate

_MOST_TRACKS = 16


def report(tracks: Iterable[Track], seconds: float, requests: int | None = None) -> list[str]:
    """Lines: of each process peak, floor, growth, headroom and verdict, the largest first.

    Args:
        tracks: What was recorded.
        seconds: How long.
        requests: How many the load test sent in that time, taken as evenly spread.
    """
    found = sorted(tracks, key=lambda track: -track.peak_bytes)
    if not found:
        return [f"recorded {format_duration(seconds)}: no process of it held GPU memory"]
    lines = []
    for track in found[:_MOST_TRACKS]:
        lines += ["", f"{track.name} on GPU {track.gpu}", *(f"  {line}" for line in _of(track, seconds, requests))]
    if len(found) > _MOST_TRACKS:
        lines += ["", f"and {len(found) - _MOST_TRACKS} processes with less, which are in the file"]
    missing = sum(track.missing for track in found)
    head = f"recorded {format_duration(seconds)}: {sum(track.readings for track in found)} readings"
    return [head + (f", {missing} missing" if missing else ""), *lines]


def _of(track: Track, seconds: float, requests: int | None) -> Iterable[str]:
    yield f"peak      {format_bytes(track.peak_bytes)}, {format_duration(max(0.0, track.peak_seconds))} after the start"
    if track.last_bytes is not None:
        yield f"floor     {format_bytes(track.last_bytes)} held at the end"
    yield f"growth    {_growth(track, seconds, requests)}"
    if track.least_free_bytes is None:
        yield "headroom  the driver tells no free memory"
    else:
        total = f" of {format_bytes(track.total_bytes)}" if track.total_bytes else ""
        yield f"headroom  {format_bytes(track.least_free_bytes)}{total} were free on the GPU at the least"
    growth = track.growth
    told = "" if track.leaked_seconds is None else f" (first called a leak {format_duration(track.leaked_seconds)} in)"
    reasons = "; ".join(growth.reasons)
    if growth.verdict is Verdict.LEARNING and not reasons:
        reasons = "too short a time to tell a leak from warming up"
    yield f"verdict   {growth.verdict}{told}{': ' + reasons if reasons else ''}"


def _growth(track: Track, seconds: float, requests: int | None) -> str:
    rise = track.floor.last_half()
    if rise is None:
        return "too few readings"
    text = (
        f"{format_rate(rise.bytes / rise.seconds)}:"
        f" the floor rose by {format_bytes(rise.bytes)} in the last {format_duration(rise.seconds)}"
    )
    if requests and seconds > 0:
        text += f", {format_bytes(rise.bytes / (requests * rise.seconds / seconds))} per request"
    return text
