"""The table of all attacks: how often each was tried, how many innocents were hit, how many guilty were ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pytest

ROW = "attack"
"""Name of the property of a test's report that holds a row."""


class Row(NamedTuple):
    """One attack."""

    name: str
    tries: int
    innocents_hit: int
    guilty_ended: int
    guilty_meant: int


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table: a hook of `tests/conftest.py`, which the process that writes the summary has always loaded."""
    reports = [each for kind in ("passed", "failed") for each in terminalreporter.getreports(kind)]
    rows = [Row(*value) for report in reports for name, value in report.user_properties if name == ROW]
    if rows:
        terminalreporter.section("attacks, and who was hit")
        for line in written(rows):
            terminalreporter.write_line(line)


def written(rows: Iterable[Row]) -> Iterator[str]:
    """Yield the lines of the table: tries of one attack together, and a sum."""
    together: dict[str, Row] = {}
    for row in rows:
        together[row.name] = _sum(row.name, together.get(row.name), row)
    if not together:
        return
    total: Row | None = None
    for row in together.values():
        total = _sum("all", total, row)
    assert total is not None
    width = max(map(len, together))
    yield f"{'attack':{width}} | tries | innocent hit | guilty ended"
    for row in (*(together[name] for name in sorted(together)), total):
        ended = f"{row.guilty_ended} of {row.guilty_meant}"
        yield f"{row.name:{width}} | {row.tries:5} | {row.innocents_hit:12} | {ended:>12}"


def _sum(name: str, one: Row | None, other: Row) -> Row:
    if one is None:
        return other._replace(name=name)
    return Row(name, *(a + b for a, b in zip(one[1:], other[1:], strict=True)))
