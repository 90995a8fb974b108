"""The text formats of Prometheus and OpenMetrics, written from series.

prometheus-client writes the same (the tests compare the two) at 7 to 10
microseconds a line. A node with 512 GPU processes has 6,000 lines and is scraped every few seconds, so this writer does
not write again what it has written before: a family whose samples are those of the last scrape keeps its lines, and a
line with another value keeps its beginning.

Nothing is kept between two scrapes but texts: what is gone from the snapshot is gone from the next scrape, and what
failed is absent, never the last good value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple

from gpuagent.core.metrics.family import Family, MetricType, Sample
from gpuagent_exporters.http.slim_imports import (
    CollectorRegistry,
    ProcessCollector,
    generate_latest,
    generate_openmetrics,
)

Series = Iterable[tuple[Family[Any], list[Sample]]]
Labels = tuple[str | None, ...]
Names = tuple[str, ...]

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})
_NOT_FINITE = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}


class _Written(NamedTuple):
    """A family as it was written last."""

    names: Names
    samples: list[Sample]
    lines: bytes
    """One for each sample."""


class TextWriter:
    """Writes either format. One per exporter: it keeps what it wrote last, and nothing older."""

    def __init__(self) -> None:
        self._last: dict[str, _Written] = {}

    def write(self, series: Series, *, openmetrics: bool = False, end: bytes = b"") -> bytes:
        """Write all series in UTF-8, then `end`: the end mark of OpenMetrics is not among the series."""
        written: dict[str, _Written] = {}
        parts: list[bytes] = []
        for family, samples in series:
            # Taken out: two generations of a family are not there together for longer than it takes to write one.
            before = self._last.pop(family.name, None)
            if before is None or before.names != family.labels:
                before = _Written(family.labels, [], b"")
            if before.samples is not samples and before.samples != samples:
                before = _Written(family.labels, samples, _lines(_beginnings(family, samples, before), samples))
            written[family.name] = before
            parts += (_header(family.name, family.kind, family.help, openmetrics), before.lines)
        self._last = written
        return b"".join((*parts, end))


def _beginnings(family: Family[Any], samples: list[Sample], before: _Written) -> list[str]:
    """Name and labels of each sample as they are written, from the last lines as far as they are there.

    To keep them beside the lines would cost half as much memory again.
    """
    known = [line.rpartition(" ")[0] for line in before.lines.decode().split("\n")[:-1]]
    old, new = ([labels for labels, _ in some] for some in (before.samples, samples))
    if old == new:
        return known
    by_labels = dict(zip(old, known, strict=True))
    return [by_labels.get(labels) or family.name + _label_text(family.labels, labels) for labels in new]


def _lines(beginnings: list[str], samples: list[Sample]) -> bytes:
    # Whole numbers as such, as most are. What is left of infinity over 1 is NaN, and NaN equals nothing.
    lines = [
        f"{beginning} {int(value) if value % 1 == 0 else _number(value)}\n"
        for beginning, (_, value) in zip(beginnings, samples, strict=True)
    ]
    return "".join(lines).encode(errors="replace")


def _number(value: float) -> str:
    """NaN and infinities should never get here, and must not cost the whole scrape."""
    text = repr(value)
    return _NOT_FINITE.get(text, text)


@lru_cache(maxsize=1024)
def _header(name: str, kind: MetricType, text: str, openmetrics: bool) -> bytes:
    """OpenMetrics names a counter without `_total`, and escapes quotes in its help."""
    text = text.translate(_ESCAPES if openmetrics else _HELP_ESCAPES)
    if openmetrics and kind is MetricType.COUNTER:
        name = name.removesuffix("_total")
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n".encode()


def _label_text(names: Names, values: Labels) -> str:
    """`{a="1",b="2"}`, without labels that have no value; "" if none is left."""
    pairs = ",".join(
        f'{name}="{value.translate(_ESCAPES)}"' for name, value in zip(names, values, strict=True) if value is not None
    )
    return f"{{{pairs}}}" if pairs else ""


class MetricsPage:
    """The body of `/metrics`: the node's series, then the agent's own process (CPU, memory, descriptors)."""

    def __init__(self, series: Callable[[], Series]) -> None:
        self._series = series
        self._writer = TextWriter()
        self._own = CollectorRegistry()
        ProcessCollector(registry=self._own)

    def render(self, *, openmetrics: bool = False) -> bytes:
        """UTF-8 text in one of the two formats."""
        generate: Callable[[CollectorRegistry], bytes] = generate_openmetrics if openmetrics else generate_latest
        return self._writer.write(self._series(), openmetrics=openmetrics, end=generate(self._own))
