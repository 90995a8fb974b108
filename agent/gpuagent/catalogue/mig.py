"""Families of MIG instances, labelled with their parent GPU.

Memory belongs to the GPU instance and appears once for it, however many compute instances share it; the parent's own
memory families hold the sum, so the two must never be added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gpuagent.catalogue.family import Family, Kind, Labelled, Value
from gpuagent.catalogue.gpu import GPU_LABELS, PROFILE_FIELDS, GpuFamily
from gpuagent.reading import GpuReading, MigInstance

_INFO = ("mig_uuid", "gpu_instance_id", "compute_instance_id", "profile")
INSTANCE_LABELS = ("gpu_instance_id", "profile")
"""Of what belongs to a GPU instance, beside those of its GPU."""


def instance_profile(mig: MigInstance) -> str:
    """Of the GPU instance: compute instances name their own share (`1c.3g.40gb`), and it is what follows."""
    return mig.profile.partition("c.")[2] or mig.profile


def _info(gpu: GpuReading) -> Iterable[Labelled]:
    for mig in gpu.mig:
        yield (mig.uuid, str(mig.gpu_instance_id), str(mig.compute_instance_id), mig.profile), 1


def _once_per_gpu_instance(read: Callable[[MigInstance], Value]) -> Callable[[GpuReading], Iterable[Labelled]]:
    def of(gpu: GpuReading) -> Iterable[Labelled]:
        seen = set()
        for mig in gpu.mig:
            if mig.gpu_instance_id not in seen:
                seen.add(mig.gpu_instance_id)
                yield (str(mig.gpu_instance_id), instance_profile(mig)), read(mig)

    return of


def _memory(name: str, text: str, read: Callable[[MigInstance], Value]) -> GpuFamily:
    labels = GPU_LABELS + INSTANCE_LABELS
    return Family(f"gpuagent_mig_memory_{name}", Kind.GAUGE, text, "mig", labels, _once_per_gpu_instance(read))


def _profile(field: str, text: str) -> GpuFamily:
    def read(mig: MigInstance) -> Value:
        metrics = mig.profile_metrics
        return None if metrics is None else getattr(metrics, field)

    labels = GPU_LABELS + INSTANCE_LABELS
    name = f"gpuagent_mig_profile_{field}"
    return Family(name, Kind.GAUGE, text.replace("GPU", "instance"), "mig", labels, _once_per_gpu_instance(read))


MIG_FAMILIES: tuple[GpuFamily, ...] = (
    Family("gpuagent_mig_info", Kind.GAUGE, "A MIG device of the GPU; always 1.", "mig", GPU_LABELS + _INFO, _info),
    _memory("total_bytes", "Memory of the GPU instance in total.", lambda mig: mig.memory.total_bytes),
    _memory("used_bytes", "Memory of the GPU instance in use.", lambda mig: mig.memory.used_bytes),
    _memory("free_bytes", "Memory of the GPU instance free.", lambda mig: mig.memory.free_bytes),
    *(_profile(field, text) for field, text in PROFILE_FIELDS),
)
