"""Power and energy."""

from __future__ import annotations

from gpuagent.driver.nvml.power import collect_power
from tests.agent.driver.nvml.conftest import Open


def test_energy_of_a_gpu_without_a_counter(open_gpu: Open) -> None:
    """GPU-09: is power over time, marked as such; nothing is added for a time in which nothing was read."""
    bench = open_gpu("{model: a100, power: {draw: 100}, lacks: [energy]}")
    found = []
    for seconds in (0.0, 10.0, 10.0, 90.0, 10.0):
        bench.clock.advance(seconds)
        power = collect_power(bench.device)
        assert (power.watts, power.energy_joules) == (100, None)
        found.append(power.integrated_energy_joules)

    assert found == [0, 1000, 2000, 2000, 3000]


def test_energy_that_is_counted(open_gpu: Open) -> None:
    """GPU-09: takes the place of an estimate."""
    power = collect_power(open_gpu("{model: a100}").device)

    assert power.energy_joules is not None
    assert power.integrated_energy_joules is None
