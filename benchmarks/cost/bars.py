"""What was promised, what was measured, and whether the one keeps the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Bar(NamedTuple):
    """One row. `met` is None where there is no bar, or nothing could be measured."""

    what: str
    measured: str
    bar: str = ""
    met: bool | None = None


def at_most(what: str, value: float, most: float, form: str) -> Bar:
    """`form` writes both numbers, as in "{:.1f} ms"."""
    return Bar(what, form.format(value), f"at most {form.format(most)}", value <= most)


def at_least(what: str, value: float, least: float, form: str) -> Bar:
    """The same the other way round."""
    return Bar(what, form.format(value), f"at least {form.format(least)}", value >= least)


def absent(what: str, bar: str, why: str) -> Bar:
    """What could not be measured here."""
    return Bar(what, f"not measured: {why}", bar)


def table(rows: Iterable[Bar]) -> str:
    """In Markdown, which a terminal shows as well."""
    said = {True: "met", False: "**not met**", None: ""}
    return markdown(("what", "measured", "bar", ""), [(row.what, row.measured, row.bar, said[row.met]) for row in rows])


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with columns as wide as their widest cell."""
    cells = [tuple(head), *map(tuple, rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in cells
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])
