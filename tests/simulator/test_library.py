"""The library as a whole: life, handles, and every symbol an agent asks for."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import pynvml
import pytest

from gpuagent_simulator.library import SYMBOLS
from tests.simulator.conftest import OpenNode

_ON_NODE = """
InitWithFlags Init_v2 Shutdown ErrorString SystemGetDriverVersion SystemGetNVMLVersion
SystemGetCudaDriverVersion GpmQueryDeviceSupport GpmSampleAlloc GpmSampleFree GpmSampleGet
GpmMigSampleGet GpmMetricsGet EventSetCreate EventSetWait_v2 EventSetFree DeviceRegisterEvents
DeviceIsMigDeviceHandle
"""
_ON_DEVICE = """
Count_v2 HandleByIndex_v2 HandleByUUID HandleByPciBusId_v2 Index MinorNumber Name UUID Serial
PciInfo_v3 Brand Architecture CudaComputeCapability VbiosVersion PersistenceMode ComputeMode
MemoryInfo_v2 MemoryInfo BAR1MemoryInfo UtilizationRates EncoderUtilization DecoderUtilization
JpgUtilization OfaUtilization TemperatureV Temperature TemperatureThreshold MarginTemperature
PowerUsage EnforcedPowerLimit PowerManagementLimit PowerManagementDefaultLimit
PowerManagementLimitConstraints TotalEnergyConsumption PerformanceState ClockInfo MaxClockInfo
NumFans FanSpeed_v2 FanSpeed CurrentClocksEventReasons CurrentClocksThrottleReasons
CurrPcieLinkGeneration MaxPcieLinkGeneration CurrPcieLinkWidth MaxPcieLinkWidth PcieReplayCounter
EccMode TotalEccErrors MemoryErrorCounter SramEccErrorStatus RemappedRows RowRemapperHistogram
RetiredPages RetiredPages_v2 RetiredPagesPendingStatus NvLinkState NvLinkVersion NvLinkErrorCounter
FieldValues SupportedEventTypes MigMode MaxMigDeviceCount MigDeviceHandleByIndex
DeviceHandleFromMigDeviceHandle GpuInstanceId ComputeInstanceId Attributes_v2
ComputeRunningProcesses_v3 GraphicsRunningProcesses_v3 MPSComputeRunningProcesses_v3
ComputeRunningProcesses_v2 GraphicsRunningProcesses_v2 MPSComputeRunningProcesses_v2
RunningProcessDetailList ProcessUtilization ProcessesUtilizationInfo AccountingMode AccountingPids
AccountingStats
"""
ASKED_FOR = {f"nvml{name}" for name in _ON_NODE.split()} | {f"nvmlDeviceGet{name}" for name in _ON_DEVICE.split()}


def _code(call: Any, *args: Any) -> int:
    with pytest.raises(pynvml.NVMLError) as caught:
        call(*args)
    return int(caught.value.value)


def test_every_symbol_is_there() -> None:
    """What an agent can ask for is answered, if only with NOT_SUPPORTED."""
    assert not ASKED_FOR - SYMBOLS


def test_unknown_symbol_is_function_not_found(open_node: OpenNode) -> None:
    """GPU-09: a symbol that the library lacks is FUNCTION_NOT_FOUND, as with a real one."""
    stage = open_node()

    assert _code(pynvml.nvmlDeviceGetBoardId, stage.handle()) == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
    assert not hasattr(stage.node.library, "__wrapped__")


def test_nothing_is_answered_before_init_and_after_shutdown(open_node: OpenNode) -> None:
    """Between init and shutdown alone is there an answer; one shutdown undoes one init."""
    stage = open_node(initialize=False)
    uninitialized = pynvml.NVML_ERROR_UNINITIALIZED

    assert _code(pynvml.nvmlDeviceGetCount) == uninitialized
    assert _code(pynvml.nvmlShutdown) == uninitialized
    pynvml.nvmlInit()
    pynvml.nvmlInit()
    handle = stage.handle()
    pynvml.nvmlShutdown()
    assert pynvml.nvmlDeviceGetCount() == 2
    pynvml.nvmlShutdown()
    assert _code(pynvml.nvmlDeviceGetName, handle) == uninitialized


def test_versions_and_error_texts(open_node: OpenNode) -> None:
    """The scenario says which driver it is; codes have the driver's words."""
    open_node("{driver: '575.1', cuda: 12090}")

    assert pynvml.nvmlSystemGetDriverVersion() == "575.1"
    assert pynvml.nvmlSystemGetNVMLVersion() == "13.575.1"
    assert pynvml.nvmlSystemGetCudaDriverVersion() == 12090
    assert pynvml.nvmlErrorString(15) == "GPU is lost"
    assert pynvml.nvmlErrorString(9) == "Driver Not Loaded"
    assert pynvml.nvmlErrorString(12345) == "Unknown Error"


