"""Our states against Prometheus' own: random rules over random series, compared at every step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.alerts.rules import promtool
from tests.alerts.states.generate import parse_failures, write_case
from tests.torture import times

FAST, BATCH = 10, 10


@pytest.mark.needs("promtool")
def test_states_are_prometheus_states_at_every_step(tmp_path: Path) -> None:
    """Ten seeded rule files: pending, firing, values and annotations are Prometheus' at each evaluation."""
    _compare(tmp_path, range(FAST))


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.needs("promtool")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(FAST, times(50, 500), BATCH))
def test_so_they_are_with_other_seeds(first: int, tmp_path: Path) -> None:
    """Ten more; fifty with the first ten in all tests, five hundred under torture."""
    _compare(tmp_path, range(first, first + BATCH))


def _compare(folder: Path, seeds: range) -> None:
    cases = [write_case(folder, seed) for seed in seeds]
    reports = promtool.run_unit_tests([case.tests for case in cases])
    wrong = [
        f"{case.tests.name}:\n{case.rules.read_text()}\nwe: {case.failures or 'no failure'}\nit: {report[:3000]}"
        for case in cases
        if parse_failures(report := reports[case.tests]) != case.failures
    ]
    assert not wrong, "\n\n".join(wrong[:3])
    # Cases in which nothing fires would prove nothing.
    assert sum(case.told for case in cases) > sum(case.steps for case in cases) / 2
