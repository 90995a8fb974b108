"""The series of one tick, by metric name: what expressions are evaluated on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from gpuagent.catalogue.family import Family, Sample
from gpuagent_alerts.promql.values import Element, LabelSet, Row, to_vector, without_name

LabelValues = tuple[str | None, ...]


class SeriesIndex:
    """Built once per tick. A metric's samples become elements when a rule first asks for them, and not again.

    No two series of a tick have the same name and labels: what makes them sees to that.
    """

    def __init__(self, samples: Iterable[tuple[str, Mapping[str, str], float]] = ()) -> None:
        self._names: dict[str, None] = {}
        self._elements: dict[str, list[Element]] = {}
        self._pending: dict[str, list[tuple[tuple[str, ...], list[Sample]]]] = {}
        self._label_sets: dict[tuple[str, ...], dict[LabelValues, LabelSet]] = {}
        for name, labels, value in samples:
            self._names[name] = None
            self._elements.setdefault(name, []).append((name, without_name(labels)[1], float(value)))

    @classmethod
    def of(cls, series: Iterable[tuple[Family[Any], list[Sample]]]) -> Self:
        """From the catalogue's form. A label whose value is None or "" is absent."""
        index = cls()
        for family, samples in series:
            index.add(family, samples)
        return index

    def add(self, family: Family[Any], samples: list[Sample]) -> None:
        """One more family of the catalogue; the samples are read when they are asked for."""
        self._names[family.name] = None
        # No closure: an index that refers to itself would outlive its tick until the garbage collector comes.
        self._pending.setdefault(family.name, []).append((family.labels, samples))

    def names(self) -> Sequence[str]:
        """Every metric name, in the order in which it came."""
        return list(self._names)

    def get(self, name: str) -> Sequence[Row]:
        """The series of a metric as rows, `__name__` among the labels; empty for a name that is not there."""
        return to_vector(self.elements(name))

    def elements(self, name: str) -> list[Element]:
        """The series of a metric as the engine sees them. Not to be changed."""
        for label_names, samples in self._pending.pop(name, ()):
            self._elements.setdefault(name, []).extend(self._read(name, label_names, samples))
        return self._elements.get(name, [])

    def _read(self, name: str, label_names: tuple[str, ...], samples: list[Sample]) -> Iterable[Element]:
        known = self._label_sets.setdefault(label_names, {})
        for values, value in samples:
            labels = known.get(values)
            if labels is None:
                labels = known[values] = LabelSet(
                    (label, text) for label, text in zip(label_names, values, strict=True) if text
                )
            yield name, labels, float(value)