def test_a_handle_is_the_same_however_it_was_found(open_node: OpenNode) -> None:
    """By index, uuid or PCI bus id, and from any thread: one GPU has one handle."""
    stage = open_node()
    found = [stage.handle(1)]
    uuid = pynvml.nvmlDeviceGetUUID(found[0])
    bus_id = pynvml.nvmlDeviceGetPciInfo(found[0]).busId
    legacy = pynvml.nvmlDeviceGetPciInfo(found[0]).busIdLegacy
    found.append(pynvml.nvmlDeviceGetHandleByUUID(uuid))
    found.append(pynvml.nvmlDeviceGetHandleByPciBusId(bus_id))
    found.append(pynvml.nvmlDeviceGetHandleByPciBusId(legacy))
    thread = threading.Thread(target=lambda: found.append(stage.handle(1)))
    thread.start()
    thread.join()

    assert len(found) == 5
    assert len({ctypes.addressof(handle.contents) for handle in found}) == 1
    assert ctypes.addressof(stage.handle(0).contents) != ctypes.addressof(found[0].contents)
    assert pynvml.nvmlDeviceGetIndex(found[0]) == 1


def test_what_is_no_device_is_refused(open_node: OpenNode) -> None:
    """NULL, a stray address, an index or uuid that there is not: an answer, never a crash."""
    open_node()
    stray = ctypes.cast(ctypes.pointer(ctypes.c_int(3)), pynvml.c_nvmlDevice_t)
    invalid = pynvml.NVML_ERROR_INVALID_ARGUMENT

    assert _code(pynvml.nvmlDeviceGetName, None) == invalid
    assert _code(pynvml.nvmlDeviceGetName, pynvml.c_nvmlDevice_t()) == invalid
    assert _code(pynvml.nvmlDeviceGetName, stray) == invalid
    assert _code(pynvml.nvmlDeviceGetHandleByIndex, 2) == invalid
    assert _code(pynvml.nvmlDeviceGetHandleByUUID, "GPU-0") == pynvml.NVML_ERROR_NOT_FOUND
    assert _code(pynvml.nvmlDeviceGetHandleByPciBusId, "00:00.0") == pynvml.NVML_ERROR_NOT_FOUND


def test_identity_of_a_gpu(open_node: OpenNode) -> None:
    """What a GPU is, in the structs that pynvml expects."""
    handle = open_node().handle(1)
    pci = pynvml.nvmlDeviceGetPciInfo(handle)

    assert pynvml.nvmlDeviceGetName(handle) == "NVIDIA H100 80GB HBM3"
    assert pynvml.nvmlDeviceGetUUID(handle).startswith("GPU-")
    assert pynvml.nvmlDeviceGetSerial(handle) == "1651220000001"
    assert pynvml.nvmlDeviceGetVbiosVersion(handle) == "96.00.74.00.01"
    assert pynvml.nvmlDeviceGetCudaComputeCapability(handle) == (9, 0)
    assert pynvml.nvmlDeviceGetArchitecture(handle) == pynvml.NVML_DEVICE_ARCH_HOPPER
    assert pynvml.nvmlDeviceGetBrand(handle) == pynvml.NVML_BRAND_NVIDIA
    assert pynvml.nvmlDeviceGetMinorNumber(handle) == 1
    assert pynvml.nvmlDeviceGetPersistenceMode(handle) == 1
    assert pynvml.nvmlDeviceGetComputeMode(handle) == 0
    assert pynvml.nvmlDeviceGetDisplayActive(handle) == 0
    assert (pci.busId, pci.domain, pci.bus, pci.device) == ("00000000:20:00.0", 0, 0x20, 0)
    assert (pci.pciDeviceId, pci.pciSubSystemId) == (0x233010DE, 0x16C110DE)


def test_a_text_that_does_not_fit_is_refused(open_node: OpenNode) -> None:
    """A buffer that is too small gets INSUFFICIENT_SIZE and stays as it was."""
    stage = open_node()
    buffer = ctypes.create_string_buffer(b"untouched", 16)

    code = stage.node.library.nvmlDeviceGetName(stage.handle(), buffer, ctypes.c_uint(16))

    assert code == pynvml.NVML_ERROR_INSUFFICIENT_SIZE
    assert buffer.value == b"untouched"


def test_a_wrong_struct_version_is_refused(open_node: OpenNode) -> None:
    """Versioned structs are checked as the driver does: `version=2` is not `nvmlMemory_v2`."""
    handle = open_node().handle()

    code = _code(pynvml.nvmlDeviceGetMemoryInfo, handle, 2)

    assert code == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH


def test_many_threads_at_once(open_node: OpenNode) -> None:
    """A thread per GPU, while the clock moves on: every answer is whole."""
    stage = open_node("gpus: [{model: h100, count: 4, processes: [{name: a, memory: 1GiB, count: 9}]}]")
    wrong: list[object] = []

    def poll(index: int) -> None:
        handle = stage.handle(index)
        for _ in range(200):
            stage.clock.advance(0.25)
            processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)
            total = sum(process.usedGpuMemory for process in processes)
            if len(processes) != 9 or total != memory.used:
                wrong.append((index, len(processes), total, memory.used))

    threads = [threading.Thread(target=poll, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []
