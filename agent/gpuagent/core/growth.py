"""What the leak detector says of memory over time: of a process on a GPU, or of a GPU as a whole."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from gpuagent.core.identity import NO_INSTANCE


class MemoryKey(NamedTuple):
    """Whose memory, within one snapshot: a process on a GPU (or MIG GPU instance), or the GPU (`pid` 0) as a whole."""

    gpu_uuid: str
    pid: int = 0
    gpu_instance_id: int = NO_INSTANCE


class Verdict(StrEnum):
    """What the history of a process's memory amounts to."""

    LEARNING = "learning"
    """Too young, or too little seen."""
    STEADY = "steady"
    """Memory does not rise."""
    GROWING = "growing"
    """Memory rises, and nothing proves yet that it will not stop."""
    CACHED = "cached"
    """The process holds more, its tensors do not: a cache of the allocator's, which it can give back."""
    LEAKING = "leaking"
    LEVELLED_OFF = "levelled off"
    """Memory was called leaking, and has stopped rising or was given back."""


class GrowthState(StrEnum):
    """Whether what is growing or leaking rises at this moment."""

    RISING = "rising"
    STOPPED = "stopped"
    """Memory stopped rising with room to grow: what does not rise again within the alarm's window has levelled off."""
    FULL = "stopped: GPU full"
    """There is no room to grow, which proves nothing: the verdict stays until there is."""


class Evidence(StrEnum):
    """The strictest standard that a leak meets, the strongest first."""

    CONFIRMED = "confirmed"
    """More than one witness: `allocator` or `strict`, with an earlier life of the service that leaked until the memory
    was gone, with replicas that leak too, or with more taken than is left and less than a day to go. For remedies."""
    ALLOCATOR = "allocator"
    """Seen in the allocator's own figures, which its cached memory does not move; a cache of tensors does."""
    STRICT = "strict"
    BALANCED = "balanced"
    SENSITIVE = "sensitive"


class Range(NamedTuple):
    """A figure and between what it lies."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Growth:
    """The detector's word on one `MemoryKey` at one tick."""

    verdict: Verdict
    evidence: Evidence | None = None
    """Strictest criterion that the leak's own window meets; only while it is `leaking`."""
    slope: Range | None = None
    """Bytes a second, of the floor: None while nothing can be said, 0 of what does not grow. Of a leak that has
    stopped, the pace that it had."""
    since_seconds: float | None = None
    """Unix time at which the growth began; only while it is growing or leaking."""
    exhaustion: Range | None = None
    """Seconds until the memory is full, 0 while it is; None when that will not come."""
    reasons: tuple[str, ...] = ()
    """Reasons in words, for the alert's text."""
    fast: bool = False
    """Growth that would fill the GPU within minutes: reported at once, and not yet a leak."""
    fast_exhaustion_seconds: float | None = None
    """Seconds until the memory is full, with `fast`. The same as `exhaustion`, where there is one."""
    state: GrowthState | None = None
    """State of the growth, only while it is `growing` or `leaking`."""
    suspected: bool = False
    """Whether what is `growing` rises like a leak and has met the lowest standard. Other growth has no forecast."""
    held_before: bool = False
    """Whether what is `growing` takes what it held before and gave back, with room for all of that: it has a pace, and
    is part of no forecast."""
    confirmed: bool = False
    """Whether there is more than one witness of a leak: see `Evidence.CONFIRMED`, which is told beside `evidence`."""
    driver_confirms: bool = False
    """Whether the driver's own figures rise with a leak. What a client says moves the allocator's alone."""
    evidence_told: tuple[Evidence, ...] = ()
    """Every standard that this leak has ever met, the first one first. Alerts carry one each: a label that
    changed would end an alert while its leak goes on."""
    stopped_seconds: float | None = None
    """Unix time at which it reached its last high; only of what has levelled off without giving memory back."""
    culprit: str = ""
    """The line of Python that holds the memory, in the words of `blame`, once the app has been asked."""

    @property
    def grade(self) -> Evidence | None:
        """The evidence as people are told it: `confirmed` where there is more than one witness."""
        return Evidence.CONFIRMED if self.confirmed else self.evidence

    @property
    def forecast_seconds(self) -> float | None:
        """The one forecast: seconds until the memory is full, 0 while it is; None when that will not come."""
        slow = None if self.exhaustion is None else self.exhaustion.value
        fast = self.fast_exhaustion_seconds if self.fast else None
        return min((seconds for seconds in (slow, fast) if seconds is not None), default=None)


def shifted(growth: Growth, seconds: float) -> Growth:
    """Return the same growth by a wall clock that was set forward by so many seconds."""
    since, stopped = growth.since_seconds, growth.stopped_seconds
    if since is None and stopped is None:
        return growth
    return replace(
        growth,
        since_seconds=None if since is None else since + seconds,
        stopped_seconds=None if stopped is None else stopped + seconds,
    )


class DetectorLoad(NamedTuple):
    """How much the leak detector has to remember."""

    histories: int
    """Processes and GPUs whose history is kept."""
    refused: int
    """Processes that found no room for theirs, since the start."""
