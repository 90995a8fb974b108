"""Numbers as Prometheus' templates print them: the same digits as Go's fmt.

The functions are those of https://github.com/prometheus/prometheus/blob/v2.42.0/template/template.go.
"""

from __future__ import annotations

import math
from decimal import Decimal

_LARGE = ("k", "M", "G", "T", "P", "E", "Z", "Y")
_SMALL = ("m", "u", "n", "p", "f", "a", "z", "y")
_BINARY = ("ki", "Mi", "Gi", "Ti", "Pi", "Ei", "Zi", "Yi")
_MAX_INT64 = 2**63
_SHORTEST_EXPONENT = 6
"""`%v` prints the shortest digits that are exact, with an exponent from 1e+06 on."""


def print_float(value: float) -> str:
    """What `{{ $value }}` prints: Go's `%v`."""
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
    """As promtool reports samples: `1.5E+00`."""
    if not math.isfinite(value):
        return _not_finite(value)
    minus, text, point = _digits(value)
    power = point - 1 if value else 0
    fraction = f".{text[1:]}" if len(text) > 1 else ""
    return f"{minus}{text[0]}{fraction}E{'-' if power < 0 else '+'}{abs(power):02d}"


def format_float(value: float, verb: str, precision: int) -> str:
    """Go's `%.<precision><verb>` for the verbs e, f and g; as C's for finite numbers."""
    return f"%.{precision}{verb}" % value if math.isfinite(value) else _not_finite(value)


def humanize(value: float) -> str:
    """SI prefixes: `1.235M`."""
    if value == 0 or not math.isfinite(value):
        return _short(value)
    if abs(value) >= 1:
        return _scaled(value, 1000, _LARGE)
    return _enlarged(value)


def humanize_1024(value: float) -> str:
    """Binary prefixes: `1.5Gi`."""
    if abs(value) <= 1 or not math.isfinite(value):
        return _short(value)
    return _scaled(value, 1024, _BINARY)


def humanize_percentage(value: float) -> str:
    """A ratio as a percentage: `91.25%`."""
    return f"{_short(value * 100)}%"


def humanize_duration(value: float) -> str:
    """Seconds: `1d 2h 3m 4s`."""
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
    """The sign, the shortest digits that are exact, and where the point is in them."""
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
    """Go's integer division: towards zero."""
    return -(-value // divisor) if value < 0 else value // divisor


def _remainder(value: int, divisor: int) -> int:
    return value - _quotient(value, divisor) * divisor
