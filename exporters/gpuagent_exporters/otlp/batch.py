"""What is pushed at one moment: points of metrics, and what incidents have come to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from gpuagent.core.metrics.family import Family, Sample
from gpuagent_exporters.otlp.names import Name, attributes_of, name_of


class Point(NamedTuple):
    """One value of a metric."""

    attributes: Mapping[str, str]
    value: float


class Metric(NamedTuple):
    """One metric with all its points."""

    name: Name
    help: str
    points: list[Point]


class IncidentEvent(NamedTuple):
    """What an incident has come to: a log record."""

    unix_seconds: float
    name: str
    """`gpuagent.incident.began`, `.changed` or `.ended`."""
    severity: str
    """critical, warning or info; "" where its rule gives another."""
    body: str
    attributes: Mapping[str, str]


class Batch(NamedTuple):
    """Metrics of one moment, and what has happened since the last."""

    unix_seconds: float
    series: Sequence[tuple[Family[Any], list[Sample]]]
    events: Sequence[IncidentEvent] = ()


def metrics_of(series: Iterable[tuple[Family[Any], list[Sample]]]) -> list[Metric]:
    """Return series as metrics; several families may be one metric, as those of the encoder and the decoder are."""
    found: dict[str, Metric] = {}
    for family, samples in series:
        for sample in samples:
            pairs = zip(family.labels, sample.labels, strict=True)
            labels = {label: value for label, value in pairs if value is not None}
            name = name_of(family, labels)
            metric = found.setdefault(name.name, Metric(name, family.help, []))
            metric.points.append(Point(attributes_of(name, labels), sample.value))
    return list(found.values())
