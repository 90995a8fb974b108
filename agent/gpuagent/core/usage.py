"""Who has used the GPUs, and how much: the vocabulary of the usage ledger.

A holder is whatever processes have in common that can be billed or asked: user, unit, container, pod and Slurm job.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from gpuagent.core.identity import format_container
from gpuagent.core.snapshot import ProcessReading, ProcessState

LONGEST_SUMMARY_SECONDS = 400 * 86_400.0
"""The farthest that a summary looks back."""
_MOST_NAME = 256
"""Bytes of a name; a Kubernetes container has `namespace/pod/container`."""


class HolderKind(StrEnum):
    """What a row of the ledger stands for."""

    PROCESSES = "processes"
    """Processes with these names; those that have ended and still hold memory are among them."""
    NONE = "none"
    """No process: the GPU was free."""
    UNKNOWN = "unknown"
    """Processes without a known name, memory that no process is listed for, and work that cannot be assigned."""
    OTHER = "other"
    """All holders beyond the number that is told apart."""
    UNOBSERVED = "unobserved"
    """The GPU could not be read."""


class Holder(NamedTuple):
    """One holder. Names are "" where its processes have none."""

    kind: HolderKind = HolderKind.PROCESSES
    user: str = ""
    unit: str = ""
    container: str = ""
    """The container's name where it is known, else the first digits of its id."""
    namespace: str = ""
    pod: str = ""
    job: str = ""


NOBODY = Holder(HolderKind.NONE)
UNKNOWN = Holder(HolderKind.UNKNOWN)
OTHER = Holder(HolderKind.OTHER)
UNOBSERVED = Holder(HolderKind.UNOBSERVED)


class Amounts(NamedTuple):
    """What a holder has used of one GPU."""

    held_seconds: float = 0.0
    observed_seconds: float = 0.0
    """Part of `held_seconds` in which it was observed whether the holder worked."""
    busy_seconds: float = 0.0
    """Utilization times time."""
    idle_seconds: float = 0.0
    """Part of `observed_seconds` in which the holder was observed at 0 %."""
    memory_byte_seconds: float = 0.0
    untouched_byte_seconds: float | None = None
    """Memory that an allocator took and never gave to a tensor, times time; None where no client has told it."""
    energy_joules: float | None = None
    """None where the GPU does not tell its energy."""

    def plus(self, other: Amounts) -> Amounts:
        """Return the sum; what is None on both sides stays None."""
        return Amounts(
            self.held_seconds + other.held_seconds,
            self.observed_seconds + other.observed_seconds,
            self.busy_seconds + other.busy_seconds,
            self.idle_seconds + other.idle_seconds,
            self.memory_byte_seconds + other.memory_byte_seconds,
            _sum(self.untouched_byte_seconds, other.untouched_byte_seconds),
            _sum(self.energy_joules, other.energy_joules),
        )

    def minus(self, other: Amounts) -> Amounts:
        """Return what has come since `other`, which is never below 0; what is None here stays None."""
        return Amounts(
            max(0.0, self.held_seconds - other.held_seconds),
            max(0.0, self.observed_seconds - other.observed_seconds),
            max(0.0, self.busy_seconds - other.busy_seconds),
            max(0.0, self.idle_seconds - other.idle_seconds),
            max(0.0, self.memory_byte_seconds - other.memory_byte_seconds),
            _difference(self.untouched_byte_seconds, other.untouched_byte_seconds),
            _difference(self.energy_joules, other.energy_joules),
        )


def _sum(one: float | None, other: float | None) -> float | None:
    return one if other is None else other if one is None else one + other


def _difference(now: float | None, before: float | None) -> float | None:
    return None if now is None else max(0.0, now - (before or 0.0))


class HolderUsage(NamedTuple):
    """What one holder has used of one GPU, and for how long it has been idle there."""

    gpu: int
    uuid: str
    holder: Holder
    amounts: Amounts
    idle_for_seconds: float | None = None
    """Time for which all its processes on the GPU have been observed idle; None while one is not."""


class GpuUsage(NamedTuple):
    """The GPU's own totals, measured without a look at its holders."""

    gpu: int
    uuid: str
    accounted_seconds: float
    busy_seconds: float


@dataclass(frozen=True, slots=True)
class UsageFigures:
    """The ledger at a moment."""

    holders: tuple[HolderUsage, ...] = ()
    gpus: tuple[GpuUsage, ...] = ()
    price_per_gpu_hour: float | None = None
    currency: str = ""
    idle_limit_seconds: float | None = None
    """Time from which on a holder that is idle is told about; None where that is off."""


def holder_of(process: ProcessReading) -> Holder:
    """Return whose a process is. One that has ended is still whose it was; of an unproven one that is unknown."""
    info = process.former if process.state is ProcessState.DEAD else process.info
    if info is None or process.holder_unproven:
        return UNKNOWN
    container = info.container_name or format_container(info.container_id)
    names = (info.user, info.unit, container, info.namespace, info.pod, info.slurm_job)
    return Holder(HolderKind.PROCESSES, *map(_storable, names))


def _storable(name: str) -> str:
    """Return a name that a database takes: a cgroup may hold bytes that are no UTF-8, and some are long."""
    return (
        name
        if name.isascii() and len(name) <= _MOST_NAME
        else name.encode(errors="replace")[:_MOST_NAME].decode(errors="ignore")
    )
