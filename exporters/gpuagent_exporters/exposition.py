"""The text formats of Prometheus and OpenMetrics, written from series.

prometheus-client writes the same (see `prometheus.SnapshotCollector`; the tests compare the two) at 7 to 10
microseconds a line. A node with 512 GPU processes has 6,000 lines and is scraped every few seconds; this writer takes
about one microsecond a line: the label text of a series is written once and kept for as long as the series is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from gpuagent.catalogue.family import Family, Kind, Sample

Series = Iterable[tuple[Family[Any], list[Sample]]]

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})

Labels = tuple[str | None, ...]


class TextWriter:
    """Writes either format. One per exporter: it keeps the label texts of the last scrape, no more."""

    def __init__(self) -> None:
        self._texts: dict[tuple[tuple[str, ...], Labels], str] = {}

    def write(self, series: Series, *, openmetrics: bool = False) -> str:
        """The exposition of all series, without the end mark of OpenMetrics."""
        known = self._texts
        used: dict[tuple[tuple[str, ...], Labels], str] = {}
        lines: list[str] = []
        for family, samples in series:
            lines.append(_header(family, openmetrics=openmetrics))
            name = family.name
            names = family.labels
            for labels, value in samples:
                key = (names, labels)
                text = used.get(key)
                if text is None:
                    text = used[key] = known.get(key) or _label_text(names, labels)
                lines.append(f"{name}{text} {_number(value)}\n")
        self._texts = used
        return "".join(lines)


def _number(value: float) -> str:
    """Whole numbers as such; NaN and infinities, which should never get here, must not cost the whole scrape."""
    try:
        whole = int(value)
    except (ValueError, OverflowError):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(whole) if whole == value else repr(value)


def _header(family: Family[Any], *, openmetrics: bool) -> str:
    """OpenMetrics names a counter without `_total`, and escapes quotes in its help."""
    name, text = family.name, family.help.translate(_HELP_ESCAPES)
    if openmetrics:
        text = family.help.translate(_ESCAPES)
        if family.kind is Kind.COUNTER:
            name = name.removesuffix("_total")
    return f"# HELP {name} {text}\n# TYPE {name} {family.kind}\n"


def _label_text(names: tuple[str, ...], values: Labels) -> str:
    """`{a="1",b="2"}`, without labels that have no value; "" if none is left."""
    pairs = ",".join(
        f'{name}="{value.translate(_ESCAPES)}"' for name, value in zip(names, values, strict=True) if value is not None
    )
    return f"{{{pairs}}}" if pairs else ""
