"""The signals of one process, each a store of blocks and the criteria that judge it side by side.

What the driver tells is there always, what the allocator tells where there is a client.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from functools import cache
from typing import Final, NamedTuple

from gpuagent_alerts.leak.blocks import BLOCK_SECONDS, EMPTY, LEVELS, PAGE_BYTES, SLOT_SECONDS, BlockStore
from gpuagent_alerts.leak.criterion import Alarm, BlockContext, Criterion, is_suspect, least_shares
from gpuagent_alerts.leak.settings import (
    ALLOCATOR_SETTINGS,
    ALLOCATOR_SUSPECTED,
    SENSITIVITIES,
    SETTINGS,
    SUSPECTED,
    Sensitivity,
    Settings,
)
from gpuagent_alerts.leak.typical import DIP_OF_TOTAL, TypicalMemory
from gpuagent_alerts.leak.typical import LEVEL as TYPICAL_LEVEL
from gpuagent_alerts.leak.windows import LENGTHS, Windows, WorkSignal

_SHORTEST, _LONGEST = LENGTHS[0], LENGTHS[-1]
_NO_BOUNDS = array("I", bytes(4 * LEVELS))


@cache
def _lowest_shares(settings: tuple[Settings, ...]) -> tuple[float, ...]:
    """Per level, the least share that any of these criteria asks for."""
    return tuple(min(shares) for shares in zip(*(least_shares(one) for one in settings), strict=True))


class Signal:
    """Blocks, and who judges them. The levels are shared; thresholds and alarms are each criterion's own."""

    __slots__ = ("_bounds", "_least", "_shares", "_total_pages", "criteria", "store", "work")

    def __init__(
        self, settings: Sequence[Settings], total_bytes: float, work: WorkSignal | None = None, first_level: int = 0
    ) -> None:
        self.store = BlockStore(first_level)
        self.work = work
        """Where this signal shows what the process worked."""
        self.criteria = [Criterion(one, total_bytes) for one in settings]
        self._total_pages = total_bytes / PAGE_BYTES
        self._set_least_growth()
        self._bounds = _NO_BOUNDS[:]
        """Per level, a value that no block of the longest window is below; too low after that block has left."""

    def use(self, settings: Sequence[Settings], total_bytes: float) -> None:
        """Judge by other settings from now on, as many as before: blocks and alarms stay."""
        for criterion, one in zip(self.criteria, settings, strict=True):
            criterion.use(one, total_bytes)
        self._set_least_growth()

    def _set_least_growth(self) -> None:
        """Set the least growth that any criterion looks at, so that one comparison a level settles the common case."""
        self._least = min(one.least for one in self.criteria)
        self._shares = _lowest_shares(tuple(one.settings for one in self.criteria))

    def close(self, value: int, now: BlockContext, judges: Sequence[Criterion], mean: int = EMPTY) -> bool:
        """End a block with this lowest value and this mean; return whether an alarm began or ended.

        Alarms that are on may end, whoever raised them; only `judges` may raise one, and only where it is known what is
        free.
        """
        store = self.store
        if now.end_seconds >= (store.slot + 1) * SLOT_SECONDS:
            store.enter_slot(now.end_seconds)
        ended = False
        for criterion in self.criteria:
            if criterion.alarm is not None and criterion.update_alarm(value, store, now.end_seconds, full=now.full):
                ended = True
        highest = store.push(value)
        if self.work is not None:
            self.work.push(value, mean, store.base_count)
        if now.free is None:
            self._bounds = _NO_BOUNDS[:]
            return ended
        leaked_before = any(is_suspect(one, store, now, self._total_pages) for one in self.criteria[:-1])
        seen = now._replace(leaked_before=True) if leaked_before else now
        return self._judge_up_to(highest, seen, now.free, judges) or ended

    def _judge_up_to(self, highest: int, now: BlockContext, free: float, judges: Sequence[Criterion]) -> bool:
        """Show the newest block of each of these levels to those who have no alarm on, where it may be a leak."""
        store, bounds = self.store, self._bounds
        changed = False
        for level in range(store.first, highest + 1):
            last = store.newest(level)
            bounds[level] = min(bounds[level], last)
            need = self._shares[level] * free
            if last - bounds[level] >= need and last != EMPTY and last - bounds[level] >= self._least:
                bounds[level] = min(store.ring(level, _LONGEST))
                if store.count(level) >= _SHORTEST and self._judge(level, now, free, judges):
                    changed = True
            elif last != EMPTY:
                for criterion in judges:
                    criterion.reset(level)
        return changed

    def _judge(self, level: int, now: BlockContext, free: float, judges: Sequence[Criterion]) -> bool:
        """Show a level's newest block to those who have no alarm on."""
        growth = self.store.newest(level) - self._bounds[level]
        windows = Windows(self.store, level, self.work)
        changed = False
        for criterion in judges:
            if criterion.alarm is not None:
                continue
            if growth < criterion.least_growth(level, free):
                criterion.reset(level)
            elif criterion.judge(self.store, windows, now, free):
                changed = True
        return changed

    def skip(self, blocks: int, end_seconds: float) -> None:
        """So many blocks of the store's lowest level without a reading: a gap makes no slope and no reset."""
        self.store.enter_slot(end_seconds)
        for criterion in self.criteria:
            criterion.skip(blocks, self.store)
        before = self.store.base_count
        self.store.push_empty(blocks)
        if self.work is not None:
            self.work.skip(before, self.store.base_count)
        self._bounds = _NO_BOUNDS[:]


