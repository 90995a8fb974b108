"""What the documentation quotes, the program says."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
VARIES = "..."
"""Stands in a quotation for what differs from case to case."""
SHORTEST = 4
"""A piece with fewer letters proves nothing."""


@functools.cache
def texts() -> str:
    """Every string of the program, the pieces of one f-string with a NUL between them, and the shipped rules."""
    sources = [
        path for root in ("agent", "alerts", "exporters", "client", "simulator") for path in (ROOT / root).rglob("*.py")
    ]
    found = [text for path in sources for text in strings(ast.parse(path.read_text()))]
    rules = (ROOT / "alerts/gpuagent_alerts/shipped/gpuagent.rules.yaml").read_text()
    return "\n".join([*found, rules])


def strings(tree: ast.AST) -> Iterator[str]:
    """Constants, whole; f-strings with what varies left out."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "\0".join(part.value if isinstance(part, ast.Constant) else "" for part in node.values)  # type: ignore[misc]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.Constant) and isinstance(node.value, bytes):
            yield node.value.decode("latin-1")


def quotations() -> Iterator[str]:
    """Lines that begin with `>`, and the first column of the tables of reasons."""
    in_reasons = False
    for line in PAGE.read_text().splitlines():
        if line.startswith("> "):
            yield line[2:]
        in_reasons = (in_reasons or line.startswith("| reason |")) and line.startswith("|")
        if in_reasons and not line.startswith(("| reason |", "|---")):
            yield from re.findall(r"`([^`]+)`", line.split(" | ")[0].removeprefix("| "))


def missing(quotation: str) -> list[str]:
    """Pieces between the dots that no string of the program has."""
    pieces = [piece.strip() for piece in quotation.split(VARIES)]
    return [piece for piece in pieces if len(piece) >= SHORTEST and piece not in texts()]


@pytest.mark.slow
def test_messages_are_the_programs() -> None:
    """Whoever searches the page for what stands on the screen finds it."""
    assert {quotation: pieces for quotation in quotations() if (pieces := missing(quotation))} == {}


@pytest.mark.slow
def test_quotations_are_looked_at() -> None:
    """The page has them, and a message that nobody says is noticed."""
    assert len(set(quotations())) > 60
    assert missing("the GPU ... is on fire") == ["is on fire"]


def test_every_symptom_has_a_section() -> None:
    """The table at the top leads to a heading each, and no section is left out of it."""
    text = PAGE.read_text()
    linked = re.findall(r"\| \[([^]]+)\]\(#([a-z0-9-]+)\) \|", text)
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert [name for name, _ in linked] == headings
    assert [anchor for _, anchor in linked] == [name.lower().replace(" ", "-") for name in headings]
