"""Arithmetic as Go does it. Python raises where IEEE 754 has an infinity or NaN; rules need the latter."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from decimal import Decimal

NAN = math.nan
INFINITY = math.inf


def divide(dividend: float, divisor: float) -> float:
    """Divide as Go does: a division by zero is an infinity with the right sign, or NaN."""
    try:
        return dividend / divisor
    except ZeroDivisionError:
        if dividend == 0 or math.isnan(dividend):
            return NAN
        return math.copysign(INFINITY, dividend) * math.copysign(1, divisor)


def modulo(dividend: float, divisor: float) -> float:
    """Return the remainder, with the dividend's sign, as in C."""
    try:
        return math.fmod(dividend, divisor)
    except ValueError:
        return NAN


def power(base: float, exponent: float) -> float:
    """Return a power. The last bit may differ from Go's: Go multiplies, C's library rounds better."""
    odd = abs(exponent) < 2**53 and exponent % 2 == 1
    try:
        return math.pow(base, exponent)
    except OverflowError:
        return -INFINITY if base < 0 and odd else INFINITY
    except ValueError:
        if base == 0:  # to a negative power
            return math.copysign(INFINITY, base) if odd else INFINITY
        return NAN


def exponential(value: float) -> float:
    """Return e to the power of the value."""
    try:
        return math.exp(value)
    except OverflowError:
        return INFINITY


def logarithm(value: float) -> float:
    """Return the logarithm to base e."""
    if value > 0:
        return math.log(value)
    return -INFINITY if value == 0 else NAN


def logarithm2(value: float) -> float:
    """Return the logarithm to base 2, by Go's formula: exact for powers of two."""
    if not 0 < value < INFINITY:
        return logarithm(value)
    fraction, exponent = math.frexp(value)
    if fraction == 0.5:
        return float(exponent - 1)
    return math.log(fraction) * (1 / math.log(2)) + exponent


def logarithm10(value: float) -> float:
    """Return the logarithm to base 10, by Go's formula: for 1000 that is 2.9999999999999996."""
    return logarithm2(value) * (math.log(2) / math.log(10))


def square_root(value: float) -> float:
    """Return the square root; NaN for what is negative."""
    return NAN if value < 0 else math.sqrt(value)


def ceiling(value: float) -> float:
    """Round up; infinities, NaN and the sign of zero stay."""
    return math.copysign(float(math.ceil(value)), value) if math.isfinite(value) else value


def floor(value: float) -> float:
    """Round down; infinities, NaN and the sign of zero stay."""
    return math.copysign(float(math.floor(value)), value) if math.isfinite(value) else value


def sign(value: float) -> float:
    """Return -1 or 1; zero and NaN as they are."""
    if value < 0:
        return -1.0
    return 1.0 if value > 0 else value


def larger(left: float, right: float) -> float:
    """Return the larger value; NaN if either is, unless the other is the largest there is."""
    if INFINITY in {left, right}:
        return INFINITY
    if left == right == 0:
        return left + right  # of zeros with different signs, the positive one
    return NAN if math.isnan(left) or math.isnan(right) else max(left, right)


def smaller(left: float, right: float) -> float:
    """Return the smaller value; NaN if either is, unless the other is the smallest there is."""
    if -INFINITY in {left, right}:
        return -INFINITY
    if left == right == 0:
        return -(-left - right)
    return NAN if math.isnan(left) or math.isnan(right) else min(left, right)


def rounding(nearest: float) -> Callable[[float], float]:
    """Return a function that rounds to multiples of `nearest`; halves go up."""
    inverse = divide(1.0, nearest)
    return lambda value: divide(floor(value * inverse + 0.5), inverse)


def decimal_text(value: float) -> str:
    """Write a value without an exponent, in as few digits as tell it: labels made by count_values."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return format(Decimal(repr(value)), "f").removesuffix(".0")


FUNCTIONS_OF_ONE_VALUE: dict[str, Callable[[float], float]] = {
    "abs": abs,
    "ceil": ceiling,
    "floor": floor,
    "sgn": sign,
    "sqrt": square_root,
    "exp": exponential,
    "ln": logarithm,
    "log2": logarithm2,
    "log10": logarithm10,
}
"""Under PromQL's names."""


ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": divide,
    "%": modulo,
    "^": power,
    "atan2": math.atan2,
}
COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
SET_OPERATORS = frozenset(["and", "or", "unless"])

# Prometheus 2.42 forgets atan2 in its list of what drops the name (promql/engine.go, shouldDropMetricName).
DROPS_NAME = frozenset(ARITHMETIC) - {"atan2"}
