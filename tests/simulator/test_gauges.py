"""Gauges and counters of a GPU, and what a model lacks."""

from __future__ import annotations

import ctypes
from typing import Any

import pynvml
import pytest

from gpuagent_simulator.node import SimulatedNode
from tests.fakes.nvml import use
from tests.simulator.conftest import OpenNode, Stage

BUSY = """
gpus:
  - model: h100
    memory: {base_used: 10MiB}
    ecc: {volatile_corrected: {shape: ramp, rate: 2}, aggregate_uncorrected: 7,
          remapped_corrected: 3, remap_pending: 1, recovery_action: 2, sram_threshold_exceeded: 1}
    pcie: {replays: 4, transmit: {shape: ramp, rate: 1000}, receive: 5}
    nvlink: {inactive: [17], transmit: {shape: ramp, rate: 2048}, crc_data_errors: 6}
    clocks: {throttled: {sw_thermal: 1.5}}
    processes: [{name: a, memory: 1GiB, utilization: {sm: 50, memory: 20, decoder: 30, jpeg: 5}}]
"""


def _refused(call: Any, *args: Any) -> bool:
    with pytest.raises(pynvml.NVMLError_NotSupported):
        call(*args)
    return True


def _fields(stage: Stage, *ids: int | tuple[int, int]) -> list[float | None]:
    """Values by the type that the driver says they have; None where a field failed."""
    members = {1: "uiVal", 3: "ullVal", 5: "siVal"}
    values = pynvml.nvmlDeviceGetFieldValues(stage.handle(), list(ids))
    return [getattr(entry.value, members[entry.valueType]) if entry.nvmlReturn == 0 else None for entry in values]


def test_memory_adds_up_in_both_versions(open_node: OpenNode) -> None:
    """NUM-04: total = used + free + reserved; version 1 counts reserved as used."""
    handle = open_node(BUSY).handle()

    v1 = pynvml.nvmlDeviceGetMemoryInfo(handle)
    v2 = pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)

    assert v2.total == v2.used + v2.free + v2.reserved
    assert v2.used == 1024**3 + 10 * 1024**2
    assert (v1.total, v1.used, v1.free) == (v2.total, v2.used + v2.reserved, v2.free)


def test_bar1(open_node: OpenNode) -> None:
    """The BAR1 window has its own three numbers, which add up."""
    bar1 = pynvml.nvmlDeviceGetBAR1MemoryInfo(open_node(BUSY).handle())

    assert (bar1.bar1Total, bar1.bar1Used) == (128 * 1024**3, 1024**2)
    assert bar1.bar1Free == bar1.bar1Total - bar1.bar1Used


def test_utilization_follows_the_processes(open_node: OpenNode) -> None:
    """What is not given is the sum over the processes."""
    handle = open_node(BUSY).handle()
    rates = pynvml.nvmlDeviceGetUtilizationRates(handle)

    assert (rates.gpu, rates.memory) == (50, 20)
    assert pynvml.nvmlDeviceGetEncoderUtilization(handle)[0] == 0
    assert pynvml.nvmlDeviceGetDecoderUtilization(handle) == [30, 167000]
    assert pynvml.nvmlDeviceGetJpgUtilization(handle)[0] == 5
    assert pynvml.nvmlDeviceGetOfaUtilization(handle)[0] == 0


def test_utilization_never_exceeds_100(open_node: OpenNode) -> None:
    """Two processes at 80 % make 100 %, not 160 %."""
    stage = open_node("gpus: [{model: h100, processes: [{name: a, memory: 1, count: 2, utilization: {sm: 80}}]}]")

    assert pynvml.nvmlDeviceGetUtilizationRates(stage.handle()).gpu == 100


def test_temperature_power_and_clocks_follow_the_load(open_node: OpenNode) -> None:
    """A busy GPU is warmer, draws more and runs faster than one at rest."""
    busy = open_node(BUSY).handle()
    seen_busy = [
        pynvml.nvmlDeviceGetTemperature(busy, 0),
        pynvml.nvmlDeviceGetPowerUsage(busy),
        pynvml.nvmlDeviceGetClockInfo(busy, pynvml.NVML_CLOCK_SM),
        pynvml.nvmlDeviceGetCurrentClocksEventReasons(busy),
    ]
    idle = open_node("gpus: [{model: h100}]").handle()
    seen_idle = [
        pynvml.nvmlDeviceGetTemperature(idle, 0),
        pynvml.nvmlDeviceGetPowerUsage(idle),
        pynvml.nvmlDeviceGetClockInfo(idle, pynvml.NVML_CLOCK_SM),
        pynvml.nvmlDeviceGetCurrentClocksEventReasons(idle),
    ]

    assert seen_busy == [52, 359800, 1861, 0]
    assert seen_idle == [32, 70000, 345, 1]


