"""Durations exactly as Prometheus 2.42 takes them: `5m`, `1h30m`, `0`; no fractions, and no number without a unit.

The format is `ParseDuration` of https://github.com/prometheus/common/blob/main/model/time.go.
"""

from __future__ import annotations

import re

_DURATION = re.compile(r"(?:(\d+)y)?(?:(\d+)w)?(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?(?:(\d+)ms)?", re.ASCII)
_UNITS = (
    ("y", 365 * 86_400_000), ("w", 7 * 86_400_000), ("d", 86_400_000),
    ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1),
)  # fmt: skip
_MAX_MILLISECONDS = (2**63 - 1) // 1_000_000
"""Prometheus keeps nanoseconds in an int64."""
_MAX_CHARACTERS = 64
_WANTED = "write it like 30s, 5m or 1h30m (y, w, d, h, m, s, ms; whole numbers)"


def parse_milliseconds(text: str) -> int:
    """Milliseconds of a duration. Raises ValueError, in words for the person who wrote it."""
    if text == "0":
        return 0
    match = _DURATION.fullmatch(text) if text and len(text) <= _MAX_CHARACTERS else None
    if match is None:
        raise ValueError(f"{text[:_MAX_CHARACTERS]!r} is no duration: {_WANTED}")
    total = sum(int(count) * size for count, (_, size) in zip(match.groups(), _UNITS, strict=True) if count)
    if total > _MAX_MILLISECONDS:
        raise ValueError(f"{text!r} is longer than Prometheus can count (292 years)")
    return total


def parse_seconds(text: str) -> float:
    """Seconds of a duration. Raises ValueError likewise."""
    return parse_milliseconds(text) / 1000


def format_milliseconds(total: int) -> str:
    """A duration as Prometheus prints it: years, weeks and days only where they come out even."""
    if total == 0:
        return "0s"
    text, rest = "", total
    for unit, size in _UNITS:
        if unit in {"y", "w", "d"} and rest % size:
            continue
        count, rest = divmod(rest, size)
        text += f"{count}{unit}" if count else ""
    return text
