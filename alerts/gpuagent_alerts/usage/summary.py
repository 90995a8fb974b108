"""Summaries of the usage ledger: by user, unit, container, namespace, pod, job or GPU, with a price if there is one."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from gpuagent.core.usage import Amounts, HolderKind
from gpuagent_alerts.store.usage import UsageRow

Document = dict[str, Any]
SCHEMA = 1
_HOUR = 3600.0


class GroupBy(StrEnum):
    """What usage is summed up by."""

    USER = "user"
    UNIT = "unit"
    CONTAINER = "container"
    NAMESPACE = "namespace"
    POD = "pod"
    JOB = "job"
    GPU = "gpu"


class Price(NamedTuple):
    """Price of an hour of one GPU."""

    per_gpu_hour: float
    currency: str


def usage_document(
    rows: Iterable[UsageRow],
    by: GroupBy,
    first_day: str,
    wall_seconds: float,
    price: Price | None = None,
    *,
    node: str = "",
    simulated: str = "",
) -> Document:
    """Return who has used the GPUs since the beginning of a day, who held most first; what is no holder comes last."""
    sums: dict[tuple[HolderKind, str], Amounts] = {}
    for row in rows:
        key = _name(row, by)
        sums[key] = sums.get(key, Amounts()).plus(row.amounts)
    order = sorted(sums, key=lambda key: (_RANK[key[0]], not key[1], -sums[key].held_seconds, key[1]))
    return {
        "schema": SCHEMA,
        "node": node,
        "simulated": simulated,
        "by": str(by),
        "since": first_day,
        "time_seconds": wall_seconds,
        "price_per_gpu_hour": None if price is None else price.per_gpu_hour,
        "currency": None if price is None else price.currency,
        "total": _line(functools.reduce(Amounts.plus, sums.values(), Amounts()), price),
        "usage": [{"kind": str(kind), "name": name, **_line(sums[kind, name], price)} for kind, name in order],
    }


_RANK: Mapping[HolderKind, int] = {kind: place for place, kind in enumerate((
    HolderKind.PROCESSES, HolderKind.OTHER, HolderKind.UNKNOWN, HolderKind.NONE, HolderKind.UNOBSERVED,
))}  # fmt: skip


def _name(row: UsageRow, by: GroupBy) -> tuple[HolderKind, str]:
    if by is GroupBy.GPU:
        return HolderKind.PROCESSES, str(row.gpu)
    holder = row.holder
    if holder.kind is not HolderKind.PROCESSES:
        return holder.kind, ""
    if by is GroupBy.POD and holder.pod:
        return holder.kind, f"{holder.namespace}/{holder.pod}"
    return holder.kind, str(getattr(holder, by))


def _line(amounts: Amounts, price: Price | None) -> Document:
    held = amounts.held_seconds
    return {
        "held_seconds": held,
        "observed_seconds": amounts.observed_seconds,
        "busy_seconds": amounts.busy_seconds,
        "idle_seconds": amounts.idle_seconds,
        "memory_byte_seconds": amounts.memory_byte_seconds,
        "untouched_memory_byte_seconds": amounts.untouched_byte_seconds,
        "energy_joules": amounts.energy_joules,
        "cost": None if price is None else held / _HOUR * price.per_gpu_hour,
    }
