"""One signal of a process: a store of blocks, and the standards that judge it side by side."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import cache

from gpuagent_alerts.leak.blocks import EMPTY, LEVELS, SLOT_SECONDS, BlockStore
from gpuagent_alerts.leak.settings import Settings
from gpuagent_alerts.leak.standard import Now, Standard, least_shares
from gpuagent_alerts.leak.window import LENGTHS, Windows
from gpuagent_alerts.leak.work import Work

_SHORTEST, _LONGEST = LENGTHS[0], LENGTHS[-1]
_NO_BOUNDS = array("I", bytes(4 * LEVELS))


@cache
def _lowest_shares(settings: tuple[Settings, ...]) -> tuple[float, ...]:
    """Per level, the least share that any of these standards asks for."""
    return tuple(min(shares) for shares in zip(*(least_shares(one) for one in settings), strict=True))


class Signal:
    """Blocks, and who judges them. The levels are shared; thresholds and alarms are each standard's own."""

    __slots__ = ("_bounds", "_least", "_shares", "standards", "store", "work")

    def __init__(self, settings: Sequence[Settings], total_bytes: float, work: Work | None = None) -> None:
        self.store = BlockStore()
        self.work = work
        """Where this signal shows what the process worked."""
        self.standards = [Standard(one, total_bytes) for one in settings]
        self._look_for_the_least()
        self._bounds = _NO_BOUNDS[:]
        """Per level, a value that no block of the longest window is below; too low after that block has left."""

    def use(self, settings: Sequence[Settings], total_bytes: float) -> None:
        """Judge by other settings from now on, as many as before: blocks and alarms stay."""
        for standard, one in zip(self.standards, settings, strict=True):
            standard.use(one, total_bytes)
        self._look_for_the_least()

    def _look_for_the_least(self) -> None:
        """What no standard looks at is the common case: these tell it by one comparison a level."""
        self._least = min(one.least for one in self.standards)
        self._shares = _lowest_shares(tuple(one.settings for one in self.standards))

    def close(self, value: int, now: Now, judges: Sequence[Standard], mean: int = EMPTY) -> bool:
        """A block has ended with this lowest value and this mean; whether an alarm began or ended.

        Alarms that are on may end, whoever raised them; only `judges` may raise one, and only where it is known what is
        free.
        """
        store = self.store
        if now.end_seconds >= (store.slot + 1) * SLOT_SECONDS:
            store.enter_slot(now.end_seconds)
        ended = False
        for standard in self.standards:
            if standard.alarm is not None and standard.look_at(value, store, now.end_seconds, full=now.full):
                ended = True
        highest = store.push(value)
        if self.work is not None:
            self.work.push(value, mean, store.base_count)
        if now.free is None:
            self._bounds = _NO_BOUNDS[:]
            return ended
        return self._judge_up_to(highest, now, now.free, judges) or ended

    def _judge_up_to(self, highest: int, now: Now, free: float, judges: Sequence[Standard]) -> bool:
        """Show the newest block of each of these levels to those who have no alarm on, where it may be a leak."""
        store, bounds = self.store, self._bounds
        changed = False
        for level in range(highest + 1):
            last = store.newest(level)
            bounds[level] = min(bounds[level], last)
            need = self._shares[level] * free
            if last - bounds[level] >= need and last != EMPTY and last - bounds[level] >= self._least:
                bounds[level] = min(store.ring(level, _LONGEST))
                if store.count(level) >= _SHORTEST and self._judge(level, now, free, judges):
                    changed = True
            elif last != EMPTY:
                for standard in judges:
                    standard.reset(level)
        return changed

    def _judge(self, level: int, now: Now, free: float, judges: Sequence[Standard]) -> bool:
        """Show a level's newest block to those who have no alarm on."""
        growth = self.store.newest(level) - self._bounds[level]
        windows = Windows(self.store, level, self.work)
        changed = False
        for standard in judges:
            if standard.alarm is not None:
                continue
            if growth < standard.least_growth(level, free):
                standard.reset(level)
            elif standard.judge(self.store, windows, now, free):
                changed = True
        return changed

    def skip(self, blocks: int, end_seconds: float) -> None:
        """So many blocks without a reading: a gap makes no slope and no reset."""
        self.store.enter_slot(end_seconds)
        before = self.store.base_count
        self.store.push_empty(blocks)
        if self.work is not None:
            self.work.skip(before, self.store.base_count)
        self._bounds = _NO_BOUNDS[:]
