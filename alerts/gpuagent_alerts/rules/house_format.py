"""Quantities as every surface of the agent writes them, for the functions that Prometheus' templates have for them.

Each takes the value and the text that follows it in the template, and returns None where the value has no such format.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from gpuagent.core.units import MAX_SECONDS, format_bytes, format_duration

HouseFormat = Callable[[float, str], str | None]


def _bytes(value: float, following: str) -> str | None:
    """Return `84.4 Gi` where a `B` follows: `humanize1024` is for any number, and this one is a size then."""
    if not math.isfinite(value) or not following.startswith("B"):
        return None
    return ("-" if value < 0 else "") + format_bytes(abs(value)).removesuffix("B")


def _percentage(value: float, _: str) -> str | None:
    return percentage(value) if math.isfinite(value) else None


def _duration(value: float, _: str) -> str | None:
    return format_duration(value) if 0 <= value <= MAX_SECONDS else None


def percentage(ratio: float) -> str:
    """Return `87 %` of 0.87."""
    return f"{ratio * 100:.0f} %"


HOUSE_FORMATS: dict[str, HouseFormat] = {
    "humanize1024": _bytes,
    "humanizePercentage": _percentage,
    "humanizeDuration": _duration,
}
