"""The signals of one process: what the driver tells always, what the allocator tells where there is a client."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from gpuagent_alerts.leak.blocks import BLOCK_SECONDS, EMPTY, PAGE_BYTES
from gpuagent_alerts.leak.settings import (
    ALLOCATOR_SETTINGS,
    ALLOCATOR_SUSPECTED,
    SENSITIVITIES,
    SETTINGS,
    SUSPECTED,
    Sensitivity,
    Settings,
)
from gpuagent_alerts.leak.signal import Signal
from gpuagent_alerts.leak.standard import Now
from gpuagent_alerts.leak.work import Work

USED_NAME: Final = "memory"
OWN_NAMES: Final = ("tensors", "memory outside the allocator")

SLACK_WEIGHT: Final = 0.5
"""Part of the allocator's cached memory that can serve a leak of tensors; the rest is fragmented."""
CLIENT_LOST_BLOCKS: Final = 40
"""10 min of the driver's figures alone, then they are judged; 40 min where readings come once a minute."""


class Lows(NamedTuple):
    """The lowest readings of a block, in pages, or EMPTY."""

    used: int
    allocated: int
    outside: int
    """Used by the process, less what its allocator has reserved."""
    held: int = EMPTY
    """The mean of what was allocated."""


class Signals:
    """The driver's signal, judged by all three standards; the allocator's two, which take its place while they come.

    The driver's blocks are kept either way: a process that loses its client is judged by them as if it had never had
    one, and growth in them alone is what makes a cache.
    """

    __slots__ = ("_sensitivity", "_total_bytes", "own", "silent_blocks", "used")

    def __init__(self, total_bytes: float, sensitivity: Sensitivity) -> None:
        self._total_bytes = total_bytes
        self._sensitivity = sensitivity
        self.silent_blocks = CLIENT_LOST_BLOCKS + 1
        """Blocks with the driver's figures alone since the allocator's last."""
        self.used = Signal((*(SETTINGS[name] for name in SENSITIVITIES), SUSPECTED), total_bytes)
        self.own: tuple[Signal, Signal] | None = None

    def begin(self, block: int, started_seconds: float, phase: int) -> None:
        """The first block that is kept: standards with a longer blackout wait."""
        for standard in self.used.standards:
            first = math.floor((started_seconds + standard.settings.blackout_seconds - phase) / BLOCK_SECONDS)
            standard.epoch = max(0, first - block)

    def close(self, lows: Lows, now: Now, slack_bytes: float) -> bool:
        """A block has ended; whether an alarm began or ended."""
        if lows.allocated != EMPTY:
            self.silent_blocks = 0
        elif lows.used != EMPTY:
            self.silent_blocks += 1
        client = self.silent_blocks <= CLIENT_LOST_BLOCKS
        standards = self.used.standards
        changed = self.used.close(lows.used, now, standards[-1:] if client else standards)
        if not client:
            changed |= self.own is not None
            self.own = None
            return changed
        tensors, outside = self.own or self.open_own()
        room = None if now.free is None else now.free + SLACK_WEIGHT * slack_bytes / PAGE_BYTES
        roomier = now._replace(free=room)
        changed |= tensors.close(lows.allocated, roomier, tensors.standards, lows.held)
        changed |= outside.close(lows.outside, now, outside.standards)
        return changed

    def open_own(self) -> tuple[Signal, Signal]:
        """A client has come: its signals begin."""
        own = self._own_settings()
        self.own = (Signal(own, self._total_bytes, Work()), Signal(own, self._total_bytes))
        return self.own

    def use(self, sensitivity: Sensitivity) -> None:
        """Another dial from now on. The driver's signal has all of them already."""
        self._sensitivity = sensitivity
        for signal in self.own or ():
            signal.use(self._own_settings(), self._total_bytes)

    def _own_settings(self) -> tuple[Settings, Settings]:
        return ALLOCATOR_SETTINGS[self._sensitivity], ALLOCATOR_SUSPECTED

    def skip(self, blocks: int, end_seconds: float) -> None:
        """So many blocks without any reading."""
        for signal in (self.used, *(self.own or ())):
            signal.skip(blocks, end_seconds)
