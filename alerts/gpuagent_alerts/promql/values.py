"""What expressions are made of and evaluate to: label sets, elements of a vector, and the keys of matching."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from enum import StrEnum
from operator import itemgetter
from typing import NamedTuple


class ExpressionError(ValueError):
    """The text is no PromQL, or uses a part of it that the agent does not have. Told in words, with the way out."""


class EvaluationError(Exception):
    """The series do not suit the expression: the same labels twice, or many on both sides of an operator."""


METRIC_NAME = "__name__"


class ValueType(StrEnum):
    """PromQL's types, under the names of its documentation."""

    SCALAR = "scalar"
    VECTOR = "instant vector"
    STRING = "string"


class LabelSet(dict[str, str]):
    """Labels without the metric's name; `labels[name]` is "" for one that is missing, as in PromQL.

    Never changed once it is in a vector: its keys are computed once and kept. Labels of the same process are one object
    for all metrics of a tick, so that a key serves all of them.
    """

    __slots__ = ("_key", "_partial_keys")

    _key: frozenset[tuple[str, str]]
    _partial_keys: dict[frozenset[str], frozenset[tuple[str, str]]]

    def __missing__(self, name: str) -> str:
        return ""

    def key(self) -> frozenset[tuple[str, str]]:
        """Return a key that is equal for equal label sets."""
        try:
            return self._key
        except AttributeError:
            self._key = frozenset(self.items())
            return self._key

    def key_without(self, names: frozenset[str]) -> frozenset[tuple[str, str]]:
        """Return a key that is equal for label sets that differ in nothing but the labels of these names."""
        try:
            known = self._partial_keys
        except AttributeError:
            known = self._partial_keys = {}
        key = known.get(names)
        if key is None:
            key = known[names] = frozenset(item for item in self.items() if item[0] not in names)
        return key


NO_LABELS = LabelSet()

Element = tuple[str, LabelSet, float]
"""One element of a vector inside the engine: the metric's name ("" where PromQL drops it), other labels, value.

The name stands apart because most operators drop it: that must not cost a copy of the labels.
"""


class Row(NamedTuple):
    """One element of a vector as callers see it: the labels have `__name__` where PromQL keeps it."""

    labels: Mapping[str, str]
    value: float


class Vector(tuple[Row, ...]):
    """An instant vector: rows in the order in which Prometheus would have them."""

    __slots__ = ()


Scalar = float


def with_name(name: str, labels: Mapping[str, str]) -> dict[str, str]:
    """Return all labels of an element in one mapping."""
    return {METRIC_NAME: name, **labels} if name else dict(labels)


def without_name(labels: Mapping[str, str]) -> tuple[str, LabelSet]:
    """Return the other way round; a label with the value "" is no label."""
    return labels.get(METRIC_NAME, ""), LabelSet(
        (label, value) for label, value in labels.items() if value and label != METRIC_NAME
    )


def to_vector(elements: Iterable[Element]) -> Vector:
    """Return elements as callers see them."""
    return Vector(Row(with_name(name, labels), value) for name, labels, value in elements)


def display(name: str, labels: Mapping[str, str]) -> str:
    """Return labels as Prometheus writes them in its errors."""
    pairs = sorted(with_name(name, labels).items())
    return "{" + ", ".join(f"{label}={json.dumps(value, ensure_ascii=False)}" for label, value in pairs) + "}"


Keys = Callable[[list[Element]], Sequence[Hashable]]
"""One key per element, in their order. A whole vector at once: this is where a join spends its time."""


def keys_of(labels: Sequence[str], *, on: bool) -> Keys:
    """Return a key: equal where these labels are (`on`, `by`), or all others (`ignoring`, `without`)."""
    names = frozenset(labels)
    if on:
        return _keys_on(sorted(names))
    # The metric's name never counts here.
    names -= {METRIC_NAME}
    if not names:
        return lambda elements: [others.key() for _, others, _ in elements]
    return lambda elements: [others.key_without(names) for _, others, _ in elements]


def _keys_on(names: list[str]) -> Keys:
    if not names:
        return lambda elements: [None] * len(elements)
    if names == [METRIC_NAME]:
        return lambda elements: [name for name, _, _ in elements]
    # A label that is missing counts as "", which is what a LabelSet answers for it.
    get = itemgetter(*(name for name in names if name != METRIC_NAME))
    if METRIC_NAME in names:
        return lambda elements: [(name, get(others)) for name, others, _ in elements]
    return lambda elements: [get(others) for _, others, _ in elements]
