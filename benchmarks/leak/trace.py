"""What a simulated job leaves behind: its samples, and the truth about them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """What a family of jobs is, and how an alarm on it counts."""

    BENIGN = "benign"
    LEAK = "leak"
    HARD = "hard"
    """Leak-free, and until it stops no different from a leak: counted apart."""
    COLLAPSE = "collapse"
    """Over within minutes, for the fast path: counted apart."""


class Sample(NamedTuple):
    """One reading, None where there was none. Bytes; `time_seconds` from the start of the simulation."""

    time_seconds: float
    used_bytes: float | None
    free_bytes: float | None
    allocated_bytes: float | None
    reserved_bytes: float | None


@dataclass
class Samples:
    """Readings in columns: a day at 1 s is 86,400 of them. NaN is a reading that is missing."""

    times: array[float] = field(default_factory=lambda: array("d"))
    used: array[float] = field(default_factory=lambda: array("d"))
    free: array[float] = field(default_factory=lambda: array("d"))
    allocated: array[float] = field(default_factory=lambda: array("d"))
    reserved: array[float] = field(default_factory=lambda: array("d"))

    def __len__(self) -> int:
        return len(self.times)

    def __iter__(self) -> Iterator[Sample]:
        for time, used, free, allocated, reserved in zip(*self.columns(), strict=True):
            if used != used:  # noqa: PLR0124  NaN: the tick is there, its readings are not
                yield Sample(time, None, None, None, None)
            else:
                yield Sample(time, used, free, allocated, reserved)

    def columns(self) -> tuple[array[float], ...]:
        """In the order of a `Sample`."""
        return self.times, self.used, self.free, self.allocated, self.reserved

    def append(self, time: float, used: float, free: float, allocated: float, reserved: float) -> None:
        """One more reading; `nan` four times for a missing one."""
        self.times.append(time)
        self.used.append(used)
        self.free.append(free)
        self.allocated.append(allocated)
        self.reserved.append(reserved)


@dataclass(frozen=True)
class Trace:
    """One job as an agent saw it."""

    family: str
    kind: Kind
    seed: int
    total_bytes: int
    """Of the GPU."""
    client: bool
    """The job tells its allocator's figures; otherwise there is only NVML, whatever the samples hold."""
    samples: Samples
    starts: tuple[float, ...]
    """When the processes started that the agent could tell apart; before 0 if it came later than the process."""
    starts_known: bool
    """False where a pid was used again and nobody noticed: then there is one history, without a start."""
    leak_seconds: float | None
    """When the leak began, or was first to be seen."""
    exhausted_seconds: float | None
    """When the memory ran out, if it did in the time simulated."""

    @property
    def end_seconds(self) -> float:
        return self.samples.times[-1] if len(self.samples) else 0.0

    @property
    def begin_seconds(self) -> float:
        return self.samples.times[0] if len(self.samples) else 0.0
