"""Our states against Prometheus' own: random rules over random series, compared at every step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.alerts.rules import promtool
from tests.alerts.states.generate import parse_failures, write_case


@pytest.mark.needs("promtool")
def test_states_are_prometheus_states_at_every_step(tmp_path: Path) -> None:
    """Twenty seeded rule files: pending, firing, values and annotations are Prometheus' at each evaluation."""
    _compare(tmp_path, range(20))


@pytest.mark.slow
@pytest.mark.needs("promtool")
@pytest.mark.timeout(300)
def test_a_hundred_more(tmp_path: Path) -> None:
    """A hundred other seeds."""
    _compare(tmp_path, range(1000, 1100))


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
    assert sum(case.told > case.steps for case in cases) > len(cases) / 2
