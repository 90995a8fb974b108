"""Which of many cases of one kind `make test` runs; `make test-all` runs all of them, and CI a sample of the rest."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import pytest
from _pytest.mark import ParameterSet

RARELY = pytest.mark.exhaustive
_ONE_IN = 20


def is_sampled(test: str, commit: str) -> bool:
    """Tell whether an exhaustive test is in the sample of a commit: some 5 % of them, the same ones each time."""
    return zlib.crc32(f"{commit} {test}".encode()) % _ONE_IN == 0


def evenly(cases: Iterable[object], usual: int) -> list[ParameterSet]:
    """Return each case as the only argument of a test; all but `usual` of them, evenly spread, are exhaustive."""
    values = list(cases)
    usual = min(usual, len(values))
    chosen = {number * len(values) // usual for number in range(usual)}
    return [pytest.param(value, marks=() if number in chosen else RARELY) for number, value in enumerate(values)]


def usually(cases: Iterable[object], *usual: object) -> list[ParameterSet]:
    """Return each case as the only argument of a test; all but these are exhaustive."""
    values = list(cases)
    assert all(value in values for value in usual), "a usual case is not there any more"
    return [pytest.param(value, marks=() if value in usual else RARELY) for value in values]
