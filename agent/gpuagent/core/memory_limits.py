"""The words of memory limits: what the driver keeps for a cgroup, what of that is ours, and who sets it.

A limit (NVML 13.4, driver 615, cgroup version 2) makes allocations of a cgroup beyond it fail with an out-of-memory
error, and ends nobody (https://docs.nvidia.com/deploy/mps/mpsv3-memory-partitioning.html). It outlives who set it: so
each one that is set here is on record, and nothing else is ever changed or removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple, Protocol

CGROUP_ROOT = "/sys/fs/cgroup"
"""Where the driver wants cgroup version 2 to be mounted, and nowhere else."""
NO_LIMIT_BYTES = 2**64 - 1
"""NVML_DEVICE_MEMORY_LIMIT_MAX."""
GRANULE_BYTES = 2 * 2**20
"""Device memory is handed out in pages of 2 MiB: a limit is a whole number of them."""
LEAST_BYTES = 64 * 2**20
"""No limit is lower: a CUDA context alone takes more."""
ROUNDING_BYTES = 64 * 2**20
"""What the driver may make of a value at most."""
FIRST_DRIVER = 615
"""Driver whose library has the calls."""


class LimitRefused(Exception):
    """A limit is not set or not taken off, and why, in words for people."""


class LimitUnknown(LimitRefused):
    """Nobody knows whether it was done: who was asked has not answered, and may do it still."""


class LimitReading(NamedTuple):
    """What the driver tells of a cgroup on one GPU: its own limit, or that of the nearest cgroup above."""

    soft_bytes: int
    hard_bytes: int
    used_bytes: int

    @property
    def is_none(self) -> bool:
        """Neither limit is set."""
        return self.soft_bytes == 0 and self.hard_bytes >= NO_LIMIT_BYTES


@dataclass(frozen=True, slots=True)
class LimitHolder:
    """For whom a limit is set, and what ends it. All of it goes through the helper as it is."""

    run: str = ""
    """Id of the remedy that has set it."""
    alert: str = ""
    """Fingerprint of the alert whose end ends it; "" where only the end of the process does."""
    owner: str = ""
    """Id of the agent's state: only the agent that has set a limit takes it off."""
    pid: int = 0
    start_ticks: int = 0
    """With `pid` and the boot: the process whose end ends it."""


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """A limit of ours, as the ledger has it."""

    gpu_uuid: str
    cgroup: str
    """Path from the root of the hierarchy, as in `/system.slice/whisper.service`."""
    inode: int
    """Inode of its folder: a cgroup that was made anew under the same name has another, and no limit."""
    hard_bytes: int
    boot_id: str
    set_seconds: float
    """Unix time."""
    holder: LimitHolder = LimitHolder()
    is_set: bool = True
    """False from before the call into the driver until its answer: then nobody knows whether the limit is there."""

    @property
    def key(self) -> tuple[str, str]:
        """GPU and cgroup: one limit each."""
        return self.gpu_uuid, self.cgroup

    def document(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self)


def limit_of(document: Mapping[str, Any]) -> MemoryLimit:
    """Return the limit that a document describes. Raises ValueError for what is none."""
    try:
        values = {each.name: document[each.name] for each in fields(MemoryLimit)}
        values["holder"] = LimitHolder(**document["holder"])
        made = MemoryLimit(**values)
    except (KeyError, TypeError) as error:
        raise ValueError(f"no memory limit: {error}") from None
    texts = (made.gpu_uuid, made.cgroup, made.boot_id, made.holder.run, made.holder.alert, made.holder.owner)
    numbers = (made.inode, made.hard_bytes, made.holder.pid, made.holder.start_ticks)
    if not all(isinstance(each, str) for each in texts) or not all(type(each) is int for each in numbers):
        raise ValueError("no memory limit: a text is no text, or a number no number")
    if any(each < 0 for each in numbers):
        raise ValueError("no memory limit: a number is negative")
    if not isinstance(made.set_seconds, int | float) or not isinstance(made.is_set, bool):
        raise ValueError("no memory limit: its time or its state is none")
    return made


class SetLimit(NamedTuple):
    """A limit that was set, and what the driver counts against it since."""

    limit: MemoryLimit
    used_bytes: int


class MemoryLimits(Protocol):
    """Sets limits on the memory of cgroups, and takes off those that it has set. Every call may block."""

    def refusal(self) -> str:
        """Return why none can be set here; "" where nothing is known to forbid it."""
        ...

    def set(
        self, gpu_uuid: str, cgroup: str, inode: int, hard_bytes: int, holder: LimitHolder, *, rehearse: bool = False
    ) -> SetLimit:
        """Set a hard limit on the cgroup of this inode; with `rehearse` only check whether that would be done.

        Raises:
            LimitUnknown: it is not known whether it was set.
            LimitRefused: there is a limit of another's, the cgroup is not one that may have a limit, or the driver
                refuses. Nothing has changed then, or what may have changed is in `limits`.
        """
        ...

    def lift(self, gpu_uuid: str, cgroup: str, owner: str) -> str:
        """Take a limit of this owner off; return in words what came of it. Raises LimitRefused."""
        ...

    def is_there(self, limit: MemoryLimit) -> bool:
        """Return whether its cgroup is still the one on which it was set."""
        ...

    def limits(self) -> tuple[MemoryLimit, ...]:
        """Return those of this boot that were set here and not lifted, by whichever agent. Raises LimitRefused.

        One of which the driver does not tell any more is none; where it cannot be asked, `is_set` is False.
        """
        ...


class NoMemoryLimits:
    """Sets none, and has set none."""

    def refusal(self) -> str:
        return "this agent sets no memory limits"

    def set(self, *_: object, **__: object) -> SetLimit:
        raise LimitRefused(self.refusal())

    def lift(self, *_: object) -> str:
        raise LimitRefused(self.refusal())

    def is_there(self, _: MemoryLimit) -> bool:
        return False

    def limits(self) -> tuple[MemoryLimit, ...]:
        return ()
