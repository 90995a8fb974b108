"""topk, bottomk and quantile. Which of equal values topk keeps follows from Go's heap, so that is what runs here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from gpuagent_alerts.promql.floats import INFINITY, NAN, floor
from gpuagent_alerts.promql.values import Element

Less = Callable[[float, float], bool]
"""Whether the first value goes before the second one. NaN goes first: it is what topk and bottomk keep last."""


def ascending(left: float, right: float) -> bool:
    """For topk: the smallest is on top of the heap, to be replaced by a larger one."""
    return math.isnan(left) or left < right


def descending(left: float, right: float) -> bool:
    """For bottomk."""
    return math.isnan(left) or left > right


def best(elements: Sequence[Element], count: int, less: Less) -> list[Element]:
    """The `count` elements that go last by `less`, the best one first."""
    heap: list[Element] = []
    for element in elements[:count]:
        heap.append(element)
        _up(heap, less)
    worst = heap[0][2]
    for element in elements[count:]:
        if less(worst, element[2]) or math.isnan(worst):
            _pop(heap, less)
            heap.append(element)
            _up(heap, less)
            worst = heap[0][2]
    # NaN last, and equal values as they lie in the heap.
    worst_first = less(0.0, 1.0)
    return sorted(heap, key=lambda element: (math.isnan(element[2]), -element[2] if worst_first else element[2]))


def _up(heap: list[Element], less: Less) -> None:
    """container/heap's `up`, of the last element."""
    child = len(heap) - 1
    while child > 0:
        parent = (child - 1) // 2
        if not less(heap[child][2], heap[parent][2]):
            break
        heap[parent], heap[child] = heap[child], heap[parent]
        child = parent


def _pop(heap: list[Element], less: Less) -> None:
    """container/heap's `Pop`: the last element takes the place of the first and goes down."""
    last = heap.pop()
    if not heap:
        return
    heap[0] = last
    parent = 0
    while (child := 2 * parent + 1) < len(heap):
        if child + 1 < len(heap) and less(heap[child + 1][2], heap[child][2]):
            child += 1
        if not less(heap[child][2], heap[parent][2]):
            break
        heap[parent], heap[child] = heap[child], heap[parent]
        parent = child


def quantile(fraction: float, values: Sequence[float]) -> float:
    """Between the two nearest values, by their distance. Infinite where the fraction is no fraction."""
    if math.isnan(fraction):
        return NAN
    if not 0 <= fraction <= 1:
        return -INFINITY if fraction < 0 else INFINITY
    ordered = sorted(values, key=lambda value: (not math.isnan(value), value))
    rank = fraction * (len(ordered) - 1)
    lower = int(floor(rank))
    weight = rank - lower
    upper = min(len(ordered) - 1, lower + 1)
    return ordered[lower] * (1 - weight) + ordered[upper] * weight
