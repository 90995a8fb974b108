"""What speaks for a leak and what against it, criterion by criterion: for whoever asks why there is a verdict."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

from gpuagent.core.units import format_bytes, format_duration
from gpuagent_alerts.leak.blocks import EMPTY, PAGE_BYTES, BlockStore
from gpuagent_alerts.leak.criterion import Criterion, RejectReason, reject_reason
from gpuagent_alerts.leak.reasons import describe_against
from gpuagent_alerts.leak.settings import SENSITIVITIES, Dial
from gpuagent_alerts.leak.signals import OWN_NAMES, SLACK_WEIGHT, USED_NAME, ProcessSignals, Signal
from gpuagent_alerts.leak.windows import LENGTHS, Window, Windows

SUSPECTED_NAME: Final = "suspected"
"""The criterion of the verdict `growing`."""


class Examined(NamedTuple):
    """A detector, as it stands. Times are on its clock; memory is in bytes."""

    signals: ProcessSignals
    sensitivity: Dial
    total_bytes: int
    free_bytes: float | None
    started_seconds: float | None
    last_seconds: float
    keeps_from_seconds: float | None
    """End of the first blackout; None before the first reading."""
    phase: int
    slack_bytes: float
    """What the allocator holds beyond its tensors."""


class WindowFinding(NamedTuple):
    """A window of time, as one criterion judges it."""

    seconds: float
    growth_bytes: int
    needed_bytes: int
    """Growth that counts over so long, in proportion to what is free."""
    against: RejectReason | None
    """What speaks against a leak, of growth that counts."""

    @property
    def counts(self) -> bool:
        """The growth is large enough to be judged."""
        return self.growth_bytes >= self.needed_bytes

    @property
    def words(self) -> str:
        """What is to be said of it."""
        rose = f"rose by {format_bytes(self.growth_bytes)} in {format_duration(self.seconds)}"
        if not self.counts:
            return f"{rose}; {format_bytes(self.needed_bytes)} would count"
        return f"{rose}, {describe_against(self.against)}" if self.against is not None else f"{rose}, as a leak does"


class CriterionFinding(NamedTuple):
    """One criterion of one signal: its alarm, or the window that came nearest to one."""

    sensitivity: str
    signal: str
    raised_seconds: float | None
    """When its alarm was raised, on the detector's clock; None while there is none."""
    windows: tuple[WindowFinding, ...]
    """The nearest window of each length of block, the shortest first; with an alarm, the alarm's alone."""

    @property
    def nearest(self) -> WindowFinding | None:
        """The window that came nearest to an alarm."""
        return max(self.windows, key=_nearness, default=None)


def findings_of(examined: Examined) -> list[CriterionFinding]:
    """Return what every criterion has found, of the signals that are judged now."""
    signals = examined.signals
    found: list[CriterionFinding] = []
    if signals.own is not None:
        dial = "strict" if examined.sensitivity == "off" else examined.sensitivity
        for signal, what in zip(signals.own, OWN_NAMES, strict=True):
            levels = _levels(signal)
            for criterion, name in zip(signal.criteria, (dial, SUSPECTED_NAME), strict=True):
                found.append(_finding(examined, levels, criterion, name, what))
        return found
    levels = _levels(signals.used)
    for criterion, name in zip(signals.used.criteria, (*SENSITIVITIES, SUSPECTED_NAME), strict=True):
        found.append(_finding(examined, levels, criterion, name, USED_NAME))
    return found


class _Levels(NamedTuple):
    """The windows of each level, measured once for all criteria."""

    store: BlockStore
    windows: list[Windows]


def _levels(signal: Signal) -> _Levels:
    store = signal.store
    return _Levels(store, [Windows(store, level, signal.work) for level in store.begun])


def _finding(examined: Examined, levels: _Levels, criterion: Criterion, name: str, what: str) -> CriterionFinding:
    alarm = criterion.alarm
    if alarm is not None:
        growth = alarm.growth * PAGE_BYTES
        return CriterionFinding(name, what, alarm.seconds, (WindowFinding(alarm.window_seconds, growth, growth, None),))
    free = examined.free_bytes
    if free is None:
        return CriterionFinding(name, what, None, ())
    slack = SLACK_WEIGHT * examined.slack_bytes if what == OWN_NAMES[0] else 0.0
    started = examined.last_seconds if examined.started_seconds is None else examined.started_seconds
    age = examined.last_seconds - started
    return CriterionFinding(name, what, None, tuple(_windows(levels, criterion, (free + slack) / PAGE_BYTES, age)))


def _windows(levels: _Levels, criterion: Criterion, free_pages: float, age_seconds: float) -> Iterator[WindowFinding]:
    store, settings = levels.store, criterion.settings
    for windows in levels.windows:
        nearest: WindowFinding | None = None
        for blocks in LENGTHS:
            if blocks > len(windows.ring) or store.base_count - (blocks << windows.level) < criterion.epoch:
                break
            if not _rises(windows, blocks):
                continue
            window = windows.of(blocks)
            share = settings.share_over(window.seconds, age_seconds)
            needed = max(criterion.least, math.ceil(share * free_pages))
            stop = _stop(window, criterion, store, free_pages, age_seconds) if window.growth >= needed else None
            found = WindowFinding(window.seconds, window.growth * PAGE_BYTES, needed * PAGE_BYTES, stop)
            if nearest is None or _nearness(found) > _nearness(nearest):
                nearest = found
        if nearest is not None:
            yield nearest


def _rises(windows: Windows, blocks: int) -> bool:
    """Return whether it can be measured: its newest block has a reading, and lies above another."""
    ring = windows.ring
    return ring[-1] != EMPTY and ring[-1] > min(ring[-blocks:])


def _stop(
    window: Window, criterion: Criterion, store: BlockStore, free_pages: float, age_seconds: float
) -> RejectReason | None:
    bar = criterion.bar_now(store)
    if bar > window.older_high:
        window = window._replace(older_high=bar)
    return reject_reason(window, criterion.settings, free_pages, age_seconds)


def _nearness(finding: WindowFinding) -> tuple[float, float]:
    """Growth that counts is nearer than any that does not; then by the last of the tests that it reached."""
    share = finding.growth_bytes / max(finding.needed_bytes, 1)
    if not finding.counts:
        return 0.0, share
    return (max(RejectReason) + 1.0 if finding.against is None else float(finding.against)), share
