"""Families of the usage ledger: who has held the GPUs for how long, worked on them, and used energy."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gpuagent.core.metrics.family import Family, LabeledValue, MetricType, Value, single
from gpuagent.core.metrics.gpu import GPU_LABELS
from gpuagent.core.usage import Amounts, GpuUsage, Holder, UsageFigures

HOLDER_LABELS = ("holder", "user", "unit", "container_name", "pod_namespace", "pod_name", "slurm_job")
"""Labels of a holder; the fields of `Holder` in their order."""

UsageFamily = Family[UsageFigures]


def _labels(gpu: int, uuid: str, holder: Holder) -> tuple[str, ...]:
    return (str(gpu), uuid, *holder)


def _amount(read: Callable[[Amounts], Value]) -> Callable[[UsageFigures], Iterable[LabeledValue]]:
    return lambda figures: ((_labels(one.gpu, one.uuid, one.holder), read(one.amounts)) for one in figures.holders)


def _of_gpu(read: Callable[[GpuUsage], Value]) -> Callable[[UsageFigures], Iterable[LabeledValue]]:
    return lambda figures: (((str(one.gpu), one.uuid), read(one)) for one in figures.gpus)


def _idle_for(figures: UsageFigures) -> Iterable[LabeledValue]:
    return ((_labels(one.gpu, one.uuid, one.holder), one.idle_for_seconds) for one in figures.holders)


def _price(figures: UsageFigures) -> Iterable[LabeledValue]:
    return (((figures.currency,), figures.price_per_gpu_hour),)


def _counter(name: str, text: str, read: Callable[[Amounts], Value]) -> UsageFamily:
    return Family(
        f"gpuagent_usage_{name}_total", MetricType.COUNTER, text, "processes", (*GPU_LABELS, *HOLDER_LABELS),
        _amount(read),
    )  # fmt: skip


USAGE_FAMILIES: tuple[UsageFamily, ...] = (
    _counter("held_seconds", "GPU time held. A second of a GPU is split among its processes by their memory.",
             lambda amounts: amounts.held_seconds),
    _counter("observed_seconds", "Part of the time held in which it was observed whether the holder worked.",
             lambda amounts: amounts.observed_seconds),
    _counter("busy_seconds", "GPU time used: utilization times time, split among the processes by their own.",
             lambda amounts: amounts.busy_seconds),
    _counter("idle_seconds", "Part of the time observed in which the holder was at 0 % on every engine.",
             lambda amounts: amounts.idle_seconds),
    _counter("memory_byte_seconds", "Device memory held, times time.", lambda amounts: amounts.memory_byte_seconds),
    _counter("untouched_memory_byte_seconds",
             "Memory that the allocators of apps with the client took and never gave to a tensor, times time.",
             lambda amounts: amounts.untouched_byte_seconds),
    _counter("energy_joules", "Energy of the GPU, split among its processes by their utilization, else by memory.",
             lambda amounts: amounts.energy_joules),
    Family("gpuagent_usage_idle_duration_seconds", MetricType.GAUGE,
           "Time for which every process of the holder on this GPU has been observed idle; absent while one works.",
           "processes", (*GPU_LABELS, *HOLDER_LABELS), _idle_for),
    Family("gpuagent_usage_idle_limit_seconds", MetricType.GAUGE,
           "Time after which an idle holder is told about (`usage.idle_after`); absent where that is off.",
           "processes", (), single(lambda figures: figures.idle_limit_seconds)),
    Family("gpuagent_usage_gpu_hour_price", MetricType.GAUGE,
           "Price of an hour of one GPU (`usage.price_per_gpu_hour`); absent where there is none.",
           "processes", ("currency",), _price),
    Family("gpuagent_gpu_accounted_seconds_total", MetricType.COUNTER,
           "Time of the GPU that the usage ledger accounts for: the sum over all holders.",
           "processes", GPU_LABELS, _of_gpu(lambda gpu: gpu.accounted_seconds)),
    Family("gpuagent_gpu_busy_seconds_total", MetricType.COUNTER,
           "Utilization of the GPU times time, added up at every reading.",
           "utilization", GPU_LABELS, _of_gpu(lambda gpu: gpu.busy_seconds)),
)  # fmt: skip
