"""Families of the leak detector: of a process on a GPU, of a GPU as a whole, and of a MIG instance as a whole.

A figure that has no value has no series: what does not grow is never full. Once a leak is told, its growth is there
until it is over, so that an alert that multiplies it in does not come and go: of growth that has stopped, the pace that
it had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from gpuagent.core.growth import DetectorLoad, Growth, MemoryKey, Verdict
from gpuagent.core.metrics.family import Family, LabeledValue, MetricType, Value, single
from gpuagent.core.metrics.gpu import GPU_LABELS, INSTANCE_LABELS, instance_profile
from gpuagent.core.metrics.process import PROCESS_LABELS
from gpuagent.core.snapshot import GpuReading

GrowthFamily = Family[Growth]


def _slope(growth: Growth) -> Value:
    if growth.slope is not None:
        return growth.slope.value
    return 0.0 if growth.verdict is Verdict.LEAKING else None


def _since(growth: Growth) -> Value:
    return growth.since_seconds if growth.verdict is Verdict.LEAKING else None


def _verdict(growth: Growth) -> Iterable[LabeledValue]:
    return (((str(growth.verdict).replace(" ", "_"),), 1),)


def _evidence(growth: Growth) -> Iterable[LabeledValue]:
    return [((str(evidence),), 1) for evidence in growth.evidence_told]


def _families(prefix: str, labels: tuple[str, ...], whose: str) -> tuple[GrowthFamily, ...]:
    def family(name: str, text: str, of: Callable[[Growth], Iterable[LabeledValue]], *more: str) -> GrowthFamily:
        return Family(f"{prefix}_memory_{name}", MetricType.GAUGE, text, "processes", (*labels, *more), of)

    return (
        family("leak_suspected", f"1 while the memory {whose} is taken to leak, by the configured sensitivity.",
               single(lambda growth: growth.verdict is Verdict.LEAKING)),
        family("verdict", "What the history of the memory amounts to; always 1: learning, steady, growing, cached, "
               "leaking, levelled_off.", _verdict, "verdict"),
        family("growth_bytes_per_second", "How fast the floor of the memory rises; of growth that has stopped because "
               "the memory is full, how fast it did.", single(_slope)),
        family("exhaustion_seconds", "Time until the memory is full at this pace, 0 while it is; absent when it will "
               "not come.",
               single(lambda growth: growth.exhaustion.value if growth.exhaustion else None)),
        family("leak_since_seconds", "Unix time at which the leak began; absent while there is none.",
               single(_since)),
        family("fast_exhaustion_seconds", "Time until the memory is full, while growth would fill it within minutes: "
               "told at once, and not yet a leak.",
               single(lambda growth: growth.fast_exhaustion_seconds if growth.fast else None)),
    )  # fmt: skip


GROWTH_FAMILIES: tuple[GrowthFamily, ...] = (
    *_families("gpuagent_process", PROCESS_LABELS, "of the process"),
    Family(
        "gpuagent_process_memory_leak_evidence",
        MetricType.GAUGE,
        "1 for each standard that this leak has met, for as long as it lasts: confirmed, allocator, strict, balanced, "
        "sensitive.",
        "processes",
        (*PROCESS_LABELS, "evidence"),
        _evidence,
    ),
)
"""Labels begin with `PROCESS_LABELS`."""

GPU_GROWTH_FAMILIES: tuple[GrowthFamily, ...] = _families(
    "gpuagent_gpu", GPU_LABELS, "of a process on the GPU, or of no process,"
)
"""Labels begin with `GPU_LABELS`."""


class InstanceGrowth(NamedTuple):
    """What is said of one MIG instance as a whole, with its labels."""

    instance: str
    profile: str
    growth: Growth


MigGrowth = tuple[InstanceGrowth, ...]
"""Growth of one GPU's instances."""


def mig_growth(gpu: GpuReading, growth: Mapping[MemoryKey, Growth]) -> MigGrowth | None:
    """Return the growth of each instance once, however many compute instances share it; None for a GPU without any."""
    if not gpu.mig:
        return None
    profiles = {one.gpu_instance_id: instance_profile(one) for one in reversed(gpu.mig)}
    found = (
        (number, profile, growth.get(MemoryKey(gpu.identity.uuid, 0, number))) for number, profile in profiles.items()
    )
    return tuple(InstanceGrowth(str(number), profile, said) for number, profile, said in found if said is not None)


def _of_instances(family: GrowthFamily) -> Family[MigGrowth]:
    """Return the same figure of each instance. Its labels follow those of the instance."""

    def of(instances: MigGrowth) -> Iterable[LabeledValue]:
        return [
            ((one.instance, one.profile, *labels), value)
            for one in instances
            for labels, value in family.of(one.growth)
        ]

    return Family(family.name, family.kind, family.help, family.collector, family.labels, of)


MIG_GROWTH_FAMILIES: tuple[Family[MigGrowth], ...] = tuple(
    map(_of_instances, _families("gpuagent_mig", GPU_LABELS + INSTANCE_LABELS, "of a process in the MIG instance"))
)
"""Labels begin with `GPU_LABELS` and `INSTANCE_LABELS`."""

DETECTOR_FAMILIES: tuple[Family[DetectorLoad], ...] = (
    Family("gpuagent_leak_histories", MetricType.GAUGE, "Processes and GPUs whose memory the leak detector remembers.",
           "nvml", (), single(lambda watching: watching.histories)),
    Family("gpuagent_leak_histories_refused_total", MetricType.COUNTER,
           "Processes that the leak detector had no room for, since the agent started.",
           "nvml", (), single(lambda watching: watching.refused)),
)  # fmt: skip
"""Families of the detector as a whole."""