def test_thermal_and_power_limits(open_node: OpenNode) -> None:
    """Thresholds, margins and limits are the model's."""
    handle = open_node(BUSY).handle()

    assert pynvml.nvmlDeviceGetTemperatureV(handle, 0) == 52
    assert [pynvml.nvmlDeviceGetTemperatureThreshold(handle, n) for n in range(4)] == [92, 89, 95, 87]
    assert _refused(pynvml.nvmlDeviceGetTemperatureThreshold, handle, 4)
    assert pynvml.nvmlDeviceGetMarginTemperature(handle) == 89 - 52
    assert pynvml.nvmlDeviceGetPowerManagementLimit(handle) == 700_000
    assert pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) == 700_000
    assert pynvml.nvmlDeviceGetPowerManagementDefaultLimit(handle) == 700_000
    assert pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle) == [200_000, 700_000]
    assert pynvml.nvmlDeviceGetPerformanceState(handle) == 0
    assert pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_MEM) == 2619
    assert pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle) == 0
    assert pynvml.nvmlDeviceGetNumFans(handle) == 0
    assert _refused(pynvml.nvmlDeviceGetFanSpeed, handle)


def test_energy_is_power_over_time(open_node: OpenNode) -> None:
    """The energy counter grows by the watts each second, read once or often."""
    stage = open_node("gpus: [{model: h100, power: {draw: 100}}]")
    handle = stage.handle()

    stage.clock.advance(10)
    after_10 = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    for _ in range(20):
        stage.clock.advance(0.5)
        after_20 = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)

    assert (after_10, after_20) == (1_000_000, 2_000_000)


def test_energy_goes_on_in_a_new_process(open_node: OpenNode) -> None:
    """A process that joins the story in its middle reads the counter as if it had been there all the time."""
    stage = open_node("gpus: [{model: h100, power: {draw: 100}}]")
    stage.clock.advance(10)
    later = SimulatedNode(stage.node.scenario, stage.clock, start=stage.node.scenario_clock.start)

    with use(later.library):
        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetTotalEnergyConsumption(stage.handle()) == 1_000_000


def test_pcie_link(open_node: OpenNode) -> None:
    """Generation, width and replays; the byte counters are field values."""
    stage = open_node(BUSY)
    handle = stage.handle()
    stage.clock.advance(3)

    assert pynvml.nvmlDeviceGetCurrPcieLinkGeneration(handle) == 5
    assert pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle) == 5
    assert pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle) == 16
    assert pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle) == 16
    assert pynvml.nvmlDeviceGetPcieReplayCounter(handle) == 4
    assert _fields(stage, 94, 95, 173, 197, 198) == [4, 0, 0, 3000, 5]


def test_ecc_and_rows(open_node: OpenNode) -> None:
    """Errors by kind and counter, remapped rows, the SRAM verdict."""
    stage = open_node(BUSY)
    handle = stage.handle()
    stage.clock.advance(5)
    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    pynvml.nvmlDeviceGetSramEccErrorStatus(handle, ctypes.byref(status))
    histogram = pynvml.nvmlDeviceGetRowRemapperHistogram(handle)
    rows = pynvml.c_nvmlRemappedRowsInfo_v2_t()
    pynvml.nvmlDeviceGetRemappedRows_v2(handle, ctypes.byref(rows))

    assert pynvml.nvmlDeviceGetEccMode(handle) == [1, 1]
    assert pynvml.nvmlDeviceGetTotalEccErrors(handle, 0, 0) == 10
    assert pynvml.nvmlDeviceGetTotalEccErrors(handle, 1, 1) == 7
    assert pynvml.nvmlDeviceGetMemoryErrorCounter(handle, 0, 0, 2) == 10
    assert pynvml.nvmlDeviceGetMemoryErrorCounter(handle, 0, 0, 0) == 0
    assert pynvml.nvmlDeviceGetRemappedRows(handle) == (3, 0, 1, 0)
    assert (rows.corrActiveRemaps, rows.bPending, rows.bfailureOccurred) == (3, 1, 0)
    assert (histogram.max, histogram.high) == (637, 3)
    assert status.bThresholdExceeded == 1
    assert _fields(stage, 1, 3, 4, 5, 6) == [1, 10, 0, 0, 7]
    assert _fields(stage, 142, 143, 144, 145, 230) == [3, 0, 1, 0, 2]


def test_retired_pages(open_node: OpenNode) -> None:
    """Pages by cause, asked for in two steps, as pynvml does."""
    stage = open_node("gpus: [{model: h100, lacks: [], ecc: {retired_single_bit: 2, retired_pending: 1}}]")
    handle = stage.handle()

    assert pynvml.nvmlDeviceGetRetiredPages(handle, 0) == [0x1000, 0x2000]
    assert pynvml.nvmlDeviceGetRetiredPages(handle, 1) == []
    with_times = pynvml.nvmlDeviceGetRetiredPages_v2(handle, 0)
    assert [page["timestamp"] for page in with_times] == [1_700_000_000_000_000] * 2
    assert pynvml.nvmlDeviceGetRetiredPagesPendingStatus(handle) == 1
    assert _fields(stage, 29, 30, 31) == [2, 0, 1]


