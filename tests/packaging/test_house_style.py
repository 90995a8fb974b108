"""Rules of this repository that no linter knows."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE_ROOTS = ("agent", "exporters", "alerts", "client", "simulator", "benchmarks", "tests")
MAX_LINES = 500
"""80 to 400 as a rule: `scripts/house` prints those above."""


def modules(*roots: str) -> Iterator[Path]:
    """Every Python file below these folders."""
    for root in roots:
        yield from sorted((ROOT / root).rglob("*.py"))


def undocumented_tests(source: str) -> list[str]:
    """Names of the tests in a module that do not say what they promise."""
    return [
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not ast.get_docstring(node)
    ]


def test_every_root_is_checked() -> None:
    """The checks below look at files: a renamed folder must not make them pass on nothing."""
    assert all(list(modules(root)) for root in SOURCE_ROOTS)


def test_modules_are_short() -> None:
    """A module that is too long to read in one sitting is split (tests too)."""
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in modules(*SOURCE_ROOTS)}

    assert {path: lines for path, lines in lengths.items() if lines > MAX_LINES} == {}


@pytest.mark.slow
def test_every_test_says_what_it_promises() -> None:
    """A failing test is read by its docstring first, so each has one, methods too."""
    missing = {str(path.relative_to(ROOT)): undocumented_tests(path.read_text()) for path in modules("tests")}

    assert {path: names for path, names in missing.items() if names} == {}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def test_a():\n    pass", ["test_a"]),
        ("class TestB:\n    async def test_b(self):\n        pass", ["test_b"]),
        ('def test_c():\n    """PROC-02: gone is gone."""', []),
        ("def helper():\n    pass", []),
    ],
    ids=["function", "method", "documented", "helper"],
)
def test_a_test_without_a_docstring_is_found(source: str, found: list[str]) -> None:
    """The check above sees functions and methods, and leaves helpers alone."""
    assert undocumented_tests(source) == found


def test_every_test_folder_is_a_package() -> None:
    """Two modules of one name in two folders need packages around them to be told apart."""
    folders = {path.parent for path in modules("tests") if path.name.startswith("test_")}

    assert {folder for folder in folders if not (folder / "__init__.py").exists()} == set()
