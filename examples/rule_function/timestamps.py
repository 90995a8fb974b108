"""Print a Unix time as Prometheus' template function humanizeTimestamp does."""

from __future__ import annotations

import math
from datetime import datetime, timedelta

from gpuagent_alerts.rules.formats import format_float

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  what is printed says UTC by itself


def humanize_timestamp(value: float) -> str:
    """Return the moment in UTC; what is no moment of the calendar as a number."""
    if not math.isfinite(value):
        return format_float(value, "g", 4)
    try:
        moment = _EPOCH + timedelta(seconds=value)
    except OverflowError:
        return format_float(value, "g", 4)
    return f"{moment:%Y-%m-%d %H:%M:%S.%f}".rstrip("0").rstrip(".") + " +0000 UTC"
