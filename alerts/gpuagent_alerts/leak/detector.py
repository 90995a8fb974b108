"""The leak detector of one process on one GPU, or of a GPU as a whole: readings in, a verdict out."""

from __future__ import annotations

import math
from typing import Final

from gpuagent.core.growth import Growth, GrowthState, Verdict
from gpuagent_alerts.leak.blocks import BLOCK_SECONDS, EMPTY, PAGE_BYTES, to_pages
from gpuagent_alerts.leak.course import rising_course
from gpuagent_alerts.leak.criterion import BlockContext
from gpuagent_alerts.leak.examine import Examined
from gpuagent_alerts.leak.forecast import FastGrowth
from gpuagent_alerts.leak.lives import RESTARTED_WITHIN_SECONDS, LifeSoFar, level_of
from gpuagent_alerts.leak.reasons import BY_LIVES_ALONE
from gpuagent_alerts.leak.settings import DIALS, FULL_SHARE, SENSITIVITIES, SUSPECTED, Dial, Sensitivity
from gpuagent_alerts.leak.signals import Lows, ProcessSignals
from gpuagent_alerts.leak.state import (
    Reader,
    Writer,
    or_nan,
    or_none,
    read_fast,
    read_growth,
    read_signals,
    write_fast,
    write_growth,
    write_signals,
)
from gpuagent_alerts.leak.trace import Trace
from gpuagent_alerts.leak.verdict import GROWS, LEARNING, Headroom, add_fast_growth, judge_signals
from gpuagent_alerts.leak.witnesses import NOTHING_KNOWN, STRONG, Prior

LEAST_BYTES: Final = 2**20
"""A reading of 1 MiB or less is a process that comes or goes, not a measurement."""
MOST_BYTES: Final = 2.0**44
"""A reading of 16 TiB or more is no measurement either: NVML has 2^64 - 1 for "not available"."""
MOST_SECONDS: Final = 1e12
FIRST_BLACKOUT_SECONDS: Final = 120.0
"""Nothing is kept so long after the first reading: what is seen first may be loading, however old it is."""
FIGURES_BLOCKS: Final = 4
"""Slope and forecast are renewed every minute."""
MOVED_SHARE: Final = 0.1
"""... and earlier where what is free has changed by so much, as when another program ends."""
_DUMPED: Final[tuple[Dial, ...]] = (*SENSITIVITIES, "off")
NEARLY_FULL_SECONDS: Final = 1800.0
"""A leak that ends with so little time left ended because the memory was gone."""
_JUDGED_GAP: Final = 64
"""Blocks without a reading that are judged one by one; what follows them is only noted."""
_NO_LOWS: Final = Lows(EMPTY, EMPTY, EMPTY)


