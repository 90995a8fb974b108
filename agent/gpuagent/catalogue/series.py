"""From a snapshot to series: `(family, samples)`, the form in which exporters and rules see the node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gpuagent.catalogue.alerting import ALERTING_FAMILIES, AlertingFigures
from gpuagent.catalogue.family import Family, Part, Sample
from gpuagent.catalogue.gpu import GPU_FAMILIES
from gpuagent.catalogue.mig import MIG_FAMILIES
from gpuagent.catalogue.node import NODE_FAMILIES, Look
from gpuagent.catalogue.preallocation import recogniser
from gpuagent.catalogue.process import PROCESS_FAMILIES, USED, ProcessFamily, base_labels, split_top
from gpuagent.reading import Snapshot

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
    process_families = _wanted(PROCESS_FAMILIES, only)
    if process_families:
        yield from _process_series(snapshot, top, process_families)


def _wanted(families: Sequence[Family[Part]], only: frozenset[str] | None) -> Sequence[Family[Part]]:
    return families if only is None else [family for family in families if family.name in only]


def _process_series(snapshot: Snapshot, top: int | None, families: Sequence[ProcessFamily]) -> Iterator[Series]:
    shown, rest = split_top(snapshot.processes, top)
    processes = [(base_labels(process), process) for process in shown]
    for family in families:
        samples = [
            Sample(base + labels if labels else base, float(value))
            for base, process in processes
            for labels, value in family.of(process)
            if value is not None
        ]
        if family is USED:
            samples += rest
        if samples:
            yield family, samples
