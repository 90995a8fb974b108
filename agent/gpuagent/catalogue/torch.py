"""Families of what embedded clients tell: the allocator's view of a process's memory on one GPU.

The names are torch's (https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.memory_stats.html).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from gpuagent.catalogue.family import Family, Kind, Labelled, Value
from gpuagent.catalogue.process import PROCESS_LABELS
from gpuagent.embedded import AllocatorReading, ClientReading
from gpuagent.reading import ProcessReading


class Allocator(NamedTuple):
    """One process on one GPU as the driver sees it, and as the allocator inside does."""

    process: ProcessReading
    client: ClientReading
    reading: AllocatorReading


def cached_bytes(reading: AllocatorReading) -> int | None:
    """Taken from the driver and not handed out: what a release can give back at most."""
    if reading.reserved_bytes is None or reading.allocated_bytes is None:
        return None
    return max(0, reading.reserved_bytes - reading.allocated_bytes)


def outside_bytes(process: ProcessReading, reading: AllocatorReading) -> int | None:
    """What the driver counts and torch does not know: context, libraries, other allocators.

    Less than nothing is none: reserved address space may be unmapped (vLLM's sleep, vllm-project/vllm#17117), and the
    two are not read at the same moment.
    """
    if process.used_bytes is None or reading.reserved_bytes is None or process.used_bytes < reading.reserved_bytes:
        return None
    return process.used_bytes - reading.reserved_bytes


def _family(
    name: str, text: str, value: Callable[[Allocator], Value], kind: Kind = Kind.GAUGE
) -> Family[Allocator]:  # fmt: skip
    def of(allocator: Allocator) -> Iterable[Labelled]:
        return (((allocator.client.app,), value(allocator)),)

    return Family(f"gpuagent_torch_{name}", kind, text, "processes", (*PROCESS_LABELS, "app"), of)


def _told(
    name: str, text: str, field: str, kind: Kind = Kind.GAUGE
) -> Family[Allocator]:  # fmt: skip
    """As the client tells it."""
    return _family(name, text, lambda allocator: getattr(allocator.reading, field), kind)


def _info(allocator: Allocator) -> Iterable[Labelled]:
    client = allocator.client
    own = (client.app, client.backend, client.torch_version, client.python_version, client.client_version)
    return ((own, 1),)


TORCH_FAMILIES: tuple[Family[Allocator], ...] = (
    _told("memory_allocated_bytes", "Handed out to tensors.", "allocated_bytes"),
    _told("memory_allocated_peak_bytes", "Most that was handed out since the app last reset its peaks.",
          "allocated_peak_bytes"),
    _told("memory_reserved_bytes", "Taken from the driver by torch's allocator.", "reserved_bytes"),
    _told("memory_reserved_peak_bytes", "Most that was taken from the driver since the app last reset its peaks.",
          "reserved_peak_bytes"),
    _told("memory_active_bytes", "Handed out, or freed and still in use on another stream.", "active_bytes"),
    _told("memory_inactive_split_bytes",
          "Free pieces of segments that are partly in use, which cannot go back; expandable segments do not count.",
          "inactive_split_bytes"),
    _family("memory_cached_bytes", "Reserved and not allocated: what a release can give back at most.",
            lambda allocator: cached_bytes(allocator.reading)),
    _family("memory_outside_bytes",
            "What the driver counts and torch does not: context, libraries, other allocators; absent if below 0.",
            lambda allocator: outside_bytes(allocator.process, allocator.reading)),
    _told("memory_limit_ratio", "Share of the GPU that the process may take, where it has been limited.",
          "limit_ratio"),
    _told("memory_segments", "Pieces that the allocator has taken from the driver.", "segments"),
    _told("alloc_retries_total", "Allocations that succeeded only after the cache was emptied.", "alloc_retries",
          Kind.COUNTER),
    _told("ooms_total", "Allocations that failed for lack of memory.", "ooms", Kind.COUNTER),
    _family("memory_declared_minimum_bytes", "What the app declares it needs at least.",
            lambda allocator: allocator.client.declared_minimum_bytes),
    _family("memory_declared_typical_bytes", "What the app declares it usually needs.",
            lambda allocator: allocator.client.declared_typical_bytes),
    Family("gpuagent_torch_info", Kind.GAUGE, "Allocator and versions; always 1.", "processes",
           (*PROCESS_LABELS, "app", "backend", "torch_version", "python_version", "client_version"), _info),
)  # fmt: skip
"""Labels begin with `PROCESS_LABELS`, then `app`."""
