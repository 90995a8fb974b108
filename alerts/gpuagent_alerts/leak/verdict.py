"""The verdict on a process, of the alarms that are on and of what came before."""

from __future__ import annotations

from typing import Final

from gpuagent.growth import Evidence, Growth, Range, Verdict
from gpuagent_alerts.leak.blocks import EMPTY
from gpuagent_alerts.leak.forecast import USUAL_SECONDS, exhaustion_of, forecast_window, slope_of
from gpuagent_alerts.leak.settings import SENSITIVITIES, SUSPECTED, Sensitivity
from gpuagent_alerts.leak.signal import Signal
from gpuagent_alerts.leak.signals import OWN_NAMES, USED_NAME, Signals
from gpuagent_alerts.leak.standard import Alarm, Ending
from gpuagent_alerts.leak.words import cache_of, end_of, rejection_of, rise_of

LEARNING_BLOCKS: Final = 16
"""Blocks before the first window exists."""
LEARNING_LEVELS: Final = 3
"""Levels of blocks of up to a minute: readings are expected no less often."""
LEAST_LEVELLED_SECONDS: Final = 3_600.0
"""`levelled off` is told for as long as the alarm's window was, at least an hour ..."""
MOST_LEVELLED_SECONDS: Final = 86_400.0
"""... and at most a day."""

CONFIRMING_SHARE: Final = 0.5
"""Of the allocator's slope: its reserved memory moves in steps, and begins with room of its own."""

LEARNING: Final = Growth(Verdict.LEARNING)


def tell(
    signals: Signals, sensitivity: Sensitivity, now_seconds: float, free_bytes: float | None, slack_bytes: float
) -> Growth:
    """The verdict with its figures. `slack_bytes` is what the allocator holds beyond its tensors."""
    leak, evidence, what = _leak(signals, sensitivity)
    suspicion, suspected = _suspicion(signals)
    alarm = leak or suspicion
    if alarm is not None:
        slope = _slope(signals, forecast_window(alarm.window_seconds))
        return Growth(
            Verdict.LEAKING if leak else Verdict.GROWING,
            evidence,
            slope,
            min(one.onset_seconds for one in (leak, suspicion) if one is not None),
            None if slope is None or free_bytes is None else exhaustion_of(free_bytes, slope.value),
            rise_of(alarm, what or suspected),
            driver_confirms=leak is not None and _driver_confirms(signals, leak, evidence),
        )
    slope = _slope(signals, USUAL_SECONDS)
    cache = signals.used.standards[-1].alarm
    if cache is not None:  # while there is a client; without one this is a suspicion
        return Growth(Verdict.CACHED, slope=slope, reasons=cache_of(cache, slack_bytes))
    ending = _ending(signals, sensitivity, now_seconds)
    if ending is not None:
        return Growth(Verdict.LEVELLED_OFF, slope=slope, reasons=end_of(ending))
    judged = (signals.own or (signals.used,))[0]
    if _learns(judged):
        return LEARNING
    rejection = judged.standards[-1].rejection
    recent = rejection is not None and now_seconds - rejection.seconds <= rejection.window_seconds / 2
    return Growth(Verdict.STEADY, slope=slope, reasons=rejection_of(rejection) if rejection and recent else ())


def _leak(signals: Signals, sensitivity: Sensitivity) -> tuple[Alarm | None, Evidence | None, str]:
    """The alarm that counts at this sensitivity, and the strictest standard that has one."""
    for signal, what in zip(signals.own or (), OWN_NAMES, strict=False):
        alarm = signal.standards[0].alarm
        if alarm is not None:
            return alarm, Evidence.ALLOCATOR, what
    for name, standard in zip(SENSITIVITIES, signals.used.standards, strict=False):
        if standard.alarm is not None:
            return standard.alarm, Evidence(name), USED_NAME
        if name == sensitivity:
            break
    return None, None, ""


def _suspicion(signals: Signals) -> tuple[Alarm | None, str]:
    """The alarm of a lower standard."""
    for signal, what in zip(signals.own or (), OWN_NAMES, strict=False):
        alarm = signal.standards[-1].alarm
        if alarm is not None:
            return alarm, what
    if signals.own is None:
        for standard in reversed(signals.used.standards):
            if standard.alarm is not None:
                return standard.alarm, USED_NAME
    return None, ""


def _slope(signals: Signals, seconds: float) -> Range | None:
    """The steepest of what the driver and what the allocator tells."""
    stores = [signals.used.store] if signals.own is None else [signals.used.store, signals.own[0].store]
    slopes = (slope_of(store, seconds) for store in stores)
    return max((slope for slope in slopes if slope is not None), default=None)


def _driver_confirms(signals: Signals, leak: Alarm, evidence: Evidence | None) -> bool:
    """Return whether the driver's figures rise at least half as fast as what the client says of its allocator."""
    if evidence is not Evidence.ALLOCATOR or signals.own is None:
        return True
    claimed = [slope_of(signal.store, leak.window_seconds) for signal in signals.own]
    driver = slope_of(signals.used.store, leak.window_seconds)
    fastest = max((slope.value for slope in claimed if slope is not None), default=0.0)
    return driver is not None and driver.value > 0 and driver.value >= CONFIRMING_SHARE * fastest


def _learns(signal: Signal) -> bool:
    """Whether too little was seen of late for any window: of blocks of a minute, where readings are that rare."""
    store = signal.store
    for level in range(min(store.levels, LEARNING_LEVELS)):
        recent = store.ring(level, LEARNING_BLOCKS)
        present = len(recent) - recent.count(EMPTY)
        if present >= SUSPECTED.coverage * LEARNING_BLOCKS and len(recent) == LEARNING_BLOCKS:
            return False
    return True


def _ending(signals: Signals, sensitivity: Sensitivity, now_seconds: float) -> Ending | None:
    """How the last leak ended, while that is worth telling."""
    standards = [signals.used.standards[SENSITIVITIES.index(sensitivity)]]
    standards += [signal.standards[0] for signal in signals.own or ()]
    last = max((one.ending for one in standards if one.ending is not None), default=None)
    if last is None:
        return None
    told = min(max(last.alarm.window_seconds, LEAST_LEVELLED_SECONDS), MOST_LEVELLED_SECONDS)
    return last if now_seconds - last.seconds <= told else None
