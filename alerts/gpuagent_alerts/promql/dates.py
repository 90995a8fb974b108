"""Functions of the calendar, in UTC, for every value that a float can have.

Go counts seconds in 64 bits from a year far in the past and wraps around at the ends; NaN becomes the lowest integer,
as on amd64. https://github.com/golang/go/blob/go1.19/src/time/time.go has the numbers.
"""

from __future__ import annotations

import math
from calendar import monthrange
from collections.abc import Callable
from datetime import date, timedelta
from typing import NamedTuple

_SECONDS_PER_DAY = 86_400
_DAYS_PER_CYCLE = 146_097
"""Of 400 years, after which the calendar repeats."""
_CYCLE_START = date(2001, 1, 1)
"""A Monday, as the first day of Go's absolute year."""
_ABSOLUTE_YEAR = -292_277_022_399
_EPOCH = 9_223_372_028_715_321_600
"""Seconds from the absolute year to 1970."""


class Moment(NamedTuple):
    """A second, taken apart. `day` lies in another year that has the same calendar."""

    year: int
    day: date
    second_of_day: int


def moment(seconds: float) -> Moment:
    """Of Unix time; fractions are cut off."""
    whole = math.trunc(seconds) if math.isfinite(seconds) and -(2.0**63) <= seconds < 2.0**63 else -(2**63)
    days, second_of_day = divmod((whole + _EPOCH) % 2**64, _SECONDS_PER_DAY)
    cycles, day_of_cycle = divmod(days, _DAYS_PER_CYCLE)
    day = _CYCLE_START + timedelta(days=day_of_cycle)
    return Moment(_ABSOLUTE_YEAR + 400 * cycles + day.year - _CYCLE_START.year, day, second_of_day)


CALENDAR_FUNCTIONS: dict[str, Callable[[Moment], int]] = {
    "minute": lambda at: at.second_of_day % 3600 // 60,
    "hour": lambda at: at.second_of_day // 3600,
    "day_of_week": lambda at: at.day.isoweekday() % 7,
    "day_of_month": lambda at: at.day.day,
    "day_of_year": lambda at: at.day.timetuple().tm_yday,
    "days_in_month": lambda at: monthrange(at.day.year, at.day.month)[1],
    "month": lambda at: at.day.month,
    "year": lambda at: at.year,
}
