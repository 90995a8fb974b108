"""Patterns with `*` for names that a process gives itself: the never-list and the allow lists use them."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest

from gpuagent_alerts.remedies.safeguards.never_list import find_listed


@pytest.mark.parametrize("stars", [2, 20, 200])
@pytest.mark.parametrize("length", [15, 255, 4096])
def test_no_name_makes_a_pattern_hang(stars: int, length: int) -> None:
    """`*a*a*...*b` on a name of `a` alone is decided: fnmatch makes each part atomic, so nothing is tried twice."""
    assert not fnmatchcase("a" * length, "*a" * stars + "*b")
    assert fnmatchcase("a" * length + "b", "*a" * min(stars, length) + "*b")


@pytest.mark.parametrize(
    ("name", "pattern", "listed"),
    [
        ("prodserver", "ProdServer", True),
        ("ProdServer", "prodserver", True),
        ("/opt/PROD/Serve.PY", "serve.py", True),
        ("PRODuction-trai", "production-training", True),
        ("ProdServer", "prod*", True),
        ("/opt/PROD/serve", "/opt/prod/serve", False),
        ("prodserver2", "ProdServer", False),
    ],
)
def test_names_are_compared_without_case(name: str, pattern: str, listed: bool) -> None:
    """KILL-01: an entry spares a program however its name is written; paths are as the file system has them."""
    assert (find_listed([name], [pattern]) is not None) == listed
    assert find_listed([name], [pattern], exact=True) is None
