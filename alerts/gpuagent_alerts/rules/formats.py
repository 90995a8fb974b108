"""Formats of numbers and durations in rule files and templates, as Prometheus 2.42 has them, and as the agent has them.

Durations are read and printed by `ParseDuration` of
https://github.com/prometheus/common/blob/main/model/time.go: `5m`, `1h30m`, `0`; no fractions, and no number without a
unit. Numbers have the digits of Go's fmt, and the functions are those of
https://github.com/prometheus/prometheus/blob/v2.42.0/template/template.go. `HOUSE_FORMATS` write quantities in messages
as every surface of the agent does: each takes the value and the text that follows it in the template, and returns None
where the value has no such format.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal

from gpuagent.core.units import MAX_SECONDS, format_bytes, format_duration, format_ratio

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
    """Return the milliseconds of a duration. Raises ValueError, in words for the person who wrote it."""
    if text == "0":
        return 0
    match = _DURATION.fullmatch(text) if text and len(text) <= _MAX_CHARACTERS else None
    if match is None:
        raise ValueError(f"{text[:_MAX_CHARACTERS]!r} is no duration: {_WANTED}")
    total = sum(int(count) * size for count, (_, size) in zip(match.groups(), _UNITS, strict=True) if count)
    if total > _MAX_MILLISECONDS:
        raise ValueError(f"{text!r} is longer than Prometheus can count (292 years)")
    return total


def format_milliseconds(total: int) -> str:
    """Return a duration as Prometheus prints it: years, weeks and days only where they come out even."""
    if total == 0:
        return "0s"
    text, rest = "", total
    for unit, size in _UNITS:
        if unit in {"y", "w", "d"} and rest % size:
            continue
        count, rest = divmod(rest, size)
        text += f"{count}{unit}" if count else ""
    return text


_LARGE = ("k", "M", "G", "T", "P", "E", "Z", "Y")
_SMALL = ("m", "u", "n", "p", "f", "a", "z", "y")
_BINARY = ("ki", "Mi", "Gi", "Ti", "Pi", "Ei", "Zi", "Yi")
_MAX_INT64 = 2**63
_SHORTEST_EXPONENT = 6
_AT_ONCE = "less than 1 s"
_FULL_AT_ONCE = re.compile(rf"\bfull in {_AT_ONCE}(?: at this pace| if it goes on like this)?")
"""`%v` prints the shortest digits that are exact, with an exponent from 1e+06 on."""


def print_float(value: float) -> str:
    """Return what `{{ $value }}` prints: Go's `%v`."""
    if not math.isfinite(value):
        return _not_finite(value)
    minus, text, point = _digits(value)
    if value == 0:
        return f"{minus}0"
    if not -4 <= point - 1 < _SHORTEST_EXPONENT:
        fraction = f".{text[1:]}" if len(text) > 1 else ""
        return f"{minus}{text[0]}{fraction}e{'-' if point < 1 else '+'}{abs(point - 1):02d}"
    if point <= 0:
        return f"{minus}0.{'0' * -point}{text}"
    if point >= len(text):
        return f"{minus}{text}{'0' * (point - len(text))}"
    return f"{minus}{text[:point]}.{text[point:]}"


def print_scientific(value: float) -> str:
    """Return a number as promtool reports samples: `1.5E+00`."""
    if not math.isfinite(value):
        return _not_finite(value)
    minus, text, point = _digits(value)
    power = point - 1 if value else 0
    fraction = f".{text[1:]}" if len(text) > 1 else ""
    return f"{minus}{text[0]}{fraction}E{'-' if power < 0 else '+'}{abs(power):02d}"


def format_float(value: float, verb: str, precision: int) -> str:
    """Return Go's `%.<precision><verb>` for the verbs e, f and g; as C's for finite numbers."""
    return f"%.{precision}{verb}" % value if math.isfinite(value) else _not_finite(value)


