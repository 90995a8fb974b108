"""The benchmark of the client works. It judges no time."""

from __future__ import annotations

from benchmarks.client import ClientCost, idle_cost, import_cost, reading_cost, show


def test_every_figure_is_measured() -> None:
    """Nothing in the benchmark has rotted: each part runs, and gives what can be."""
    reading_seconds, line_bytes = reading_cost()
    cpu_ratio, wakeups = idle_cost(0.5, interval_seconds=0.2)

    assert reading_seconds > 0
    assert 100 < line_bytes < 1000
    assert cpu_ratio >= 0
    assert wakeups > 0
    assert import_cost(times=1) > 0


def test_the_table_has_the_units() -> None:
    """A figure without its unit is none."""
    lines = show(ClientCost(1.5e-05, 669, 3e-04, 1.0, 0.03)).splitlines()

    assert [line.split()[-1] for line in lines] == ["us", "bytes", "second", "second", "ms"]
    assert lines[0].split()[-2:] == ["15.0", "us"]
