"""A metric family: its name, type, help, labels and origin, declared beside the code that fills it.

`SampleCache` keeps what a reader of series found last, so that samples are made again only of what has changed: of
6,000 series of a busy node few hundred change from one scrape to the next, and to compare a value takes a fifth of the
time that a sample takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import is_not
from typing import Any, Generic, NamedTuple, TypeVar

Part = TypeVar("Part")

Value = float | int | bool | None
LabeledValue = tuple[tuple[str, ...], Value]
"""Values of a family's own labels, in their order, and the value they belong to."""


class MetricType(StrEnum):
    """Prometheus' metric types, as far as we use them."""

    GAUGE = "gauge"
    COUNTER = "counter"


class Sample(NamedTuple):
    """One series of a family: values of all its labels, in the family's order. None leaves a label out."""

    labels: tuple[str | None, ...]
    value: float


@dataclass(frozen=True, slots=True)
class Family(Generic[Part]):
    """One metric name. `of` takes its values from a part of the snapshot: a reading of a GPU, of a process, or all.

    `collector` names the collector behind the series: while it fails on a GPU, the family's series of that GPU are
    missing, which is not the same as gone.
    """

    name: str
    kind: MetricType
    help: str
    collector: str
    labels: tuple[str, ...]
    of: Callable[[Part], Iterable[LabeledValue]]

    @property
    def unit(self) -> str:
        """Base unit by the name's suffix; "" for counts, flags and info."""
        stem = self.name.removesuffix("_total")
        for unit in ("bytes_per_second", "bytes", "ratio", "celsius", "watts", "joules", "hertz", "seconds"):
            if stem.endswith(f"_{unit}"):
                return unit.replace("_per_second", "/s")
        return ""


@dataclass(frozen=True, slots=True)
class Single(Generic[Part]):
    """Read a family without labels of its own. Who reads many parts may call `value` and save the tuples."""

    value: Callable[[Part], Value]

    def __call__(self, part: Part) -> Iterable[LabeledValue]:
        return (((), self.value(part)),)


def single(value: Callable[[Part], Value]) -> Callable[[Part], Iterable[LabeledValue]]:
    """Return the reader of a family without labels of its own."""
    return Single(value)


Labels = tuple[str | None, ...]
Item = TypeVar("Item")

_new = tuple.__new__
"""`_new(Sample, ...)` is `Sample(...)` in two thirds of the time."""


class _CachedSamples(NamedTuple):
    """What a family was made of, and what was made."""

    bases: Sequence[Labels]
    parts: Sequence[object]
    values: Sequence[Value]
    samples: list[Sample]


class SampleCache:
    """For one reader, who takes all series again and again and changes none. It keeps last time's and none older."""

    def __init__(self) -> None:
        self._last: dict[str, _CachedSamples] = {}
        self._found: dict[str, _CachedSamples] = {}
        self._same: dict[str, list[Any]] = {}
        self._made: dict[str, tuple[tuple[object, ...], list[Any]]] = {}

    def begin(self) -> None:
        """Begin a new pass: what was found until now becomes that of the last pass."""
        self._last, self._found = self._found, {}

    def reuse_equal(self, group: str, items: list[Item]) -> list[Item]:
        """Return the list of last time, if it is equal: to compare it with itself takes next to no time."""
        if self._same.get(group) != items:
            self._same[group] = items
        return self._same[group]

    def reuse_or_make(self, group: str, sources: tuple[object, ...], make: Callable[[], list[Item]]) -> list[Item]:
        """Return what is made of these sources: the list of last time, if they are the very same objects."""
        known = self._made.get(group)
        if known is None or any(map(is_not, known[0], sources)):
            known = self._made[group] = sources, make()
        return known[1]

    def samples(self, family: Family[Part], bases: Sequence[Labels], parts: Sequence[Part | None]) -> list[Sample]:
        """Return the family's samples of each part that there is, with the labels that go with it.

        The very list of last time, if nothing has changed; parts that are the very same are not even looked at.
        """
        last = self._last.pop(family.name, None)
        of = family.of
        if last is not None and last.parts is parts and last.bases is bases:
            found = last
        elif isinstance(of, Single):
            found = _of_values(last, bases, parts, [None if part is None else of.value(part) for part in parts])
        else:
            found = _of_labelled(last, bases, parts, [() if part is None else of(part) for part in parts])
        self._found[family.name] = found
        return found.samples


def _of_values(
    last: _CachedSamples | None, bases: Sequence[Labels], parts: Sequence[object], values: Sequence[Value]
) -> _CachedSamples:
    if last is not None and last.values == values and last.bases == bases:
        return last._replace(bases=bases, parts=parts)
    pairs = zip(bases, values, strict=True)
    samples = [_new(Sample, (base, float(value))) for base, value in pairs if value is not None]
    return _CachedSamples(bases, parts, values, samples)


def _of_labelled(
    last: _CachedSamples | None,
    bases: Sequence[Labels],
    parts: Sequence[object],
    labelled: Sequence[Iterable[LabeledValue]],
) -> _CachedSamples:
    samples = [
        _new(Sample, (base + labels, float(value)))
        for base, part in zip(bases, labelled, strict=True)
        for labels, value in part
        if value is not None
    ]
    # Few families have labels of their own: to keep their values beside the samples would cost more than to compare.
    return _CachedSamples(bases, parts, (), last.samples if last is not None and last.samples == samples else samples)
