"""Every claim of the threat model is shown by a test that exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))


@pytest.mark.slow
def test_the_tests_are_there() -> None:
    """A test that was renamed or removed takes its claim along."""
    found = set()
    for path in {path for path, _ in NAMED}:
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        found |= {(path, node.name) for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}

    assert NAMED
    assert [named for named in NAMED if named not in found] == []


def test_every_row_has_one() -> None:
    """What stands under `cannot` is shown by something."""
    tables = re.findall(r"^\| cannot \| shown by \|\n\|[-|]+\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE)

    assert len(tables) == 2
    assert [row for table in tables for row in table.splitlines() if "::test_" not in row] == []
