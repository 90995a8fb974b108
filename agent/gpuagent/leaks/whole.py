"""A GPU as a whole: what its processes' memory and nobody's memory amount to.

The figures are added up from the parts that grow. The used memory of the device would not do: ten workers that are
started one after the other look like a leak there, and none of them grows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gpuagent.growth import Evidence, Growth, Range, Verdict

_STRICTEST_FIRST = tuple(Evidence)
_MOST_REASONS = 4
_DOUBT = 0.5
"""A forecast is shown as a range of half to one and a half times its value."""


class Part(NamedTuple):
    """Memory that grows, and whose it is, in words."""

    whose: str
    growth: Growth
    shares_free: bool = True
    """It grows into the device's free memory, and not into a MIG instance's own."""


def whole(
    nobodys: Growth | None, growing: Sequence[Part], free_bytes: int | None, *, settled: bool = False
) -> Growth | None:
    """What is said of the GPU; `nobodys` is the verdict where nothing grows.

    `growing` are the parts that grow, leak, or grow fast. Once `settled` there is a verdict on some part; nobody's
    memory may be too little to ever have one.
    """
    quiet = nobodys.verdict if nobodys is not None else Verdict.LEARNING
    if settled and quiet is Verdict.LEARNING:
        quiet = Verdict.STEADY
    if not growing:
        return nobodys if nobodys is not None and nobodys.verdict is quiet else Growth(quiet)
    grows = [part.growth for part in growing]
    leaking = [growth for growth in grows if growth.verdict is Verdict.LEAKING]
    evidence = [growth.evidence for growth in leaking if growth.evidence is not None]
    slow = [part for part in growing if part.growth.verdict in (Verdict.GROWING, Verdict.LEAKING)]
    slopes = [part.growth.slope for part in slow if part.growth.slope is not None]
    fast = [growth.fast_exhaustion_seconds for growth in grows if growth.fast_exhaustion_seconds is not None]
    return Growth(
        verdict=Verdict.LEAKING if leaking else Verdict.GROWING if slow else quiet,
        evidence=min(evidence, key=_STRICTEST_FIRST.index, default=None),
        slope=_sum(slopes),
        since_seconds=_earliest(part.growth.since_seconds for part in slow),
        exhaustion=_exhaustion(slow, free_bytes),
        reasons=tuple(_reasons(growing))[:_MOST_REASONS],
        fast=any(growth.fast for growth in grows),
        fast_exhaustion_seconds=min(fast, default=None),
    )


def _sum(slopes: Sequence[Range]) -> Range | None:
    if not slopes:
        return None
    return Range(*(sum(figures) for figures in zip(*slopes, strict=True)))


def _earliest(times: Iterable[float | None]) -> float | None:
    return min((time for time in times if time is not None), default=None)


def _exhaustion(slow: Sequence[Part], free_bytes: int | None) -> Range | None:
    """One part's own forecast if it comes first; several that share what is free fill it sooner than each by itself."""
    forecasts = [part.growth.exhaustion for part in slow if part.growth.exhaustion is not None]
    together = [part.growth.slope.value for part in slow if part.shares_free and part.growth.slope is not None]
    if len(together) > 1 and sum(together) > 0 and free_bytes is not None:
        seconds = free_bytes / sum(together)
        forecasts.append(Range(seconds, (1 - _DOUBT) * seconds, (1 + _DOUBT) * seconds))
    return min(forecasts, default=None)


def _reasons(growing: Sequence[Part]) -> Iterable[str]:
    """The leaks first."""
    for part in sorted(growing, key=lambda part: part.growth.verdict is not Verdict.LEAKING):
        said = part.growth.reasons[0] if part.growth.reasons else str(part.growth.verdict)
        yield f"{part.whose}: {said}"
