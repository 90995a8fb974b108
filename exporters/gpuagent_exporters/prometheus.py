"""The last snapshot as Prometheus metrics: a collector for prometheus-client, and the body of `/metrics`.

Nothing is kept between two scrapes but texts: what is gone from the snapshot is gone from the next scrape, and what
failed is absent, never the last good value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gpuagent.catalogue.family import Family, Kind, Sample
from gpuagent_exporters.exposition import TextWriter
from gpuagent_exporters.lean import (
    Collector,
    CollectorRegistry,
    Metric,
    ProcessCollector,
    generate_latest,
    generate_openmetrics,
)

Series = Iterable[tuple[Family[Any], list[Sample]]]


class SnapshotCollector(Collector):
    """Hands the series of the last snapshot to a prometheus-client registry."""

    def __init__(self, series: Callable[[], Series]) -> None:
        self._series = series

    def describe(self) -> Iterable[Metric]:
        """Nothing: which families there are depends on the GPUs."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """One metric per family that has samples."""
        for family, samples in self._series():
            name = family.name
            if family.kind is Kind.COUNTER:
                name = name.removesuffix("_total")
            metric = Metric(name, family.help, str(family.kind))
            for labels, value in samples:
                pairs = zip(family.labels, labels, strict=True)
                metric.add_sample(family.name, {key: text for key, text in pairs if text is not None}, value)
            yield metric


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
