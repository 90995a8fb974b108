"""Patterns with `*` for names that a process gives itself: the never-list and the allow lists use them."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest


@pytest.mark.parametrize("stars", [2, 20, 200])
@pytest.mark.parametrize("length", [15, 255, 4096])
def test_no_name_makes_a_pattern_hang(stars: int, length: int) -> None:
    """`*a*a*...*b` on a name of `a` alone is decided: fnmatch makes each part atomic, so nothing is tried twice."""
    assert not fnmatchcase("a" * length, "*a" * stars + "*b")
    assert fnmatchcase("a" * length + "b", "*a" * min(stars, length) + "*b")