class TypicalSignal:
    """The typical memory beside a signal, and the one criterion that judges it."""

    __slots__ = ("_settings", "_total_bytes", "epoch", "memory", "signal")

    def __init__(self, settings: Settings, total_bytes: float) -> None:
        self._settings, self._total_bytes = settings, total_bytes
        self.epoch = 0
        """Number of the first block that may be judged, counted from the next one."""
        self.memory = TypicalMemory()
        self.signal: Signal | None = None
        """None until the memory dips for the first time: most memory never does."""

    @property
    def alarm(self) -> Alarm | None:
        """Return the alarm that is on."""
        return None if self.signal is None else self.signal.criteria[0].alarm

    def begin(self, block: int, started_seconds: float, phase: int) -> None:
        """Begin with the first block that is kept."""
        self.epoch = _first_block(self._settings, block, started_seconds, phase)

    def open(self) -> Signal:
        """Begin the signal, and return it."""
        self.signal = Signal((self._settings,), self._total_bytes, first_level=TYPICAL_LEVEL)
        self.signal.criteria[0].epoch = max(0, self.epoch)
        return self.signal

    def follow(self, signal: Signal, now: BlockContext) -> bool:
        """Take the newest block of a signal; return whether an alarm began or ended."""
        typical = self.memory.push(signal.store)
        if typical is None:
            return False
        dips = self.memory.dips_by(DIP_OF_TOTAL * self._total_bytes / PAGE_BYTES)
        self.epoch -= 1 << TYPICAL_LEVEL
        if self.signal is None and not dips:
            return False
        own = self.signal or self.open()
        return own.close(typical, now, own.criteria if dips else [])

    def skip(self, before: int, count: int, end_seconds: float) -> None:
        """Follow the signal's store over a gap, from one count of blocks to another."""
        stretches = (count >> TYPICAL_LEVEL) - (before >> TYPICAL_LEVEL)
        self.memory.push_empty(stretches)
        if self.signal is not None:
            self.signal.skip(stretches, end_seconds)


def _first_block(settings: Settings, block: int, started_seconds: float, phase: int) -> int:
    """Return the number of the first block that is judged by these settings, counted from a block of the clock."""
    return math.floor((started_seconds + settings.blackout_seconds - phase) / BLOCK_SECONDS) - block


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


class ProcessSignals:
    """The driver's signal, judged by all three criteria; the allocator's two, which take its place while they come.

    Beside each lies its typical memory, for what dips.

    The driver's blocks are kept either way: a process that loses its client is judged by them as if it had never had
    one, and growth in them alone is what makes a cache.
    """

    __slots__ = ("_sensitivity", "_total_bytes", "own", "silent_blocks", "typical", "typical_tensors", "used")

    def __init__(self, total_bytes: float, sensitivity: Sensitivity) -> None:
        self._total_bytes = total_bytes
        self._sensitivity = sensitivity
        self.silent_blocks = CLIENT_LOST_BLOCKS + 1
        """Blocks with the driver's figures alone since the allocator's last."""
        self.used = Signal((*(SETTINGS[name] for name in SENSITIVITIES), SUSPECTED), total_bytes)
        self.own: tuple[Signal, Signal] | None = None
        self.typical = TypicalSignal(SETTINGS["strict"], total_bytes)
        self.typical_tensors: TypicalSignal | None = None
        """Like `own`, while there is a client."""

    def begin(self, block: int, started_seconds: float, phase: int) -> None:
        """Begin with the first block that is kept: criteria with a longer blackout wait."""
        for criterion in self.used.criteria:
            criterion.epoch = max(0, _first_block(criterion.settings, block, started_seconds, phase))
        self.typical.begin(block, started_seconds, phase)

    def close(self, lows: Lows, now: BlockContext, slack_bytes: float) -> bool:
        """End a block; return whether an alarm began or ended."""
        if lows.allocated != EMPTY:
            self.silent_blocks = 0
        elif lows.used != EMPTY:
            self.silent_blocks += 1
        client = self.silent_blocks <= CLIENT_LOST_BLOCKS
        criteria = self.used.criteria
        changed = self.used.close(lows.used, now, criteria[-1:] if client else criteria)
        if not client:
            changed |= self.typical.follow(self.used, now)
            changed |= self.own is not None
            self.own = self.typical_tensors = None
            return changed
        if self.typical.memory.medians:  # with a client its tensors are looked at
            self.typical = TypicalSignal(SETTINGS["strict"], self._total_bytes)
        tensors, outside = self.own or self.open_own()
        room = None if now.free is None else now.free + SLACK_WEIGHT * slack_bytes / PAGE_BYTES
        roomier = now._replace(free=room)
        changed |= tensors.close(lows.allocated, roomier, tensors.criteria, lows.held)
        if self.typical_tensors is not None:
            changed |= self.typical_tensors.follow(tensors, roomier)
        changed |= outside.close(lows.outside, now, outside.criteria)
        return changed

    def open_own(self) -> tuple[Signal, Signal]:
        """Begin the signals of a client that has come, and return them."""
        own = self._own_settings()
        self.own = (Signal(own, self._total_bytes, WorkSignal()), Signal(own, self._total_bytes))
        self.typical_tensors = TypicalSignal(ALLOCATOR_SETTINGS["strict"], self._total_bytes)
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
        before = self.used.store.base_count, 0 if self.own is None else self.own[0].store.base_count
        for signal in (self.used, *(self.own or ())):
            signal.skip(blocks, end_seconds)
        self.typical.skip(before[0], self.used.store.base_count, end_seconds)
        if self.own is not None and self.typical_tensors is not None:
            self.typical_tensors.skip(before[1], self.own[0].store.base_count, end_seconds)