class MemoryLeakDetector:
    """Judges one process identity on one GPU. A new identity needs a new detector: nothing is inherited."""

    __slots__ = (
        "_block",
        "_block_end",
        "_fast",
        "_free",
        "_free_since",
        "_growth",
        "_held",
        "_held_times",
        "_judge_anew",
        "_keeps",
        "_keeps_from",
        "_last_seconds",
        "_low_allocated",
        "_low_outside",
        "_low_used",
        "_phase",
        "_prior",
        "_sensitivity",
        "_signals",
        "_slack",
        "_slow",
        "_started",
        "_total_bytes",
        "trace",
    )

    def __init__(
        self,
        *,
        total_bytes: int,
        started_seconds: float | None,
        sensitivity: Dial = "balanced",
        phase: int = 0,
    ) -> None:
        """Raise ValueError for an impossible size or sensitivity."""
        if not 0 < total_bytes < MOST_BYTES:
            raise ValueError(f"{total_bytes} is not the memory of a GPU")
        _check(sensitivity)
        self._total_bytes = total_bytes
        self._sensitivity = sensitivity
        self._phase = phase % BLOCK_SECONDS
        self._started = started_seconds

        self._signals = ProcessSignals(total_bytes, _criterion(sensitivity))
        self._fast = FastGrowth()
        self._last_seconds = -math.inf
        self._keeps_from: float | None = None
        """End of the first blackout; None before the first reading."""
        self._keeps = False
        self._block = 0
        self._block_end = -math.inf
        self._low_used = self._low_allocated = self._low_outside = MOST_BYTES
        self._held = 0.0
        self._held_times = 0
        """What was allocated at the block's readings, together, and how many they are."""
        self._free: float | None = None
        self._slack = 0.0
        self._slow = self._growth = LEARNING
        """The verdict without and with the fast tier."""
        self._judge_anew = False
        """The sensitivity has changed since the last verdict."""
        self._free_since: float | None = None
        """Time since which there is room again for what had none; a restart loses it."""
        self._prior = NOTHING_KNOWN
        """What other lives of the service have shown."""
        self.trace: Trace | None = None
        """Takes every block that is judged, for a replay."""

    def update(
        self,
        time_seconds: float,
        used_bytes: float | None,
        free_bytes: float | None,
        allocated_bytes: float | None = None,
        reserved_bytes: float | None = None,
        declared_bytes: float | None = None,
    ) -> Growth:
        """Take a reading, None where there is none; the same object as before while nothing has changed.

        `declared_bytes` is what the app says it usually needs: for the fast tier alone, for a leak has no size.

        Time must go on in suspend and not go backwards: a reading from the past is ignored. A value that no GPU can
        have counts as missing. The allocator's figures count together. Raises ValueError for a time that is none.
        """
        if time_seconds >= self._block_end:
            self._end_block(time_seconds)
        elif not time_seconds >= self._last_seconds:
            if math.isnan(time_seconds):
                raise ValueError("the time of a reading is not a number")
            return self._growth
        self._last_seconds = time_seconds
        if free_bytes is not None and 0 <= free_bytes < MOST_BYTES:
            self._note_free(time_seconds, free_bytes)
        if not self._keeps:
            return self._growth
        if used_bytes is not None and LEAST_BYTES < used_bytes < MOST_BYTES:
            self._low_used = min(self._low_used, used_bytes)
            if self._free is not None:
                store, grows = self._signals.used.store, self._slow.verdict in GROWS
                on = self._fast.update(
                    time_seconds, used_bytes, self._free, store, declared_bytes, grows_in_steps=grows
                )
                if on or self._growth.fast:
                    self._add_fast_growth()
        else:
            used_bytes = None
        if allocated_bytes is not None and reserved_bytes is not None:
            self._note_allocator(used_bytes, allocated_bytes, reserved_bytes)
        return self._growth

    def _note_allocator(self, used_bytes: float | None, allocated_bytes: float, reserved_bytes: float) -> None:
        """Record what the process says of its allocator; used memory, where known, stands for what it does not say."""
        if not 0 <= allocated_bytes <= reserved_bytes < MOST_BYTES:
            return
        self._slack = reserved_bytes - allocated_bytes
        if allocated_bytes > LEAST_BYTES:
            self._low_allocated = min(self._low_allocated, allocated_bytes)
            self._held += allocated_bytes
            self._held_times += 1
        if used_bytes is not None and used_bytes - reserved_bytes > LEAST_BYTES:
            self._low_outside = min(self._low_outside, used_bytes - reserved_bytes)

    @property
    def sensitivity(self) -> Dial:
        """The settings by which it judges."""
        return self._sensitivity

    def use(self, sensitivity: Dial) -> None:
        """Judge by another criterion from the next block on; history and alarms stay.

        Raises ValueError for one that is none.
        """
        _check(sensitivity)
        self._judge_anew = self._judge_anew or sensitivity != self._sensitivity
        self._sensitivity = sensitivity
        self._signals.use(_criterion(sensitivity))

    def use_prior(self, prior: Prior) -> None:
        """Judge with what other lives of the service have shown, from the next block on.

        That lives were cut short counts for the one that was started right after the last of them.
        """
        ended = prior.cut_short_seconds
        if ended is not None and not 0.0 <= (self._started or 0.0) - ended <= RESTARTED_WITHIN_SECONDS:
            prior = prior._replace(cut_short_seconds=None)
        self._judge_anew = self._judge_anew or prior != self._prior
        self._prior = prior

    def life(self) -> LifeSoFar:
        """Return what the process has shown until now."""
        growth, signals = self._growth, self._signals
        least = SUSPECTED.least_growth(self._total_bytes)
        tensors = 0 if signals.own is None else level_of(signals.own[0].store, least)
        by_lives_alone = not BY_LIVES_ALONE.isdisjoint(growth.reasons)
        course = rising_course((signals.own or (signals.used,))[0].store, self._free, least)
        leaks, forecast = growth.verdict is Verdict.LEAKING and not by_lives_alone, growth.forecast_seconds
        soon = forecast is not None and forecast < NEARLY_FULL_SECONDS
        return LifeSoFar(
            self._last_seconds - (self._started or self._last_seconds),
            level_of(signals.used.store, least),
            tensors,
            leaks,
            growth.suspected,
            soon or growth.state is GrowthState.FULL,
            leaks and growth.evidence in STRONG,
            by_lives_alone or (self._slow.verdict is Verdict.GROWING and self._slow.state is GrowthState.RISING),
            self._last_seconds,
            course is not None,
        )

    def keep_trace(self, trace: Trace) -> None:
        """Note in this one what is judged from now on, and how it came here."""
        if self._keeps:
            trace.seed(self._signals.used.store, self._block)
        self.trace = trace

    def examine(self) -> Examined:
        """Return by what it judges, for an explanation."""
        return Examined(
            self._signals,
            self._sensitivity,
            self._total_bytes,
            self._free,
            self._started,
            self._last_seconds,
            self._keeps_from,
            self._phase,
            self._slack,
        )

    def dump(self) -> bytes:
        """Return the whole state, at most 8 KiB, for `load`."""
        writer = Writer()
        writer.put(
            "BBdd?dqddddqddd",
            self._phase,
            _DUMPED.index(self._sensitivity),
            *(or_nan(self._started), self._last_seconds, self._keeps, or_nan(self._keeps_from), self._block),
            *(self._block_end, self._low_used, self._low_allocated, self._low_outside),
            *(self._held_times, self._held, or_nan(self._free), self._slack),
        )
        write_signals(writer, self._signals)
        write_fast(writer, self._fast)
        write_growth(writer, self._slow)
        return writer.seal()

    @classmethod
    def load(
        cls, data: bytes, *, total_bytes: int, sensitivity: Dial | None = "balanced", phase: int = 0
    ) -> MemoryLeakDetector:
        """Go on where `dump` was called, after a gap of any length; ValueError for anything but a dump.

        With the sensitivity (None) and phase of then it goes on exactly; with others, alarms that are on keep their
        criterion.
        """
        reader = Reader(data)
        _, dial, started, last_seconds, keeps, keeps_from, block = reader.take("BBdd?dq")
        dumped = _DUMPED[min(dial, len(_DUMPED) - 1)]
        sensitivity = sensitivity or dumped
        made = cls(total_bytes=total_bytes, started_seconds=None, sensitivity=sensitivity, phase=phase)
        made._judge_anew = sensitivity != dumped
        made._last_seconds, made._keeps, made._block = last_seconds, keeps, block
        made._block_end, made._low_used, made._low_allocated, made._low_outside = reader.take("dddd")
        made._held_times, made._held, free, made._slack = reader.take("qddd")
        made._started, made._keeps_from, made._free = or_none(started), or_none(keeps_from), or_none(free)
        read_signals(reader, made._signals)
        read_fast(reader, made._fast)
        made._slow = read_growth(reader)
        reader.end()
        if not (made._last_seconds < MOST_SECONDS and made._block_end < MOST_SECONDS):  # nor NaN
            raise ValueError("state of a leak detector: a time that cannot be")
        made._add_fast_growth()
        return made

    def _end_block(self, time_seconds: float) -> None:
        """End the current block at the first reading at or after its end."""
        if not abs(time_seconds) < MOST_SECONDS:
            raise ValueError(f"{time_seconds} is not the time of a reading")
        if self._keeps_from is None:
            if self._started is None or not self._started <= time_seconds:
                self._started = time_seconds
            self._keeps_from = self._block_end = time_seconds + FIRST_BLACKOUT_SECONDS
            return
        block = math.floor((time_seconds - self._phase) / BLOCK_SECONDS)
        if self._keeps:
            self._close(block)
        else:
            self._keeps = True
            self._signals.begin(block, self._started or 0.0, self._phase)
        self._block = block
        self._block_end = float((block + 1) * BLOCK_SECONDS + self._phase)
        self._low_used = self._low_allocated = self._low_outside = MOST_BYTES
        self._held, self._held_times = 0.0, 0

    def _close(self, block: int) -> None:
        """Judge the block that ended, and note what passed without any reading until `block`."""
        end = float((self._block + 1) * BLOCK_SECONDS + self._phase)
        signals = self._signals
        held = to_pages(self._held / self._held_times) if self._held_times else EMPTY
        lows = Lows(_pages(self._low_used), _pages(self._low_allocated), _pages(self._low_outside), held)
        free = None if self._free is None else self._free / PAGE_BYTES
        full = self._is_full
        now = BlockContext(end, free, end - (self._started or 0.0), full)
        if self.trace is not None:
            self.trace.add(self._block, lows, free, self._slack)
        changed = signals.close(lows, now, self._slack) or self._judge_anew
        self._judge_anew = False
        gap = block - self._block - 1
        for _ in range(min(gap, _JUDGED_GAP)):  # as readings every 60 s leave them: levels above have some
            end += BLOCK_SECONDS
            now = now._replace(end_seconds=end, age_seconds=end - (self._started or 0.0))
            changed |= signals.close(_NO_LOWS, now, self._slack)
        if gap > _JUDGED_GAP:
            end += (gap - _JUDGED_GAP) * BLOCK_SECONDS
            signals.skip(gap - _JUDGED_GAP, end)
        if self._slow.verdict in GROWS and full is not (self._slow.state is GrowthState.FULL):
            changed = True
        changed |= self._free_has_moved()
        if changed or gap > 0 or signals.used.store.base_count % FIGURES_BLOCKS == 0:
            if full or self._slow.state is GrowthState.FULL:
                self._free_since = end
            room = Headroom(self._total_bytes, self._free, full, self._slack, self._free_since)
            growth = judge_signals(signals, self._sensitivity, end, room, self._slow, self._prior)
            if growth != self._slow:
                self._slow = growth
                self._add_fast_growth()
        if self._growth.fast:
            self._add_fast_growth()

    @property
    def _is_full(self) -> bool:
        return self._free is not None and self._free < FULL_SHARE * self._total_bytes

    def _note_free(self, time_seconds: float, free_bytes: float) -> None:
        """Judge growth that had no room anew as soon as a reading has some, and not at the end of its block."""
        self._free = free_bytes
        if self._slow.state is not GrowthState.FULL or self._is_full:
            return
        self._free_since = time_seconds
        room = Headroom(self._total_bytes, self._free, False, self._slack, time_seconds)
        self._slow = judge_signals(self._signals, self._sensitivity, time_seconds, room, self._slow, self._prior)
        self._add_fast_growth()

    def _free_has_moved(self) -> bool:
        """Return whether the forecast is not of what is free now; that of growth in steps never is of that alone."""
        forecast, slope = self._slow.exhaustion, self._slow.slope
        if forecast is None or slope is None or self._free is None:
            return False
        was = forecast.value * slope.value
        return abs(self._free - was) > MOVED_SHARE * was

    def _add_fast_growth(self) -> None:
        """Add the fast tier's word, if it has one."""
        growth = self._slow
        if self._last_seconds < self._fast.until_seconds:
            growth = add_fast_growth(growth, self._fast.pace, self._free)
        if growth != self._growth:
            self._growth = growth


def _check(sensitivity: Dial) -> None:
    if sensitivity not in DIALS:
        raise ValueError(f"{sensitivity} is none of {', '.join(DIALS)}")


def _criterion(dial: Dial) -> Sensitivity:
    """Return by what the allocator's signals are judged; while it is off, none of them is told."""
    return "strict" if dial == "off" else dial


def _pages(low: float) -> int:
    return EMPTY if low == MOST_BYTES else to_pages(low)
