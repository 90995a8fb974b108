"""Series that rules make, beside those that were measured: what a rule writes, every later rule sees."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

from gpuagent_alerts.promql.series import SeriesIndex
from gpuagent_alerts.promql.values import Element

LOOK_BACK_SECONDS = 300.0
"""The result of a rule that fails lives on for as long as Prometheus' look-back."""
_Key = frozenset[tuple[str, str]]


class _Entry(NamedTuple):
    element: Element
    time_seconds: float
    owner: Hashable


class RecordedSeries:
    """The last result of every rule, by metric name. A series that a rule no longer has is gone at once."""

    def __init__(self) -> None:
        self._by_name: dict[str, dict[_Key, _Entry]] = {}
        self._owned: dict[Hashable, list[tuple[str, _Key]]] = {}

    def publish(self, owner: Hashable, elements: Iterable[Element], now_seconds: float) -> None:
        """Replace what `owner` wrote before. A series that another has written at the same time stays the other's."""
        self.forget(owner)
        owned = self._owned.setdefault(owner, [])
        for element in elements:
            name, labels, _ = element
            entries = self._by_name.setdefault(name, {})
            known = entries.get(labels.key())
            if known is None or known.time_seconds < now_seconds:
                entries[labels.key()] = _Entry(element, now_seconds, owner)
                owned.append((name, labels.key()))

    def forget(self, owner: Hashable) -> None:
        """Remove what `owner` wrote."""
        for name, key in self._owned.pop(owner, ()):
            entries = self._by_name.get(name, {})
            if key in entries and entries[key].owner == owner:
                del entries[key]
            if not entries:
                self._by_name.pop(name, None)

    def owners(self) -> Sequence[Hashable]:
        """Everybody who has written."""
        return tuple(self._owned)

    def names(self) -> Sequence[str]:
        """The metric names that there are."""
        return tuple(self._by_name)

    def elements(self, name: str, now_seconds: float) -> list[Element]:
        """The series of a metric."""
        return [
            entry.element
            for entry in self._by_name.get(name, {}).values()
            if now_seconds - entry.time_seconds <= LOOK_BACK_SECONDS
        ]


class WithRecorded(SeriesIndex):
    """Measured series, and recorded ones on top. Where both have a series, the measured one is seen."""

    def __init__(self, measured: SeriesIndex, recorded: RecordedSeries, now_seconds: float) -> None:
        super().__init__()
        self._measured = measured
        self._recorded = recorded
        self._now = now_seconds

    def names(self) -> Sequence[str]:
        return list(dict.fromkeys((*self._measured.names(), *self._recorded.names())))

    def elements(self, name: str) -> list[Element]:
        measured = self._measured.elements(name)
        recorded = self._recorded.elements(name, self._now)
        if not recorded or not measured:
            return recorded or measured
        seen = {labels.key() for _, labels, _ in measured}
        return [*measured, *(element for element in recorded if element[1].key() not in seen)]
