"""Families of the machine's memory, for nodes whose GPUs share it with the CPU or read it over C2C links.

On other nodes they are absent: an exporter of the machine has them.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

from gpuagent.core.hardware import HostMemory
from gpuagent.core.metrics.family import Family, LabeledValue, MetricType, Value, single
from gpuagent.core.metrics.node import NodeFamily, NodeView


def _host(field: str) -> Callable[[NodeView], Value]:
    read: Callable[[HostMemory], Value] = attrgetter(field)

    def of(view: NodeView) -> Value:
        memory = view.snapshot.node.host_memory if view.snapshot else None
        return None if memory is None else read(memory)

    return of


def _pressure(view: NodeView) -> tuple[LabeledValue, ...]:
    pressure = view.snapshot.node.memory_pressure if view.snapshot else None
    if pressure is None:
        return ()
    return (("some",), pressure.some_ratio), (("all",), pressure.full_ratio)


def _exhaustion(view: NodeView) -> Value:
    outlook = view.snapshot.node.memory_outlook if view.snapshot else None
    return None if outlook is None else outlook.exhaustion_seconds


def _family(name: str, field: str, text: str) -> NodeFamily:
    return Family(f"gpuagent_host_memory_{name}", MetricType.GAUGE, text, "procfs", (), single(_host(field)))


HOST_FAMILIES: tuple[NodeFamily, ...] = (
    _family("total_bytes", "total_bytes", "Memory of the machine."),
    _family("available_bytes", "available_bytes",
            "Memory that can still be given out without swapping, caches that can be given up included."),
    _family("free_bytes", "free_bytes", "Memory that nobody uses."),
    _family("page_cache_bytes", "page_cache_bytes", "Files in memory; most of it can be given up."),
    _family("kernel_bytes", "kernel_bytes", "Memory of the kernel that it cannot give up."),
    _family("swap_total_bytes", "swap_total_bytes", "Swap space."),
    _family("swap_free_bytes", "swap_free_bytes", "Free swap space: no memory of a GPU can go there."),
    Family("gpuagent_host_memory_pressure_ratio", MetricType.GAUGE,
           "Share of the last 10 s in which some, or all, programs that could run waited for memory.", "procfs",
           ("waiting",), _pressure),
    Family("gpuagent_host_memory_exhaustion_seconds", MetricType.GAUGE,
           "Time until no memory can be given out any more at the pace of the last 3 s, where a GPU has none of its "
           "own; absent while it does not fall.", "procfs", (), single(_exhaustion)),
)  # fmt: skip
