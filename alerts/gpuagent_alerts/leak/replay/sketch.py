"""A curve of bounded size of a series of any length, for a line of text or a picture."""

from __future__ import annotations

from typing import NamedTuple


class Point(NamedTuple):
    """The readings of a stretch of time: the highest of each column, None where it had none."""

    seconds: float
    used_bytes: float | None
    free_bytes: float | None
    allocated_bytes: float | None


class Sketch:
    """Between `most` / 2 and `most` stretches of equal length; when they are too many, each two become one."""

    def __init__(self, most: int = 512) -> None:
        self._most = most
        self._first: float | None = None
        self._stretch = 1.0
        self._columns: dict[int, list[float | None]] = {}
        self._place = -1
        self._current: list[float | None] = []

    def add(self, seconds: float, used: float | None, free: float | None, allocated: float | None) -> None:
        """Note a reading."""
        if self._first is None:
            self._first = seconds
        place = int((seconds - self._first) // self._stretch)
        if place != self._place:
            self._enter(place, seconds)
        current = self._current
        if used is not None and (current[0] is None or used > current[0]):
            current[0] = used
        if free is not None and (current[1] is None or free > current[1]):
            current[1] = free
        if allocated is not None and (current[2] is None or allocated > current[2]):
            current[2] = allocated

    def _enter(self, place: int, seconds: float) -> None:
        assert self._first is not None  # noqa: S101 - add() has set it
        while place >= self._most:
            merged: dict[int, list[float | None]] = {}
            for old, values in self._columns.items():
                other = merged.get(old // 2)
                merged[old // 2] = (
                    values if other is None else [_highest(*pair) for pair in zip(other, values, strict=True)]
                )
            self._columns = merged
            self._stretch *= 2
            place = int((seconds - self._first) // self._stretch)
        self._place = place
        self._current = self._columns.setdefault(place, [None, None, None])

    def points(self) -> list[Point]:
        """The curve, with a point for each stretch that had no reading too."""
        if self._first is None:
            return []
        last = max(self._columns)
        nothing: list[float | None] = [None, None, None]
        return [
            Point(self._first + place * self._stretch, *self._columns.get(place, nothing)) for place in range(last + 1)
        ]


def _highest(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return one if other is None else other
    return max(one, other)
