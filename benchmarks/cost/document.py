"""The measured part of docs/cost.md, between two marks: the rest of the page is written by hand."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


class Section(NamedTuple):
    """A table and what it is of."""

    title: str
    text: str


def write(page: Path, conditions: str, sections: Iterable[Section]) -> None:
    """Put the tables into the page, in place of the last ones.

    Raises:
        ValueError: the page has no marks.
    """
    page.write_text(replaced(page.read_text(encoding="utf-8"), conditions, sections), encoding="utf-8")


def replaced(text: str, conditions: str, sections: Iterable[Section]) -> str:
    """The page's text with other tables. Raises ValueError where it has no marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} with an {END} after it")
    parts = [f"Measured {conditions}", *(f"## {section.title}\n\n{section.text}" for section in sections)]
    return "\n\n".join([f"{before}{BEGIN}", *parts, f"{END}{after}"])
