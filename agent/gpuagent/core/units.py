"""Sizes and durations as people write and read them.

`parse_*` reads what stands in a configuration file, `write_*` is its exact inverse.
`format_*` is the short, rounded form for a screen.

A number that cannot be meant (negative, NaN, infinite) is a ValueError everywhere.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction

GIB = 2**30
MAX_BYTES = 2**63 - 1
MAX_SECONDS = (2**63 - 1) / 1e9
"""About 292 years: Prometheus keeps a duration as nanoseconds in an int64."""

_SIZES = "500MB, 6GiB or 1.5 GiB (B, kB, KiB, MB, MiB, GB, GiB, TB, TiB)"
_DURATIONS = "500ms, 1s, 5m, 1h30m or 2d (ms, s, m, h, d, w, y)"

_BYTE_UNITS = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "KiB": 2**10,
    "MB": 10**6,
    "MiB": 2**20,
    "GB": 10**9,
    "GiB": 2**30,
    "TB": 10**12,
    "TiB": 2**40,
}
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")
_DURATION_UNITS = {
    "y": Fraction(365 * 86400),
    "w": Fraction(7 * 86400),
    "d": Fraction(86400),
    "h": Fraction(3600),
    "m": Fraction(60),
    "s": Fraction(1),
    "ms": Fraction(1, 1000),
}
_MAX_TEXT = 64
"""No sensible value is longer; it also bounds what the regular expressions and `int` are given."""
_SIZE = re.compile(r"(\d+(?:\.\d+)?)[ \t]*([A-Za-z]*)", re.ASCII)
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[a-z]+)+", re.ASCII)
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)([a-z]+)", re.ASCII)
_PLAIN = re.compile(r"\d+(?:\.\d+)?", re.ASCII)


def parse_bytes(value: str | int) -> int:
    """Return bytes of `6GiB`, `500MB`, `1.5 GiB`, `1024`; a fraction is rounded to whole bytes.

    Raises ValueError, in words for the person who wrote the value.
    """
    if isinstance(value, str):
        value = _size_of(value)
    elif isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{_shown(value)} is not a size: write it like {_SIZES}")
    if value < 0:
        raise ValueError("a size cannot be negative")
    if value > MAX_BYTES:
        raise ValueError("too large for a size: it must be below 8 EiB")
    return value


def _size_of(text: str) -> int:
    match = _SIZE.fullmatch(text.strip()) if len(text) <= _MAX_TEXT else None
    if match is None:
        raise ValueError(f"{_shown(text)} is not a size: write it like {_SIZES}")
    number, unit = match.groups()
    if not unit and "." in number:
        raise ValueError(f"{_shown(text)} has no unit: write it like {_SIZES}")
    if unit and unit not in _BYTE_UNITS:
        letter = unit[0].upper()
        meant = f"{number}{letter}iB or {number}{letter}B" if letter in "KMGT" else f"it like {_SIZES}"
        raise ValueError(f"{_shown(text)} has the unknown unit {unit}: write {meant}")
    return round(Fraction(number) * _BYTE_UNITS[unit or "B"])


def parse_duration(value: str | float) -> float:
    """Return seconds of `500ms`, `5m`, `1h30m`, `2d`, as in Prometheus; a plain number is in seconds.

    Raises ValueError, in words for the person who wrote the value.
    """
    if isinstance(value, str):
        seconds: float | Fraction = _duration_of(value)
    elif isinstance(value, bool) or not isinstance(value, int | float) or _is_nan(value):
        raise ValueError(f"{_shown(value)} is not a duration: write it like {_DURATIONS}")
    else:
        seconds = value
    if seconds < 0:
        raise ValueError("a duration cannot be negative")
    if seconds > MAX_SECONDS:
        raise ValueError("too long for a duration: it must be below 292 years")
    return float(seconds) + 0.0  # -0.0 becomes 0.0


def _duration_of(text: str) -> Fraction:
    stripped = text.strip() if len(text) <= _MAX_TEXT else ""
    if _PLAIN.fullmatch(stripped):
        return Fraction(stripped)
    if not _DURATION.fullmatch(stripped):
        raise ValueError(f"{_shown(text)} is not a duration: write it like {_DURATIONS}")
    order = tuple(_DURATION_UNITS)
    total, last = Fraction(0), -1
    for number, unit in _DURATION_PART.findall(stripped):
        if unit not in _DURATION_UNITS:
            raise ValueError(f"{_shown(text)} has the unknown unit {unit}: write it like {_DURATIONS}")
        place = order.index(unit)
        if place <= last:
            raise ValueError(f"{_shown(text)} is out of order: write each unit once, largest first")
        total, last = total + Fraction(number) * _DURATION_UNITS[unit], place
    return total


def write_bytes(count: int) -> str:
    """Return bytes as a configuration file has them, exactly: `6GiB`, `1536MiB`, `1000B`."""
    _check_finite(count, "a size")
    place = 0
    while count and count % 1024 == 0 and place < len(_BINARY) - 1:
        count, place = count // 1024, place + 1
    return f"{count}{_BINARY[place]}"


def write_duration(seconds: float) -> str:
    """Return seconds as a configuration file has them, exactly: `1h30m`, `500ms`, `0.0001s`."""
    _check_finite(seconds, "a duration")
    milliseconds = Fraction(str(seconds)) * 1000
    if milliseconds == 0:
        return "0s"
    if milliseconds.denominator != 1:
        return f"{Decimal(str(seconds)):f}s"
    text, rest = "", milliseconds / 1000
    for unit in ("d", "h", "m", "s", "ms"):
        count, rest = divmod(rest, _DURATION_UNITS[unit])
        text += f"{count}{unit}" if count else ""
    return text


def format_bytes(count: float) -> str:
    """Return bytes for a person: `19.4 GiB`, `512 B`."""
    _check_finite(count, "a size")
    value, place = float(count), 0
    while value >= 1023.95 and place < len(_BINARY) - 1:  # from here on it would show as 1024.0
        value, place = value / 1024, place + 1
    return f"{value:.1f} {_BINARY[place]}" if place else f"{value:.0f} B"


def format_rate(bytes_per_second: float) -> str:
    """Format growth for a person: `84.4 GiB/h`, per hour because most leaks are too slow for a figure per second."""
    return f"{format_bytes(bytes_per_second * 3600)}/h"


def format_forecast(seconds: float) -> str:
    """Format the time until memory is full: `full in 8 min 15 s`, and `full now` where it is."""
    return f"full in {format_duration(seconds)}" if seconds >= 1 else "full now"


FORECAST_RANGE_SECONDS = 6 * 3600
"""From here on a forecast is told as a range: the load of the next hours is not known."""


def format_forecast_range(low_seconds: float, high_seconds: float) -> str:
    """Format the range of a forecast of hours or days: `full in about 3 to 9 days`, `full in about 20 h to 4 days`.

    >>> format_forecast_range(270_000, 770_000), format_forecast_range(21_000, 84_000)
    ('full in about 3 to 9 days', 'full in about 6 to 23 h')
    """
    low, high = round(low_seconds / 3600), round(high_seconds / 3600)
    if low >= 36:
        return f"full in about {round(low / 24)} to {round(high / 24)} days"
    if high < 48:
        return f"full in about {low} to {high} h"
    return f"full in about {low} h to {round(high / 24)} days"


def format_ratio(ratio: float) -> str:
    """Return a share for a person: `87 %`. What is not all of it is never 100 %, and what is something never 0 %."""
    _check_finite(ratio, "a share")
    percent = ratio * 100
    whole = round(percent)
    if whole == 100 and percent < 100:
        return "99 %"
    return "<1 %" if whole == 0 and percent > 0 else f"{whole} %"


def format_duration(seconds: float) -> str:
    """Return seconds for a person, at most two units: `2 h 14 min`, `45 s`, `1.5 s`, `120 ms`, `3 d`."""
    _check_finite(seconds, "a duration")
    if seconds < 59.5:
        return _below_a_minute(seconds)
    minutes, hours = round(seconds / 60), round(seconds / 3600)
    if round(seconds) < 3600:
        return _two_units(round(seconds), 60, "min", "s")
    if minutes < 24 * 60:
        return _two_units(minutes, 60, "h", "min")
    return _two_units(hours, 24, "d", "h")


def format_time(unix_seconds: float) -> str:
    """Format Unix time for a person: `2026-11-22 10:14 UTC`."""
    return f"{datetime.fromtimestamp(unix_seconds, UTC):%Y-%m-%d %H:%M} UTC"


def table_cell(text: str) -> str:
    """Return text that cannot break out of a table in Markdown."""
    return text.replace("|", "\\|").replace("\n", " ")


def _below_a_minute(seconds: float) -> str:
    if seconds < 0.0005:
        return "<1 ms" if seconds else "0 s"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f}".removesuffix(".0") + " s" if seconds < 9.95 else f"{seconds:.0f} s"


def _two_units(count: int, size: int, large: str, small: str) -> str:
    """Format `count` of the small unit, `size` of which make a large one."""
    whole, rest = divmod(count, size)
    return f"{whole} {large} {rest} {small}" if rest else f"{whole} {large}"


def _check_finite(value: float, what: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not {what}")
    if value < 0:
        raise ValueError(f"{what} cannot be negative")


def _is_nan(value: float) -> bool:
    return isinstance(value, float) and math.isnan(value)  # an int may be too large for isnan


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"
