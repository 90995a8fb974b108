"""Keys by which elements belong together: of matching between vectors, and of groups in aggregations."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from operator import itemgetter

from gpuagent_alerts.promql.values import METRIC_NAME, Element

Keys = Callable[[list[Element]], Sequence[Hashable]]
"""One key per element, in their order. A whole vector at once: this is where a join spends its time."""


def keys_of(labels: Sequence[str], *, on: bool) -> Keys:
    """Equal where these labels are (`on` and `by`), or where all others are (`ignoring` and `without`)."""
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
