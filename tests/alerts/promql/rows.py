"""Writing series and expected rows in a table as PromQL writes them: `used{gpu="0"} 5`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from gpuagent_alerts.promql.expression import compile_expression
from gpuagent_alerts.promql.series import SeriesIndex

_LINE = re.compile(r"\s*(?P<name>[\w:]*)(?:\{(?P<labels>[^}]*)\})?\s+(?P<value>\S+)\s*")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def sample(line: str) -> tuple[str, dict[str, str], float]:
    """One line: name, other labels, value."""
    match = _LINE.fullmatch(line)
    assert match is not None, line
    return match["name"], dict(_LABEL.findall(match["labels"] or "")), float(match["value"])


def index(*lines: str) -> SeriesIndex:
    """The series of one tick."""
    return SeriesIndex(sample(line) for line in lines)


def evaluated(expression: str, series: SeriesIndex, time_seconds: float = 0.0) -> list[str]:
    """The rows of an expression, written as in the table."""
    rows = compile_expression(expression).rows(series, time_seconds)
    return [written(row.labels.get("__name__", ""), row.labels.items(), row.value) for row in rows]


def written(name: str, labels: Iterable[tuple[str, str]], value: float) -> str:
    """Labels in order, so that equal rows are equal lines; -0 is told from 0."""
    pairs = ", ".join(f'{label}="{text}"' for label, text in sorted(labels) if label != "__name__")
    number = "NaN" if math.isnan(value) else f"{value:g}"
    return f"{name}{{{pairs}}} {number}"


def tidy(*lines: str) -> list[str]:
    """Expected rows in the form of `evaluated`."""
    return [written(name, labels.items(), value) for name, labels, value in map(sample, lines)]
