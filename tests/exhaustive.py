"""Which of many cases of one kind `make test` runs; `make test-all` runs all of them.

What is left out is either extended or exhaustive. Of what is exhaustive CI runs a sample, and of the further cases of a
test another, so that each case is run every few commits; other extended tests it runs each time.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable

import pytest
from _pytest.mark import ParameterSet

RARELY = pytest.mark.exhaustive
_ONE_IN = 20
ONE_CASE_IN = 3


def is_sampled(test: str, commit: str, one_in: int = _ONE_IN) -> bool:
    """Tell whether a test is in the sample of a commit: one in so many, the same ones each time.

    `test` is its id, or its file where all of a file's tests look at one thing that takes minutes to make.
    """
    return zlib.crc32(f"{commit} {test}".encode()) % one_in == 0


def extend(items: Iterable[pytest.Item]) -> None:
    """Mark as extended all but so many cases of a test, evenly spread, as its marker `few` says."""
    cases: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("few"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for group in cases.values():
        marker = group[0].get_closest_marker("few")
        assert marker
        chosen = _spread(marker.args[0], len(group))
        for number, item in enumerate(group):
            if number not in chosen:
                item.add_marker(pytest.mark.extended(case=True))


def evenly(cases: Iterable[object], usual: int) -> list[ParameterSet]:
    """Return each case as the only argument of a test; all but `usual` of them, evenly spread, are exhaustive."""
    values = list(cases)
    chosen = _spread(usual, len(values))
    return [pytest.param(value, marks=() if number in chosen else RARELY) for number, value in enumerate(values)]


def usually(cases: Iterable[object], *usual: object) -> list[ParameterSet]:
    """Return each case as the only argument of a test; all but these are exhaustive."""
    values = list(cases)
    assert all(value in values for value in usual), "a usual case is not there any more"
    return [pytest.param(value, marks=() if value in usual else RARELY) for value in values]


def _spread(usual: int, count: int) -> set[int]:
    """Return the numbers of so many of `count` cases, the first among them."""
    usual = min(usual, count)
    return {number * count // usual for number in range(usual)}
