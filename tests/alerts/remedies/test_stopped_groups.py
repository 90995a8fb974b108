"""Stopped jobs of a shell that ends: who is hung up, among very many groups of others."""

from __future__ import annotations

from collections.abc import Iterator, ValuesView

import pytest

from gpuagent_alerts.remedies.facts.process_scan import ProcessRow, ProcessScan
from gpuagent_alerts.remedies.facts.terminals import in_orphaned_groups
from tests.fakes.proc import FakeProc

INIT, SHELL, OTHER, FLOOD = 1, 50, 60, 2000


class CountedRows(dict[int, ProcessRow]):
    """Processes, and how often one was looked at in passing over all."""

    looks = 0

    def values(self) -> ValuesView[ProcessRow]:  # type: ignore[override]  # it counts
        return ValuesView(_Counting(self))


class _Counting(dict[int, ProcessRow]):
    def __init__(self, rows: CountedRows) -> None:
        super().__init__(rows)
        self._rows = rows

    def __iter__(self) -> Iterator[int]:
        for pid in super().__iter__():
            self._rows.looks += 1
            yield pid


def row(pid: int, parent: int, group: int, state: str = "T", session: int = SHELL) -> ProcessRow:
    """A process of a job."""
    return ProcessRow(pid, "job", state, parent, group, session, 0, -1, pid, frozenset({1001}), 0, (pid,))


def scan_of(*rows: ProcessRow) -> tuple[ProcessScan, CountedRows]:
    """A scan of init and these."""
    proc = FakeProc()
    proc.put(INIT, b"1 (init) S 0 1 1 0 -1 0 " + b"0 " * 10 + b"1 0 1 " + b"0 " * 30,
             status=b"Name:\tinit\nUid:\t0\t0\t0\t0\nNSpid:\t1\nTracerPid:\t0\n")  # fmt: skip
    scan = ProcessScan(proc, lambda: [INIT])
    counted = CountedRows({**scan.rows, **{each.pid: each for each in rows}})
    scan.rows = counted
    return scan, counted


JOB = (row(SHELL, INIT, SHELL, "S"), row(51, SHELL, 51), row(52, 51, 51, "S"))
STOPPED: dict[str, tuple[tuple[ProcessRow, ...], set[int]]] = {
    "a stopped job": (JOB, {51, 52}),
    "a job that runs": ((JOB[0], row(51, SHELL, 51, "S")), set()),
    "another can continue it": ((*JOB, row(OTHER, INIT, OTHER, "S"), row(53, OTHER, 51)), set()),
    "a job of another": ((*JOB, row(OTHER, INIT, OTHER, "S"), row(61, OTHER, 61)), {51, 52}),
    "an orphan before": ((JOB[0], row(51, INIT, 51)), set()),
    "a group that is not told": ((JOB[0], row(51, SHELL, 0)), set()),
}


@pytest.mark.parametrize(("rows", "hung_up"), STOPPED.values(), ids=STOPPED)
def test_who_is_in_a_stopped_group(rows: tuple[ProcessRow, ...], hung_up: set[int]) -> None:
    """KILL-03: a group with a stopped member is hung up where nobody is left who could continue it."""
    scan, _ = scan_of(*rows)
    assert {each.pid for each in in_orphaned_groups(scan, [SHELL])} == hung_up


def test_many_stopped_groups() -> None:
    """Whoever stops thousands of processes, each in a group of its own, makes the look at them no longer than one."""
    flood = [row(pid, OTHER, pid) for pid in range(FLOOD, 2 * FLOOD)]
    scan, counted = scan_of(*JOB, row(OTHER, INIT, OTHER, "S"), *flood)
    assert {each.pid for each in in_orphaned_groups(scan, [SHELL])} == {51, 52}
    assert counted.looks <= 3 * len(counted)
