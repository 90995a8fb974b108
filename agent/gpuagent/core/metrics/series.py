"""From a snapshot to series: `(family, samples)`, the form in which exporters and rules see the node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from gpuagent.core.growth import Growth, MemoryKey, Verdict
from gpuagent.core.metrics.alerting import ALERTING_FAMILIES, AlertingFigures
from gpuagent.core.metrics.clients import TORCH_FAMILIES, Allocator
from gpuagent.core.metrics.family import Family, Labels, Part, Sample, SampleCache
from gpuagent.core.metrics.gpu import GPU_FAMILIES, MIG_FAMILIES
from gpuagent.core.metrics.growth import GPU_GROWTH_FAMILIES, GROWTH_FAMILIES, MIG_GROWTH_FAMILIES, mig_growth
from gpuagent.core.metrics.host import HOST_FAMILIES
from gpuagent.core.metrics.node import NODE_FAMILIES, NodeView
from gpuagent.core.metrics.process import (
    FRAMEWORK_FAMILIES,
    PROCESS_FAMILIES,
    USED,
    FrameworkRecognizer,
    base_labels,
    framework_of,
    framework_recognizer,
    is_dead,
    split_top,
)
from gpuagent.core.snapshot import ClientReading, ProcessReading, Snapshot

Series = tuple[Family[Any], list[Sample]]
ExtraFamilies = tuple[Sequence[Family[Any]], object]
"""Families of a part of the agent's, and what they are read from."""
_NO_LABELS: tuple[Labels, ...] = ((),)
_NO_CLIENTS: Mapping[int, ClientReading] = MappingProxyType({})


def series(
    snapshot: Snapshot | None,
    now_seconds: float,
    *,
    simulated: str = "",
    top: int | None = None,
    alerting: AlertingFigures | None = None,
    preallocates: tuple[str, ...] = (),
    extra_families: Sequence[ExtraFamilies] = (),
    only: frozenset[str] | None = None,
    memo: SampleCache | None = None,
) -> Iterator[Series]:
    """Yield every family that has samples; what has no value has no sample.

    `now_seconds` is CLOCK_BOOTTIME; `top` bounds the processes shown per GPU (None: all, as rules and the leak detector
    need them); `preallocates` are patterns of processes that take the whole GPU by design; `extra_families` are
    families of other parts of the agent; `only` are the names that are wanted (None: all); `memo` is kept by the caller
    who reads series again.
    """
    memo = SampleCache() if memo is None else memo
    memo.begin()
    view = NodeView(snapshot, now_seconds, simulated, framework_recognizer(preallocates))
    yield from _each(_wanted(NODE_FAMILIES, only), _NO_LABELS, [view], memo)
    yield from _each(_wanted(HOST_FAMILIES, only), _NO_LABELS, [view], memo)
    yield from _each(_wanted(ALERTING_FAMILIES, only), _NO_LABELS, [alerting], memo)
    for families, figures in extra_families:
        yield from _each(_wanted(families, only), _NO_LABELS, [figures], memo)
    if snapshot is None:
        return
    gpus = memo.reuse_equal("gpu", [(str(gpu.identity.index), gpu.identity.uuid) for gpu in snapshot.gpus])
    yield from _each(_wanted((*GPU_FAMILIES, *MIG_FAMILIES), only), gpus, snapshot.gpus, memo)
    growth = [snapshot.growth.get(MemoryKey(gpu.identity.uuid)) for gpu in snapshot.gpus]
    yield from _each(_wanted(GPU_GROWTH_FAMILIES, only), gpus, growth, memo)
    if any(gpu.mig for gpu in snapshot.gpus):
        instances = [mig_growth(gpu, snapshot.growth) for gpu in snapshot.gpus]
        yield from _each(_wanted(MIG_GROWTH_FAMILIES, only), gpus, instances, memo)
    yield from _process_series(snapshot, top, only, memo, view.recognize)


def _wanted(families: Sequence[Family[Part]], only: frozenset[str] | None) -> Sequence[Family[Part]]:
    return families if only is None else [family for family in families if family.name in only]


def _each(
    families: Sequence[Family[Part]], bases: Sequence[Labels], parts: Sequence[Part | None], memo: SampleCache
) -> Iterator[Series]:
    """Yield the families that have samples; a part that is None has none."""
    for family in families:
        samples = memo.samples(family, bases, parts)
        if samples:
            yield family, samples


def _process_series(
    snapshot: Snapshot, top: int | None, only: frozenset[str] | None, memo: SampleCache, recognize: FrameworkRecognizer
) -> Iterator[Series]:
    wanted = _wanted(PROCESS_FAMILIES, only), _wanted(GROWTH_FAMILIES, only), _wanted(TORCH_FAMILIES, only)
    frameworks = _wanted(FRAMEWORK_FAMILIES, only)
    if not any((*wanted, frameworks)):
        return
    shown, rest = split_top(snapshot.processes, top, _leaking(snapshot) if top is not None else ())
    shown = memo.reuse_equal("shown", shown)
    bases = memo.reuse_or_make("labels", (shown,), lambda: [base_labels(process) for process in shown])
    for family in wanted[0]:
        samples = memo.samples(family, bases, shown)
        if family is USED:
            samples = [*samples, *rest] if rest else samples
        if samples:
            yield family, samples
    if frameworks:
        clients = snapshot.clients or _NO_CLIENTS
        found = memo.reuse_or_make(
            "frameworks",
            (shown, clients, recognize),
            lambda: [framework_of(each, clients, recognize) for each in shown],
        )
        yield from _each(frameworks, bases, found, memo)
    if wanted[1] and snapshot.growth:
        known = snapshot.growth
        growth = memo.reuse_or_make("growth", (shown, known), lambda: [_growth(known, process) for process in shown])
        yield from _each(wanted[1], bases, growth, memo)
    if wanted[2] and snapshot.clients:
        yield from _each(wanted[2], bases, [_allocator(snapshot, process) for process in shown], memo)


def _leaking(snapshot: Snapshot) -> set[MemoryKey]:
    return {key for key, growth in snapshot.growth.items() if growth.verdict is Verdict.LEAKING}


def _growth(known: Mapping[MemoryKey, Growth], process: ProcessReading) -> Growth | None:
    """Return what is said of a process; nothing of one that has ended, whose GPU may not have been read since."""
    return None if is_dead(process) else known.get(process.key)


def _allocator(snapshot: Snapshot, process: ProcessReading) -> Allocator | None:
    client = snapshot.clients.get(process.pid)
    reading = client.devices.get(process.gpu_uuid) if client else None
    return Allocator(process, client, reading) if client and reading else None