def humanize(value: float) -> str:
    """Return a number with SI prefixes: `1.235M`."""
    if value == 0 or not math.isfinite(value):
        return _short(value)
    if abs(value) >= 1:
        return _scaled(value, 1000, _LARGE)
    return _enlarged(value)


def humanize_1024(value: float) -> str:
    """Return a number with binary prefixes: `1.5Gi`."""
    if abs(value) <= 1 or not math.isfinite(value):
        return _short(value)
    return _scaled(value, 1024, _BINARY)


def humanize_percentage(value: float) -> str:
    """Return a ratio as a percentage: `91.25%`."""
    return f"{_short(value * 100)}%"


def humanize_duration(value: float) -> str:
    """Return seconds as `1d 2h 3m 4s`."""
    if not math.isfinite(value):
        return _short(value)
    if abs(value) < 1:
        return f"{_enlarged(value) if value else _short(value)}s"
    sign, value = ("-" if value < 0 else ""), abs(value)
    # Out of int64's range Go's conversion gives the smallest number there is (amd64).
    whole = int(value) if value < _MAX_INT64 else -_MAX_INT64
    seconds, minutes = _remainder(whole, 60), _remainder(_quotient(whole, 60), 60)
    hours, days = _remainder(_quotient(whole, 3600), 24), _quotient(whole, 86400)
    if not (days or hours or minutes):
        return f"{sign}{_short(value)}s"
    parts = (f"{days}d", f"{hours}h", f"{minutes}m", f"{seconds}s")
    return sign + " ".join(parts[0 if days else 1 if hours else 2 :])


def _digits(value: float) -> tuple[str, str, int]:
    """Return the sign, the shortest digits that are exact, and where the point is in them."""
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    return "-" if sign else "", "".join(map(str, digits)), len(digits) + int(exponent)


def _short(value: float) -> str:
    return format_float(value, "g", 4)


def _scaled(value: float, step: int, prefixes: tuple[str, ...]) -> str:
    prefix = ""
    for candidate in prefixes:
        if abs(value) < step:
            break
        prefix, value = candidate, value / step
    return f"{_short(value)}{prefix}"


def _enlarged(value: float) -> str:
    prefix = ""
    for candidate in _SMALL:
        if abs(value) >= 1:
            break
        prefix, value = candidate, value * 1000
    return f"{_short(value)}{prefix}"


def _not_finite(value: float) -> str:
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def _quotient(value: int, divisor: int) -> int:
    """Divide as Go does: towards zero."""
    return -(-value // divisor) if value < 0 else value // divisor


def _remainder(value: int, divisor: int) -> int:
    return value - _quotient(value, divisor) * divisor


HouseFormat = Callable[[float, str], str | None]


def _bytes(value: float, following: str) -> str | None:
    """Return `84.4 Gi` where a `B` follows: `humanize1024` is for any number, and this one is a size then."""
    if not math.isfinite(value) or not following.startswith("B"):
        return None
    return ("-" if value < 0 else "") + format_bytes(abs(value)).removesuffix("B")


def _percentage(value: float, _: str) -> str | None:
    return ("-" if value < 0 else "") + format_ratio(abs(value)) if math.isfinite(value * 100) else None


def _duration(value: float, _: str) -> str | None:
    """Return no milliseconds: what a rule tells in them is a forecast, or has just happened."""
    if not 0 <= value <= MAX_SECONDS:
        return None
    return format_duration(value) if value >= 1 else _AT_ONCE


def write_now(text: str) -> str:
    """Return the text with what is full in less than a second as full now, as every other surface says it.

    >>> write_now("GPU 0: memory is full in less than 1 s if it goes on like this")
    'GPU 0: memory is full now'
    """
    return _FULL_AT_ONCE.sub("full now", text)


HOUSE_FORMATS: dict[str, HouseFormat] = {
    "humanize1024": _bytes,
    "humanizePercentage": _percentage,
    "humanizeDuration": _duration,
}
