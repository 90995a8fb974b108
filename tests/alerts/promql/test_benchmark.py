"""The benchmark of expressions has not rotted. It judges no time."""

from __future__ import annotations

import pytest
from benchmarks import promql

from gpuagent_alerts.promql.series import SeriesIndex


def test_it_evaluates_what_it_says() -> None:
    """A hundred rules over some 5,000 series, and every pattern has rows to work on."""
    series = promql.families()
    index = SeriesIndex.of(series)
    rules = promql.expressions()

    assert len(rules) == 100
    assert 4500 < sum(len(samples) for _, samples in series) < 5500
    assert {name for rule in rules for name in rule.metric_names} <= set(index.names())


@pytest.mark.exhaustive
@pytest.mark.slow
def test_it_prints_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    """One line each."""
    promql.main(beside_prometheus=False)

    assert len(capsys.readouterr().out.splitlines()) == 4