def test_nvlink(open_node: OpenNode) -> None:
    """State, version, errors, and bytes by link or summed over all that are up."""
    stage = open_node(BUSY)
    handle = stage.handle()
    stage.clock.advance(10)
    every_link = 0xFFFFFFFF

    assert [pynvml.nvmlDeviceGetNvLinkState(handle, link) for link in (0, 17)] == [1, 0]
    assert pynvml.nvmlDeviceGetNvLinkVersion(handle, 0) == 4
    assert pynvml.nvmlDeviceGetNvLinkErrorCounter(handle, 0, pynvml.NVML_NVLINK_ERROR_DL_CRC_DATA) == 6
    assert _fields(stage, 91, (138, 0), (138, 17), (138, every_link)) == [18, 20, 0, 17 * 20]
    assert _fields(stage, 45, (165, 17), (138, 18), 202) == [6 * 17, 0, None, None]
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetNvLinkState(handle, 18)


def test_newer_links_count_bytes(open_node: OpenNode) -> None:
    """NVLink 5 has fields in bytes, which earlier ones lack."""
    stage = open_node("gpus: [{model: b200, nvlink: {transmit: {shape: ramp, rate: 100}}}]")
    stage.clock.advance(2)

    assert _fields(stage, (202, 3)) == [200]


def test_field_values_fail_alone(open_node: OpenNode) -> None:
    """A field that there is not has its own code; the others have their values and a stamp."""
    stage = open_node(BUSY)
    values = pynvml.nvmlDeviceGetFieldValues(stage.handle(), [186, 9999, 190])

    assert [value.nvmlReturn for value in values] == [0, pynvml.NVML_ERROR_NOT_SUPPORTED, 0]
    assert {value.timestamp for value in values} == {1_700_000_000_000_000}


def test_throttle_times_margins_and_limits_as_fields(open_node: OpenNode) -> None:
    """Nanoseconds, signed degrees and milliwatts, as nvml.h has them."""
    stage = open_node(BUSY)

    assert _fields(stage, 74, 269, 82) == [0, 1_500_000_000, 60]
    assert _fields(stage, 193, 194, 196) == [-3, 0, 2]
    assert _fields(stage, 185, 186, 187, 188, 189, 192) == [359800, 359800, 200e3, 700e3, 700e3, 700e3]


def test_a_consumer_card_lacks_what_it_lacks(open_node: OpenNode) -> None:
    """What the model has not is NOT_SUPPORTED, by call and by field; it has fans instead."""
    stage = open_node("gpus: [{model: rtx-4080-super}]")
    handle = stage.handle()

    for call in (
        pynvml.nvmlDeviceGetSerial,
        pynvml.nvmlDeviceGetEccMode,
        pynvml.nvmlDeviceGetRemappedRows,
        pynvml.nvmlDeviceGetMarginTemperature,
        pynvml.nvmlDeviceGetMigMode,
        pynvml.nvmlDeviceGetRetiredPagesPendingStatus,
    ):
        assert _refused(call, handle)
    assert _refused(pynvml.nvmlDeviceGetNvLinkState, handle, 0)
    assert _refused(pynvml.nvmlDeviceGetTotalEccErrors, handle, 0, 0)
    assert _fields(stage, 1, 82, 91, 142, 230) == [None] * 5
    assert pynvml.nvmlDeviceGetNumFans(handle) == 2
    assert pynvml.nvmlDeviceGetFanSpeed_v2(handle, 1) == pynvml.nvmlDeviceGetFanSpeed(handle)
    assert pynvml.nvmlDeviceGetPerformanceState(handle) == 8
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetFanSpeed_v2(handle, 2)


def test_unified_memory_is_not_told(open_node: OpenNode) -> None:
    """NUM-05: a GPU without memory of its own refuses both versions, yet its processes have some."""
    stage = open_node("gpus: [{model: gb10, processes: [{name: a, memory: 63GiB}]}]")
    handle = stage.handle()

    assert _refused(pynvml.nvmlDeviceGetMemoryInfo, handle)
    assert _refused(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    assert _refused(pynvml.nvmlDeviceGetBAR1MemoryInfo, handle)
    assert _refused(pynvml.nvmlDeviceGetProcessUtilization, handle, 0)
    processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    assert [process.usedGpuMemory for process in processes] == [63 * 1024**3]


def test_ecc_switched_off(open_node: OpenNode) -> None:
    """A GPU that has ECC, but off, tells the mode and no counts."""
    handle = open_node("gpus: [{model: l40s, ecc: {enabled: false}}]").handle()

    assert pynvml.nvmlDeviceGetEccMode(handle) == [0, 0]
    assert _refused(pynvml.nvmlDeviceGetTotalEccErrors, handle, 0, 0)
