"""Entry points: GPM, the profiling metrics of Hopper and later, as the difference of two samples."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from gpuagent_simulator.abi import Code, Refusal, address, number, put_pointer, view
from gpuagent_simulator.device import Gpu
from gpuagent_simulator.entry import EntryTable, on_device, on_session
from gpuagent_simulator.faults import Kind
from gpuagent_simulator.models import Feature
from gpuagent_simulator.session import SimulatedSession
from gpuagent_simulator.structs import GpmMetric, GpmMetricsGet, GpmSupport

ENTRIES: EntryTable = {}

MAX_METRICS = 477
_MIB = 1024**2

METRIC_NAMES = {
    1: "graphics",
    2: "sm",
    3: "sm_occupancy",
    4: "integer",
    5: "tensor",
    7: "tensor_half",
    10: "dram",
    11: "fp64",
    12: "fp32",
    13: "fp16",
}
"""Percentages by NVML_GPM_METRIC_*: the keys of a scenario's `gpm`."""

_SHARE_OF_LOAD = {
    "graphics": 1.0,
    "sm": 0.92,
    "sm_occupancy": 0.46,
    "integer": 0.2,
    "tensor": 0.38,
    "tensor_half": 0.36,
    "dram": 0.55,
    "fp64": 0.0,
    "fp32": 0.17,
    "fp16": 0.09,
}
"""What a metric is of the GPU's utilisation where the scenario does not give it: a training job's
rough shape."""


class Reading(NamedTuple):
    """What a sample holds: percentages, and counters in bytes."""

    seconds: float
    percent: dict[int, float]
    counters: dict[int, float]


class GpmSample:
    """A sample that a caller has allocated; empty until the first reading."""

    def __init__(self) -> None:
        self.reading: Reading | None = None


_COUNTERS: dict[int, Callable[[Gpu], float]] = {
    20: lambda gpu: gpu.since_load(gpu.spec.pcie.transmit),
    21: lambda gpu: gpu.since_load(gpu.spec.pcie.receive),
    60: lambda gpu: _nvlink(gpu, gpu.since_load(gpu.spec.nvlink.receive)),
    61: lambda gpu: _nvlink(gpu, gpu.since_load(gpu.spec.nvlink.transmit)),
}


def _nvlink(gpu: Gpu, per_link: float) -> float:
    return per_link * (gpu.spec.nvlink.links - len(gpu.spec.nvlink.inactive))


@on_device(ENTRIES, "nvmlGpmQueryDeviceSupport", mig=True)
def query_device_support(device: Gpu, out: Any) -> None:
    support = view(GpmSupport, out)
    support.isSupportedDevice = Feature.GPM not in device.parent.lacks


@on_session(ENTRIES, "nvmlGpmSampleAlloc")
def sample_alloc(session: SimulatedSession, out: Any) -> None:
    put_pointer(out, session.pointers.issue(GpmSample()))


@on_session(ENTRIES, "nvmlGpmSampleFree")
def sample_free(session: SimulatedSession, sample: Any) -> None:
    session.pointers.withdraw(sample)


@on_device(ENTRIES, "nvmlGpmSampleGet", feature=Feature.GPM, with_session=True)
def sample_get(session: SimulatedSession, gpu: Gpu, sample: Any) -> None:
    session.pointers.resolve(GpmSample, sample).reading = _read(gpu, gpu.engines.percent("gpu"))


@on_device(ENTRIES, "nvmlGpmMigSampleGet", feature=Feature.GPM, with_session=True)
def mig_sample_get(session: SimulatedSession, gpu: Gpu, gpu_instance: Any, sample: Any) -> None:
    wanted = number(gpu_instance)
    if not any(instance.spec.gpu_instance == wanted for instance in gpu.live_instances()):
        raise Refusal(Code.INVALID_ARGUMENT)
    busy = sum(row.load.sm for row in gpu.rows() if row.process.gpu_instance == wanted)
    session.pointers.resolve(GpmSample, sample).reading = _read(gpu, min(100, busy))


def _read(gpu: Gpu, load_percent: float) -> Reading:
    percent = {}
    for metric, name in METRIC_NAMES.items():
        given = gpu.spec.gpm.get(name)
        value = load_percent * _SHARE_OF_LOAD[name] if given is None else gpu.now(given)
        percent[metric] = min(100.0, max(0.0, value))
    counters = {metric: counter(gpu) for metric, counter in _COUNTERS.items()}
    if gpu.faults.find(Kind.GARBAGE_VALUES, gpu.index) is not None:
        percent = dict.fromkeys(percent, math.nan)
    return Reading(gpu.story.now(), percent, counters)


@on_session(ENTRIES, "nvmlGpmMetricsGet")
def metrics_get(session: SimulatedSession, request: Any) -> None:
    """Answer each metric alone: one may fail and another succeed."""
    header = view(GpmMetricsGet, request)
    if header.version != 1:
        raise Refusal(Code.ARGUMENT_VERSION_MISMATCH)
    first = session.pointers.resolve(GpmSample, header.sample1).reading
    second = session.pointers.resolve(GpmSample, header.sample2).reading
    if first is None or second is None or header.numMetrics > MAX_METRICS:
        raise Refusal(Code.INVALID_ARGUMENT)
    where = address(request) + ctypes.sizeof(GpmMetricsGet)
    for metric in (GpmMetric * header.numMetrics).from_address(where):
        value = _between(metric.metricId, first, second)
        metric.nvmlReturn = Code.NOT_SUPPORTED if value is None else Code.SUCCESS
        metric.value = value or 0.0


def _between(metric: int, first: Reading, second: Reading) -> float | None:
    if metric in second.percent:
        return (first.percent[metric] + second.percent[metric]) / 2
    if metric in second.counters:
        elapsed = second.seconds - first.seconds
        gained = second.counters[metric] - first.counters[metric]
        return max(0.0, gained) / elapsed / _MIB if elapsed > 0 else 0.0
    return None
