"""What speaks for a leak beside its own window: earlier lives of the service, its replicas, and how little is left.

One window cannot tell a leak from a cache that has not stopped yet. A second witness can: what an earlier life of the
same service did, what its other processes do now, or growth that has taken more than is left.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from gpuagent.core.growth import Evidence, Range
from gpuagent.core.units import format_bytes
from gpuagent_alerts.leak.blocks import BLOCK_SECONDS, EMPTY, PAGE_BYTES, RING, BlockStore
from gpuagent_alerts.leak.criterion import Alarm, Criterion

HELD_BACK_SHARE: Final = 0.1
"""Growth counts from so much above the level at which an earlier life stopped ..."""
HELD_BACK_ROOM_SHARE: Final = 0.25
"""... or from so much of what was free there, if that is less."""
CONFIRMING_HORIZON_SECONDS: Final = 86_400.0
CONFIRMING_SHARE: Final = 1.0
"""Growth that has taken as much as is left, and takes the rest within a day, is confirmed by itself."""
REPLICA_SHARE: Final = 0.58
"""Growth as a share of what is free from which replicas confirm each other: each has taken 37 % of what was free."""
LEAKING_HORIZON_SECONDS: Final = 7 * 86_400.0
"""Growth of 20 h and more that has taken less than `REPLICA_SHARE` is a leak only if it fills the GPU within a week."""
RECENT_SECONDS: Final = 3600.0
RECENT_SHARE: Final = 1 / 16
"""What is held now is the lowest of this part of the window, at most of an hour: a jitter must not make a leak."""
_LONG_SECONDS: Final = 72_000.0
STRONG: Final = frozenset({Evidence.ALLOCATOR, Evidence.STRICT})


class Prior(NamedTuple):
    """What the other lives of a process's service have shown. Memory in pages, 0 where nothing is known."""

    level_used: int = 0
    """The highest at which a life has levelled off, as the driver has it ..."""
    level_tensors: int = 0
    """... and of its tensors."""
    leaked: bool = False
    """An earlier life leaked until its end."""
    exhausted: bool = False
    """... and that was when the memory was gone."""
    replicas: int = 0
    """Other processes of the service that leak now, by a strict standard."""
    cut_short_seconds: float | None = None
    """Time at which the last of several lives ended that were restarted at once, each of them rising at its end; None
    where there were no such."""


NOTHING_KNOWN: Final = Prior()


class Finding(NamedTuple):
    """An alarm that is on, and what it was raised on."""

    alarm: Alarm
    evidence: Evidence
    what: str
    now: int
    """The lowest of late: what requests hold in passing is not in it, as in the levels of lives."""
    level: int
    """Where an earlier life levelled off; 0 where that is not known."""


def finding_of(
    criterion: Criterion, store: BlockStore, evidence: Evidence, what: str, level: int = 0
) -> Finding | None:
    """Return what a criterion has found; None while it has no alarm."""
    alarm = criterion.alarm
    if alarm is None:
        return None
    return Finding(alarm, evidence, what, _recent_low(store, alarm), level)


def _recent_low(store: BlockStore, alarm: Alarm) -> int:
    """Return the lowest of a short part of the alarm's window, in pages."""
    seconds = min(RECENT_SHARE * alarm.window_seconds, RECENT_SECONDS)
    level = store.first
    while RING * BLOCK_SECONDS << level < seconds:
        level += 1
    recent = store.ring(level, max(1, math.ceil(seconds / (BLOCK_SECONDS << level))))
    return min((value for value in recent if value != EMPTY), default=alarm.floor)


def is_held_back(finding: Finding, free_bytes: float | None) -> bool:
    """Return whether an earlier life has held about as much and levelled off."""
    level = finding.level
    if not level:
        return False
    allowance = HELD_BACK_SHARE * level
    if free_bytes is not None:
        allowance = min(allowance, HELD_BACK_ROOM_SHARE * (free_bytes / PAGE_BYTES + finding.now - level))
    return finding.now <= level + max(allowance, 0.0)


def describe_held_back(finding: Finding) -> str:
    """Return why growth is no leak yet."""
    return f"an earlier life of this service levelled off at {format_bytes(finding.level * PAGE_BYTES)}"


def is_slow(finding: Finding, free_bytes: float | None, now_seconds: float) -> bool:
    """Return whether it is growth of a day or more that is far from filling the memory: no leak yet."""
    alarm = finding.alarm
    if alarm.window_seconds < _LONG_SECONDS or free_bytes is None:
        return False
    free = free_bytes / PAGE_BYTES
    return _taken(finding) < REPLICA_SHARE * free and left_seconds(finding, free, now_seconds) > LEAKING_HORIZON_SECONDS


def is_confirmed(
    finding: Finding, free_bytes: float | None, exhaustion: Range | None, prior: Prior, now_seconds: float
) -> bool:
    """Return whether there is more than one witness."""
    if finding.evidence not in STRONG or free_bytes is None:
        return False
    if prior.exhausted:
        return True
    free, taken = free_bytes / PAGE_BYTES, _taken(finding)
    if prior.replicas and taken >= REPLICA_SHARE * free:
        return True
    if exhaustion is None or taken < CONFIRMING_SHARE * free:
        return False
    return max(exhaustion.value, left_seconds(finding, free, now_seconds)) <= CONFIRMING_HORIZON_SECONDS


def _taken(finding: Finding) -> int:
    """Return the pages that it has grown by."""
    alarm = finding.alarm
    return max(finding.now, alarm.floor) - (alarm.floor - alarm.growth)


def left_seconds(finding: Finding, free: float, now_seconds: float) -> float:
    """Return how long these free pages last at the mean pace since the growth began."""
    lasted = max(now_seconds - finding.alarm.onset_seconds, 1.0)
    return free * lasted / max(_taken(finding), 1)
