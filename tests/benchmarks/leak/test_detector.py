"""The detector in the benchmark is given what the agent would give it."""

from __future__ import annotations

import math
from array import array

import pytest
from benchmarks.leak.allocator import MIB
from benchmarks.leak.cost import measure
from benchmarks.leak.detector import judge
from benchmarks.leak.parts import trace_of
from benchmarks.leak.workload import GIB


def steadily(hours: float, mib_per_second: float, begin: float = 20.0 * GIB) -> list[float]:
    """Used bytes every 10 s."""
    return [begin + k * 10 * mib_per_second * MIB for k in range(int(hours * 360))]


def test_a_leak_is_found_and_its_end_is_forecast() -> None:
    """4 MiB a second into 60 free GiB: known before it is over, as growing first, and right to a factor of two."""
    said = judge(trace_of(steadily(4, 4.0), every=10.0), "balanced", client=False)

    (alarm,) = said.leaking
    truth = 60 * GIB / (4 * MIB) - alarm.at_seconds
    assert said.growing[0].at_seconds < alarm.at_seconds
    assert alarm.exhaustion_seconds is not None
    assert 0.5 < alarm.exhaustion_seconds / truth < 2
    assert (said.updates, said.fast) == (1440, [])


def test_the_client_tells_a_leak_from_a_cache() -> None:
    """LEAK-01: the same NVML figures, with torch's flat below them: with a client no leak, without one a leak."""
    trace = trace_of(steadily(4, 4.0), every=10.0)
    trace.samples.allocated = array("d", [10.0 * GIB] * len(trace.samples))

    assert judge(trace, "balanced", client=True).leaking == []
    assert judge(trace, "balanced", client=False).leaking


def test_a_job_without_a_client_is_judged_by_nvml_whatever_is_asked() -> None:
    """Its samples hold the simulated allocator's figures, which nobody would have told."""
    trace = trace_of(steadily(4, 4.0), every=10.0, client=False)
    trace.samples.allocated = array("d", [10.0 * GIB] * len(trace.samples))

    assert judge(trace, "balanced", client=True).leaking


def test_a_known_restart_begins_a_new_history() -> None:
    """LEAK-03: growth by 24 GiB in each of many lives of 100 minutes that is given back is nobody's leak."""
    life = steadily(100 / 60, 1.0)
    used = life * 6
    starts = tuple(number * 6000.0 for number in range(6))

    assert judge(trace_of(used, every=10.0, starts=starts), "sensitive", client=False).leaking == []


def test_a_collapse_is_told_by_the_fast_path() -> None:
    """LEAK-04: 60 GiB in a minute after an hour of rest."""
    used = [20.0 * GIB] * 3600 + [20.0 * GIB + k * GIB for k in range(60)]
    said = judge(trace_of(used, every=1.0), "balanced", client=False)

    assert len(said.fast) == 1
    assert 3600 <= said.fast[0].at_seconds < 3645
    assert said.leaking == []


def test_missing_readings_are_handed_on_as_missing() -> None:
    """LEAK-03: an hour without figures in the middle of a flat line is no growth and no fall."""
    trace = trace_of([20.0 * GIB] * 1440, every=10.0)
    for place in range(500, 860):
        trace.samples.used[place] = math.nan

    assert judge(trace, "sensitive", client=True).leaking == []


@pytest.mark.slow
def test_the_cost_is_measured_and_told() -> None:
    """Per process and tick, and of 4,096 processes; without numpy there is no line to compare with."""
    cost = measure(processes=3, seconds=40)

    assert 0 < cost.mean_seconds <= cost.slowest_tick_seconds
    assert cost.core_share(4096) == cost.mean_seconds * 4096
    told = "\n".join(cost._replace(polyfit_seconds=None).lines())
    assert "us per process and tick" in told
    assert "numpy is not installed" in told
    assert "times as much" in "\n".join(cost._replace(polyfit_seconds=1.0).lines())
