"""All collectors of a GPU: at which rate, what is carried, and what a failure costs."""

from __future__ import annotations

import dataclasses

import pytest

from gpuagent.core.hardware import Links
from gpuagent.core.snapshot import GpuReading, GpuState
from gpuagent.driver.nvml.driver import COLLECTORS, FAST, SLOW
from gpuagent.driver.nvml.library import NvmlFailure
from gpuagent_simulator.abi import Code
from gpuagent_simulator.faults import FaultKind
from tests.agent.driver.nvml.conftest import Open
from tests.fakes.rig import failing
from tests.tables import table

# A call of each slow collector, whose failure is one of that collector and of no other.
OWN_CALL = {
    "bar1": "nvmlDeviceGetBAR1MemoryInfo",
    "profile": "nvmlGpmSampleGet",
    "thermal": "nvmlDeviceGetMarginTemperature",
    "power": "nvmlDeviceGetEnforcedPowerLimit",
    "clocks": "nvmlDeviceGetClockInfo",
    "pcie": "nvmlDeviceGetCurrPcieLinkWidth",
    "ecc": "nvmlDeviceGetEccMode",
    "nvlink": "nvmlDeviceGetNvLinkState",
}


def test_every_collector_tells_how_it_fared(open_gpu: Open) -> None:
    """EXP-05: once each, at every tick, the slow ones with their last run."""
    bench = open_gpu()
    for slow in (True, False):
        reading = bench.collect(slow=slow).reading
        assert sorted(run.collector for run in reading.runs) == sorted(COLLECTORS)
        assert failing(reading) == {}
        assert all(run.duration_seconds >= 0 for run in reading.runs)


def test_what_is_read_slowly_is_carried(open_gpu: Open) -> None:
    """Between two slow collections the last one is shown, and nothing slow is asked."""
    bench = open_gpu("{model: h100, temperature: {gpu: {shape: ramp, start: 40, rate: 1}}}")
    first = bench.collect(slow=True).reading
    second = bench.collect(5).reading
    third = bench.collect(5, slow=True).reading

    assert first.thermal == second.thermal
    assert first.thermal is not None
    assert third.thermal is not None
    assert (third.thermal.gpu_celsius or 0) - (first.thermal.gpu_celsius or 0) == 10


