"""Ask a GPU what the agent itself does not ask, or asks only where another call fails: a capture should outlive that.

Every call here only reads, takes the device and at most a number, and is cheap. nvmlDeviceGetPcieThroughput is none of
them: it blocks for 20 ms by design. Nor is what names a machine or a customer: the platform's serial numbers, the
fabric's identity, certificates.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from gpuagent.driver.nvml.library import Handle, Library, NvmlFailure
from gpuagent_simulator.abi import PROCESS_DETAIL, ProcessDetailList
from gpuagent_simulator.captures.lists import PROCESS_LISTS

_DEVICE = (
    *("AddressingMode", "NumaNodeId", "C2cModeInfoV", "VirtualizationMode", "HostVgpuMode", "BusType", "Architecture"),
    *("Brand", "BoardId", "BoardPartNumber", "MultiGpuBoard", "InforomImageVersion", "VbiosVersion", "IrqNum"),
    *("Index", "MinorNumber", "ModuleId", "NumGpuCores", "MemoryBusWidth", "PciInfo", "Name", "UUID", "Serial"),
    *("CudaComputeCapability", "GspFirmwareVersion", "GspFirmwareMode", "ConfComputeMemSizeInfo", "RepairStatus"),
    *("PersistenceMode", "ComputeMode", "DisplayMode", "DisplayActive", "AccountingMode", "AccountingBufferSize"),
    *("DefaultEccMode", "EccMode", "GpuOperationMode", "MigMode", "MaxMigDeviceCount", "SupportedEventTypes"),
    *("MemoryInfo", "BAR1MemoryInfo", "UtilizationRates", "EncoderUtilization", "DecoderUtilization"),
    *("JpgUtilization", "OfaUtilization", "EncoderStats", "FBCStats", "PerformanceState", "PowerState"),
    *("PowerUsage", "PowerSource", "PowerManagementMode", "PowerManagementLimit", "PowerManagementDefaultLimit"),
    *("PowerManagementLimitConstraints", "EnforcedPowerLimit", "TotalEnergyConsumption", "AdaptiveClockInfoStatus"),
    *("CurrentClocksEventReasons", "CurrentClocksThrottleReasons", "SupportedClocksEventReasons"),
    *("AutoBoostedClocksEnabled",),
    *("NumFans", "FanSpeed", "MarginTemperature", "CurrPcieLinkGeneration", "CurrPcieLinkWidth"),
    *("MaxPcieLinkGeneration", "MaxPcieLinkWidth", "GpuMaxPcieLinkGeneration", "PcieSpeed", "PcieLinkMaxSpeed"),
    *("PcieReplayCounter", "RemappedRows", "RowRemapperHistogram", "RetiredPagesPendingStatus", "DynamicPstatesInfo"),
)
"""After `nvmlDeviceGet`."""
_WITH_NUMBER = (
    *(("Temperature", 0), ("TemperatureV", 0), ("NvLinkVersion", 0), ("NvLinkState", 0)),
    *(("TemperatureThreshold", each) for each in range(8)),
    *((name, each) for name in ("ClockInfo", "MaxClockInfo") for each in range(4)),
)
_ERRORS = tuple((kind, counter) for kind in (0, 1) for counter in (0, 1))
_INSTANCE = (
    *("Name", "UUID", "GpuInstanceId", "ComputeInstanceId", "Attributes", "MemoryInfo", "BAR1MemoryInfo", "Index"),
)
_FIELDS = (
    *(1, 2, 3, 4, 5, 6, 29, 30, 31, 74, 76, 82, 83, 91, 94, *range(142, 146), *range(164, 173), *range(185, 191)),
    *(193, 197, 198, 230, 231, 232, 233, *range(269, 272)),
)
_CAPACITY = 1024
_ALL_KINDS = 3
"""Mode of nvmlDeviceGetRunningProcessDetailList: compute, graphics and MPS in one list."""
_MOST_INSTANCES = 64


def ask_everything(library: Library, handle: Handle) -> None:
    """Ask a GPU, and its MIG devices. What fails is an answer, too."""
    for name in _DEVICE:
        _try(library, f"nvmlDeviceGet{name}", handle)
    for name, argument in _WITH_NUMBER:
        _try(library, f"nvmlDeviceGet{name}", handle, argument)
    for kind, counter in _ERRORS:
        _try(library, "nvmlDeviceGetTotalEccErrors", handle, kind, counter)
    _try(library, "nvmlDeviceGetMemoryInfo", handle, library.constant("nvmlMemory_v2"))
    _try(library, "nvmlDeviceIsMigDeviceHandle", handle)
    _try(library, "nvmlGpmQueryDeviceSupport", handle)
    _try(library, "nvmlDeviceGetFieldValues", handle, list(_FIELDS))
    _ask_lists(library, handle)
    for instance in _instances(library, handle):
        for name in _INSTANCE:
            _try(library, f"nvmlDeviceGet{name}", instance)
        _try(library, "nvmlDeviceGetMemoryInfo", instance, library.constant("nvmlMemory_v2"))
        _try(library, "nvmlDeviceIsMigDeviceHandle", instance)
        _ask_lists(library, instance)


def _try(library: Library, name: str, *args: Any) -> Any:
    """Call a wrapper of pynvml's; None where that fails, in the driver or in the wrapper itself."""
    with suppress(NvmlFailure, TypeError, AttributeError, ValueError):
        return library.call(name, *args)
    return None


def _instances(library: Library, handle: Handle) -> Iterator[Handle]:
    for slot in range(min(_try(library, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0, _MOST_INSTANCES)):
        found = _try(library, "nvmlDeviceGetMigDeviceHandleByIndex", handle, slot)
        if found is not None:
            yield found


def _ask_lists(library: Library, handle: Handle) -> None:
    """Ask every form of the process list, with room for the longest entries that any driver is known to write."""
    buffer = (ctypes.c_char * (_CAPACITY * PROCESS_DETAIL.size))()
    for symbol in sorted(PROCESS_LISTS):
        if symbol.endswith(("_v2", "_v3")):
            count = ctypes.c_uint(_CAPACITY)
            library.raw(symbol, handle, ctypes.byref(count), buffer)
    request = ProcessDetailList(
        version=ctypes.sizeof(ProcessDetailList) | 1 << 24,
        mode=_ALL_KINDS,
        count=_CAPACITY,
        array=ctypes.addressof(buffer),
    )
    library.raw("nvmlDeviceGetRunningProcessDetailList", handle, ctypes.byref(request))
