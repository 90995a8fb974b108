"""From a snapshot to series: `(family, samples)`, the form in which exporters and rules see the node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from gpuagent.catalogue.alerting import ALERTING_FAMILIES, AlertingFigures
from gpuagent.catalogue.family import Family, Part, Sample
from gpuagent.catalogue.gpu import GPU_FAMILIES
from gpuagent.catalogue.growth import GPU_GROWTH_FAMILIES, GROWTH_FAMILIES
from gpuagent.catalogue.mig import MIG_FAMILIES
from gpuagent.catalogue.node import NODE_FAMILIES, Look
from gpuagent.catalogue.preallocation import recogniser
from gpuagent.catalogue.process import PROCESS_FAMILIES, USED, base_labels, split_top
from gpuagent.catalogue.torch import TORCH_FAMILIES, Allocator
from gpuagent.growth import MemoryKey
from gpuagent.reading import ProcessReading, Snapshot

Series = tuple[Family[Any], list[Sample]]


def series(
    snapshot: Snapshot | None,
    now_seconds: float,
    *,
    simulated: str = "",
    top: int | None = None,
    alerting: AlertingFigures | None = None,
    preallocates: tuple[str, ...] = (),
    only: frozenset[str] | None = None,
) -> Iterator[Series]:
    """Every family that has samples; what has no value has no sample.

    `now_seconds` is CLOCK_BOOTTIME; `top` bounds the processes shown per GPU (None: all, as rules and the leak detector
    need them); `preallocates` are patterns of processes that take the whole GPU by design; `only` are the names that
    are wanted (None: all).
    """
    look = Look(snapshot, now_seconds, simulated, recogniser(preallocates))
    for node_family in _wanted(NODE_FAMILIES, only):
        samples = [Sample(labels, float(value)) for labels, value in node_family.of(look) if value is not None]
        if samples:
            yield node_family, samples
    if alerting is not None:
        for alerting_family in _wanted(ALERTING_FAMILIES, only):
            samples = [
                Sample(labels, float(value)) for labels, value in alerting_family.of(alerting) if value is not None
            ]
            if samples:
                yield alerting_family, samples
    if snapshot is None:
        return
    gpus = [((str(gpu.identity.index), gpu.identity.uuid), gpu) for gpu in snapshot.gpus]
    for gpu_family in _wanted((*GPU_FAMILIES, *MIG_FAMILIES), only):
        samples = [
            Sample(base + labels, float(value))
            for base, gpu in gpus
            for labels, value in gpu_family.of(gpu)
            if value is not None
        ]
        if samples:
            yield gpu_family, samples
    for growth_family in _wanted(GPU_GROWTH_FAMILIES, only):
        yield from _labelled(growth_family, ((base, snapshot.growth.get(MemoryKey(base[1]))) for base, _ in gpus))
    yield from _process_series(snapshot, top, only)


def _wanted(families: Sequence[Family[Part]], only: frozenset[str] | None) -> Sequence[Family[Part]]:
    return families if only is None else [family for family in families if family.name in only]


def _labelled(
    family: Family[Part], parts: Iterable[tuple[tuple[str | None, ...], Part | None]], rest: Iterable[Sample] = ()
) -> Iterator[Series]:
    """The family with a sample of each part that there is; nothing if it has none."""
    samples = [
        Sample(base + labels if labels else base, float(value))
        for base, part in parts
        if part is not None
        for labels, value in family.of(part)
        if value is not None
    ]
    samples += rest
    if samples:
        yield family, samples


def _process_series(snapshot: Snapshot, top: int | None, only: frozenset[str] | None) -> Iterator[Series]:
    wanted = _wanted(PROCESS_FAMILIES, only), _wanted(GROWTH_FAMILIES, only), _wanted(TORCH_FAMILIES, only)
    if not any(wanted):
        return
    shown, rest = split_top(snapshot.processes, top)
    processes = [(base_labels(process), process) for process in shown]
    for family in wanted[0]:
        yield from _labelled(family, processes, rest if family is USED else ())
    if wanted[1] and snapshot.growth:
        growth = [(base, snapshot.growth.get(process.key)) for base, process in processes]
        for growth_family in wanted[1]:
            yield from _labelled(growth_family, growth)
    if wanted[2] and snapshot.clients:
        allocators = [(base, _allocator(snapshot, process)) for base, process in processes]
        for torch_family in wanted[2]:
            yield from _labelled(torch_family, allocators)


def _allocator(snapshot: Snapshot, process: ProcessReading) -> Allocator | None:
    client = snapshot.clients.get(process.pid)
    reading = client.devices.get(process.gpu_uuid) if client else None
    return Allocator(process, client, reading) if client and reading else None
