"""Operators on numbers, and which of them keep the metric's name."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

from gpuagent_alerts.promql.floats import divide, modulo, power

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
