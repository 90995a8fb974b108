"""GPM: metrics between two samples."""

from __future__ import annotations

from typing import Any

import pynvml
import pytest

from tests.simulator.conftest import OpenNode, Stage

WORKING = """
gpus:
  - model: h100
    gpm: {sm_occupancy: 33, dram: {shape: ramp, rate: 10}}
    pcie: {transmit: {shape: ramp, rate: 4MiB}, receive: 0}
    nvlink: {links: 2, transmit: {shape: ramp, rate: 1MiB}, receive: 0}
    processes: [{name: a, memory: 1GiB, utilization: {sm: 50}}]
"""


def _metrics(first: Any, second: Any, *ids: int) -> list[float | None]:
    request = pynvml.c_nvmlGpmMetricsGet_t()
    request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    request.numMetrics = len(ids)
    request.sample1, request.sample2 = first, second
    for position, metric in enumerate(ids):
        request.metrics[position].metricId = metric
    pynvml.nvmlGpmMetricsGet(request)
    answers = request.metrics[: len(ids)]
    return [None if answer.nvmlReturn else answer.value for answer in answers]


def _sample(stage: Stage) -> Any:
    return pynvml.nvmlGpmSampleGet(stage.handle(), pynvml.nvmlGpmSampleAlloc())


def test_metrics_between_two_samples(open_node: OpenNode) -> None:
    """Percentages are the mean of both samples, rates the bytes gained over the time between."""
    stage = open_node(WORKING)
    first = _sample(stage)
    stage.clock.advance(2)
    second = _sample(stage)

    assert pynvml.nvmlGpmQueryDeviceSupport(stage.handle()).isSupportedDevice == 1
    assert _metrics(first, second, 1, 3, 10) == [50, 33, 10]
    assert _metrics(first, second, 20, 21, 61, 60) == [4, 0, 2, 0]


def test_a_metric_that_there_is_not_fails_alone(open_node: OpenNode) -> None:
    """Each metric has a code of its own."""
    stage = open_node(WORKING)
    first, second = _sample(stage), _sample(stage)

    assert _metrics(first, second, 30, 2) == [None, 46]


def test_an_empty_or_freed_sample_is_refused(open_node: OpenNode) -> None:
    """Nothing can be told of a sample that was never taken, or is no more."""
    stage = open_node(WORKING)
    taken, empty = _sample(stage), pynvml.nvmlGpmSampleAlloc()

    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        _metrics(empty, taken, 1)
    pynvml.nvmlGpmSampleFree(taken)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        _metrics(taken, taken, 1)


def test_a_gpu_without_gpm_says_so(open_node: OpenNode) -> None:
    """Before Hopper there is none."""
    stage = open_node("gpus: [{model: a100}]")

    assert pynvml.nvmlGpmQueryDeviceSupport(stage.handle()).isSupportedDevice == 0
    with pytest.raises(pynvml.NVMLError_NotSupported):
        _sample(stage)


def test_by_gpu_instance(open_node: OpenNode) -> None:
    """Under MIG a sample is taken of one GPU instance, by the parent's handle."""
    stage = open_node(
        """
gpus:
  - model: h100
    mig:
      - {gpu_instance: 1, profile: 3g.40gb, memory: 39GiB}
      - {gpu_instance: 2, profile: 3g.40gb, memory: 39GiB}
    processes:
      - {name: a, memory: 1GiB, gpu_instance: 2, utilization: {sm: 80}}
"""
    )
    pairs = {
        instance: [pynvml.nvmlGpmMigSampleGet(stage.handle(), instance, pynvml.nvmlGpmSampleAlloc()) for _ in range(2)]
        for instance in (1, 2)
    }

    assert [_metrics(*pairs[instance], 1) for instance in (1, 2)] == [[0], [80]]
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlGpmMigSampleGet(stage.handle(), 7, pynvml.nvmlGpmSampleAlloc())
