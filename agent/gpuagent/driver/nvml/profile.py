"""Read GPM: what the SMs, tensor cores, memory and links did between two samples (Hopper and later, without DCGM).

A metric is the difference of two samples more than 100 ms apart (nvml.h). Two samples are kept per GPU or GPU
instance and exchanged at each slow collection, so a value is the mean since the last one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuagent.core.hardware import Profile
from gpuagent.driver.nvml.device import NvmlDevice, is_blank
from gpuagent.driver.nvml.library import SUCCESS, NvmlFailure

_PERCENT = {
    "graphics_active_ratio": 1,
    "sm_active_ratio": 2,
    "sm_occupancy_ratio": 3,
    "tensor_active_ratio": 5,
    "dram_bandwidth_ratio": 10,
    "fp64_active_ratio": 11,
    "fp32_active_ratio": 12,
    "fp16_active_ratio": 13,
}
_MIB_PER_SECOND = {
    "pcie_transmit_bytes_per_second": 20,
    "pcie_receive_bytes_per_second": 21,
    "nvlink_receive_bytes_per_second": 60,
    "nvlink_transmit_bytes_per_second": 61,
}
_WANTED = {**_PERCENT, **_MIB_PER_SECOND}
_LEAST_SECONDS = 0.15


class _Pair:
    """Two samples of one GPU (instance) and the request that compares them; 19 KB, allocated once."""

    def __init__(self, device: NvmlDevice) -> None:
        library = device.library
        self.older = library.call("nvmlGpmSampleAlloc")
        self.newer = library.call("nvmlGpmSampleAlloc")
        self.taken_seconds: float | None = None
        self.request = library.struct("c_nvmlGpmMetricsGet_t")
        self.request.version = library.constant("NVML_GPM_METRICS_GET_VERSION")
        self.request.numMetrics = len(_WANTED)


class _Pairs:
    def __init__(self) -> None:
        self.by_instance: dict[int | None, _Pair] = {}


def collect(device: NvmlDevice, gpu_instance_id: int | None = None) -> Profile | None:
    """Read metrics since the last call; None at the first one and where the GPU has no GPM."""
    if not _supported(device):
        return None
    if gpu_instance_id is None:
        return device.attempt(
            "nvmlGpmSampleGet",
            lambda: _measure(
                device, None, lambda sample: device.library.call("nvmlGpmSampleGet", device.handle, sample)
            ),
        )
    return device.attempt(
        "nvmlGpmMigSampleGet",
        lambda: _measure(
            device,
            gpu_instance_id,
            lambda sample: device.library.call("nvmlGpmMigSampleGet", device.handle, gpu_instance_id, sample),
        ),
    )


def forget(device: NvmlDevice, keep: set[int]) -> None:
    """Free the samples of GPU instances that are gone: an id that comes back is another instance."""
    pairs = device.state(_Pairs).by_instance
    for instance in [key for key in pairs if key is not None and key not in keep]:
        _free(device, pairs.pop(instance))


def close(device: NvmlDevice) -> None:
    """Free all samples. Only while the library is still initialized."""
    pairs = device.state(_Pairs).by_instance
    while pairs:
        _free(device, pairs.popitem()[1])


def _supported(device: NvmlDevice) -> bool:
    support = device.ask("nvmlGpmQueryDeviceSupport")
    return bool(support is not None and support.isSupportedDevice)


def _measure(device: NvmlDevice, instance: int | None, sample: Callable[[Any], object]) -> Profile | None:
    pairs = device.state(_Pairs).by_instance
    pair = pairs.get(instance)
    if pair is None:
        pair = pairs[instance] = _Pair(device)
    now = device.clock.now()
    if pair.taken_seconds is not None and now - pair.taken_seconds < _LEAST_SECONDS:
        return None
    first = pair.taken_seconds is None
    sample(pair.older)  # if this fails, the newer one is still what the next is compared with
    pair.older, pair.newer = pair.newer, pair.older
    pair.taken_seconds = now
    return None if first else _compare(device, pair)


def _compare(device: NvmlDevice, pair: _Pair) -> Profile:
    request = pair.request
    request.sample1, request.sample2 = pair.older, pair.newer
    for position, metric in enumerate(_WANTED.values()):
        request.metrics[position].metricId = metric
    device.library.call("nvmlGpmMetricsGet", request)
    values: dict[str, float] = {}
    for position, name in enumerate(_WANTED):
        entry = request.metrics[position]
        if entry.nvmlReturn != SUCCESS or is_blank(entry.value) or entry.value < 0:
            continue
        if name in _PERCENT:
            values[name] = min(entry.value, 100.0) / 100
        else:
            values[name] = entry.value * 2**20
    return Profile(**values)


def _free(device: NvmlDevice, pair: _Pair) -> None:
    for sample in (pair.older, pair.newer):
        try:
            device.library.call("nvmlGpmSampleFree", sample)
        except NvmlFailure:
            return