def test_a_slow_process_list_is_dated_by_both_ends(open_gpu: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """PROC-02: a process that started while the list was under way is between both times, whatever else is slow."""
    bench = open_gpu("{model: h100, processes: [{name: a, memory: 1GiB, from: 12}]}")
    bench.collect(10, slow=True)
    call = bench.library.raw

    def slowly(symbol: str, *arguments: object) -> int:
        bench.clock.advance(3)
        return call(symbol, *arguments)

    began = bench.clock.now()
    monkeypatch.setattr(bench.library, "raw", slowly)
    found = bench.collect(0)
    assert len(found.pids) == 1
    assert began <= found.listed_seconds < began + 2 < found.answered_seconds <= bench.clock.now()


@pytest.mark.parametrize("code", [Code.NO_PERMISSION, Code.NOT_SUPPORTED])
def test_a_process_list_that_is_refused_later_is_a_failure(open_gpu: Open, code: Code) -> None:
    """PROC-11: whoever was told the processes once, and is refused now, does not know that they have gone."""
    bench = open_gpu("{model: h100, processes: [{name: a, memory: 1GiB}]}")
    assert bench.collect(slow=True).reading.processes_known
    bench.fail(FaultKind.ERROR, calls=("nvmlDeviceGet*RunningProcesses*",), code=code)
    refused = bench.collect(5).reading
    assert not refused.processes_known
    assert "refuses to now" in failing(refused)["processes"]


def test_a_refusal_is_asked_again(open_gpu: Open) -> None:
    """PROC-11: an administrator may have given the right meanwhile: a minute later the processes are known again."""
    bench = open_gpu("{model: h100, processes: [{name: a, memory: 1GiB}]}")
    bench.collect(slow=True)
    bench.fail(FaultKind.ERROR, calls=("nvmlDeviceGet*RunningProcesses*",), code=Code.NO_PERMISSION, until=40.0)
    known = [bench.collect(10).reading.processes_known for _ in range(9)]

    assert known[:3] == [False] * 3
    assert known[-2:] == [True] * 2


def test_the_first_collection_reads_everything(open_gpu: Open) -> None:
    """A GPU that has just been opened is not shown by halves."""
    reading = open_gpu().collect(slow=False).reading

    assert None not in (reading.thermal, reading.power, reading.clocks, reading.pcie, reading.ecc)
    assert reading.nvlink


@table("collector", sorted(OWN_CALL))
def test_a_slow_collector_that_fails_shows_nothing_old(open_gpu: Open, collector: str) -> None:
    """EXP-05: what the failing call told is dropped with its failure, and back with its success."""
    bench = open_gpu()
    bench.collect(15, slow=True)
    good = bench.collect(15, slow=True).reading
    bench.fail(FaultKind.ERROR, calls=(OWN_CALL[collector],), code=Code.UNKNOWN)
    bad = bench.collect(15, slow=True).reading
    later = bench.collect().reading
    bench.node.clear()
    again = bench.collect(15, slow=True).reading

    assert failing(bad).keys() == failing(later).keys() == {collector}
    assert OWN_CALL[collector] in failing(bad)[collector]
    assert known(bad) < known(good)
    assert known(later) == known(bad)
    assert (failing(again), known(again)) == ({}, known(good))


def known(reading: GpuReading) -> set[str]:
    """Which values a reading has."""
    found = set()
    for part in ("memory", "profile", "thermal", "power", "clocks", "pcie", "ecc"):
        holder = getattr(reading, part)
        values = {} if holder is None else {f.name: getattr(holder, f.name) for f in dataclasses.fields(holder)}
        found |= {f"{part}.{name}" for name, value in values.items() if value not in (None, ())}
    return found | {f"nvlink.{link.number}" for link in (reading.nvlink or Links()).links} | reading.figures.keys()


def test_a_failure_of_memory_is_one_of_the_gpu(open_gpu: Open) -> None:
    """GPU-08: the state says so, with the reason; what else could be read is shown."""
    bench = open_gpu()
    bench.fail(FaultKind.ERROR, calls=("nvmlDeviceGetMemoryInfo*",), code=Code.UNKNOWN)
    reading = bench.collect().reading

    assert (reading.state, reading.memory) == (GpuState.FAILED, None)
    assert reading.reason == failing(reading)["memory"]
    assert reading.thermal is not None
    assert reading.processes_known


def test_a_lost_gpu_is_raised_out_of_any_collector(open_gpu: Open) -> None:
    """GPU-01: nothing that was read before in this tick is kept."""
    bench = open_gpu()
    bench.fail(FaultKind.ERROR, calls=("nvmlDeviceGetUtilizationRates",), code=Code.GPU_IS_LOST)

    with pytest.raises(NvmlFailure) as caught:
        bench.collect()
    assert caught.value.lost


def test_a_defect_of_a_collector_is_its_own(open_gpu: Open) -> None:
    """EXP-05: even an exception that nobody thought of costs one collector's values and no more."""
    bench = open_gpu()
    bench.device.identity = dataclasses.replace(bench.device.identity, mig_enabled=True)
    del bench.device._states  # every collector that remembers anything fails now
    reading = bench.collect(slow=True).reading

    assert "AttributeError" in failing(reading)["processes"]
    assert reading.power is not None
    assert "power" not in failing(reading)


def test_fast_and_slow_are_apart() -> None:
    """A collector runs at one rate."""
    assert not set(FAST) & set(SLOW)
    by_fields_alone = {"c2c"}
    wanted = "OWN_CALL here names, for each collector of SLOW, a call that it alone makes"
    assert OWN_CALL.keys() | by_fields_alone == SLOW.keys(), wanted
