"""The verdict on a process, of the alarms that are on and of what came before, with its reasons in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from operator import itemgetter
from typing import Final, NamedTuple

from gpuagent.core.growth import Evidence, Growth, GrowthState, Range, Verdict
from gpuagent_alerts.leak.blocks import BLOCK_SECONDS, EMPTY, PAGE_BYTES, BlockStore
from gpuagent_alerts.leak.course import LIVES_ROSE, rising_course
from gpuagent_alerts.leak.criterion import Alarm, Ending
from gpuagent_alerts.leak.forecast import (
    HIGH_FACTOR,
    LOW_FACTOR,
    USUAL_SECONDS,
    Resumption,
    Steps,
    exhaustion_of,
    forecast_window,
    growing_slope,
    resumption_of,
    rise_of_late,
    slope_of,
    steps_of,
    still_seconds,
    stop_of,
)
from gpuagent_alerts.leak.reasons import (
    FAR_FROM_FULL,
    GOES_ON,
    LEAKED_BEFORE,
    LIVES_CUT_SHORT,
    ON_HELD_GROUND,
    PLATEAU_SECONDS,
    describe_cache,
    describe_end,
    describe_rejection,
    describe_rise,
    format_pages,
)
from gpuagent_alerts.leak.second_life import LEAKS_AGAIN, pace_of_leak
from gpuagent_alerts.leak.settings import SENSITIVITIES, SUSPECTED, Dial
from gpuagent_alerts.leak.signals import OWN_NAMES, USED_NAME, ProcessSignals, Signal
from gpuagent_alerts.leak.teeth import is_held_before, teeth_of
from gpuagent_alerts.leak.witnesses import (
    NOTHING_KNOWN,
    Finding,
    Prior,
    describe_held_back,
    finding_of,
    is_confirmed,
    is_held_back,
    is_slow,
    left_seconds,
)

TYPICAL_NAME: Final = "memory between dips"
TYPICAL_TENSORS_NAME: Final = "tensors between dips"
LEARNING_BLOCKS: Final = 16
"""Blocks before the first window exists."""
LEARNING_LEVELS: Final = 3
"""Levels of blocks of up to a minute: readings are expected no less often."""
LEAST_LEVELLED_SECONDS: Final = 3_600.0
"""`levelled off` is told for as long as the alarm's window was, at least an hour ..."""
MOST_LEVELLED_SECONDS: Final = 86_400.0
"""... and at most a day."""

CONFIRMING_SHARE: Final = 0.5
"""The share of the allocator's slope that confirms: reserved memory moves in steps, and begins with room."""

LATE_SHARE: Final = 0.4
"""The share of its pace that the later half of the usual window must have: what slowed to less does not rise."""

RESUMES_SHARE: Final = 0.03
"""The share of the alarm's growth by which what has stopped must rise again, where it does so unevenly."""

GROWS: Final = frozenset({Verdict.GROWING, Verdict.LEAKING})
_OVER: Final = frozenset({GrowthState.STOPPED, GrowthState.FULL})
FULL_NOW: Final = Range(0.0, 0.0, 0.0)
"""The forecast of what has no room any more."""
STILL: Final = Range(0.0, 0.0, 0.0)
"""The slope of what does not grow."""
LEARNING: Final = Growth(Verdict.LEARNING)


class Headroom(NamedTuple):
    """What there is to grow into. Memory in bytes."""

    total_bytes: float
    free_bytes: float | None
    full: bool
    """No room at all: see `settings.FULL_SHARE`."""
    slack_bytes: float
    """What the allocator holds beyond its tensors."""
    free_since_seconds: float | None = None
    """Time at which there was room again after there was none; None where there always was."""


def judge_signals(
    signals: ProcessSignals,
    sensitivity: Dial,
    now_seconds: float,
    room: Headroom,
    before: Growth,
    prior: Prior = NOTHING_KNOWN,
) -> Growth:
    """Return the verdict with its figures. `before` is the last one: growth that stops keeps its pace and its begin.

    `prior` is what other lives of the same service have shown.
    """
    found, doubt = _leak(signals, sensitivity, prior), ""
    suspicion = _suspicion(signals, prior)
    if found is not None and is_slow(found, room.free_bytes, now_seconds):
        found, suspicion, doubt = _weaken(found, sensitivity), suspicion or found, FAR_FROM_FULL
    if found is not None and before.verdict is not Verdict.LEAKING and is_held_back(found, room.free_bytes):
        doubt = describe_held_back(found)
        found, suspicion = None, suspicion or found
    if found is None and suspicion is not None and not doubt and _counts_as_leak(suspicion, sensitivity, prior, room):
        found, doubt = suspicion._replace(evidence=Evidence.BALANCED), LEAKED_BEFORE
    if found is not None or suspicion is not None:
        return _judge_rise(signals, (found, suspicion, doubt), now_seconds, room, before, prior)
    slope = _slope(signals, USUAL_SECONDS)
    cache = signals.used.criteria[-1].alarm
    if cache is not None:  # while there is a client; without one this is a suspicion
        return Growth(Verdict.CACHED, slope=slope, reasons=describe_cache(cache, room.slack_bytes))
    judged = (signals.own or (signals.used,))[0]
    learns = _learns(judged) or (slope is None and judged.store.base_count < 2 * LEARNING_BLOCKS)
    other = LEARNING if learns else None
    if other is None and prior.leaked and not prior.level_used and sensitivity in ("balanced", "sensitive"):
        other = _as_risen(judged, now_seconds, room, before, has_client=signals.own is not None)
    if other is not None:
        return other
    rejection = judged.criteria[-1].rejection
    recent = rejection is not None and now_seconds - rejection.seconds <= rejection.window_seconds / 2
    against = describe_rejection(rejection) if rejection and recent else ()
    if slope is not None and _rises(judged, room.total_bytes):
        seen = min(USUAL_SECONDS, judged.store.base_count * BLOCK_SECONDS)
        since = before.since_seconds if before.verdict in GROWS else now_seconds - seen
        teeth = teeth_of(judged.store, USUAL_SECONDS)
        again = teeth is None and is_held_before(judged.store, USUAL_SECONDS, room.free_bytes, room.total_bytes)
        slope = _grown_at(signals, USUAL_SECONDS) or slope  # it may have begun to rise within that time
        rise = Growth(
            Verdict.GROWING,
            slope=slope if teeth is None else _around(teeth.pace),
            since_seconds=since,
            reasons=against or ((ON_HELD_GROUND,) if again else GOES_ON),
            state=GrowthState.RISING,
            held_before=again,
        )
        return rise if again else _as_leak_by_lives(rise, signals, sensitivity, room, before, prior)
    still = None if slope is None else STILL
    ending, held = _ending(signals, sensitivity, now_seconds)
    if ending is not None:
        is_known = before.verdict is Verdict.LEVELLED_OFF
        known = before.reasons if is_known else describe_end(ending, held, room.free_bytes)
        alarm = ending.alarm
        stopped = None if ending.released else ending.seconds - max(alarm.window_seconds, PLATEAU_SECONDS)
        return Growth(Verdict.LEVELLED_OFF, slope=still, stopped_seconds=stopped, reasons=known)
    lately = 0 if against else rise_of_late(judged.store)
    is_jump = lately * PAGE_BYTES >= SUSPECTED.least_growth(room.total_bytes)
    unsaid = f"rose by {format_pages(lately)} within 2 min, too short to say more"
    return Growth(Verdict.STEADY, slope=None if is_jump else still, reasons=(unsaid,) if is_jump else against)


def _as_risen(judged: Signal, now_seconds: float, room: Headroom, before: Growth, *, has_client: bool) -> Growth | None:
    """Return the verdict on a life that has risen since its start, as the ones before it did; None where it has not."""
    least, is_told = SUSPECTED.least_growth(room.total_bytes), LIVES_ROSE in before.reasons
    course = rising_course(judged.store, room.free_bytes, least, is_told=is_told)
    if course is None:
        return None
    now = slope_of(judged.store, USUAL_SECONDS)
    stands = now is None or now.value <= 0 or stop_of(judged.store, USUAL_SECONDS) is not None
    if stands and not is_told:
        return None
    state = GrowthState.STOPPED if stands else GrowthState.RISING
    slope = _around(course.pages * PAGE_BYTES / course.seconds)
    since = before.since_seconds if is_told else now_seconds - course.seconds
    return Growth(
        Verdict.LEAKING, Evidence.BALANCED, slope, since_seconds=since, reasons=(LIVES_ROSE,), state=state,
        exhaustion=_exhaustion(state, room, slope, None, None), driver_confirms=not has_client,
    )  # fmt: skip


def _as_leak_by_lives(
    rise: Growth, signals: ProcessSignals, sensitivity: Dial, room: Headroom, before: Growth, prior: Prior
) -> Growth:
    """Return the verdict on what rises where other lives of the service make that enough for a leak."""
    slope, why = rise.slope, LIVES_CUT_SHORT
    if sensitivity not in ("balanced", "sensitive") or prior.cut_short_seconds is None:
        goes_on, why = LEAKS_AGAIN in before.reasons, LEAKS_AGAIN
        slope = pace_of_leak(signals, sensitivity, prior, room.total_bytes, room.free_bytes, goes_on=goes_on)
        if slope is None:
            return rise
    return replace(
        rise, verdict=Verdict.LEAKING, evidence=Evidence.BALANCED, reasons=(why,), slope=slope,
        exhaustion=_exhaustion(GrowthState.RISING, room, slope, None, None), driver_confirms=signals.own is None,
    )  # fmt: skip


def _judge_rise(
    signals: ProcessSignals,
    findings: tuple[Finding | None, Finding | None, str],
    now_seconds: float,
    room: Headroom,
    before: Growth,
    prior: Prior,
) -> Growth:
    """Return the verdict on what leaks, or is suspected to; with what else is to be said of it."""
    leak, suspicion, more = findings
    main = leak or suspicion
    assert main is not None  # noqa: S101 - the caller has one
    alarm = main.alarm
    # What tensors take for a request and give back makes teeth too, and says nothing of the forecast.
    teeth = teeth_of(_stores(signals)[-1], forecast_window(alarm.window_seconds)) if signals.own is None else None
    onsets = [one.alarm.onset_seconds for one in (leak, suspicion) if one is not None]
    if (before.suspected or before.verdict is Verdict.LEAKING) and before.since_seconds is not None:
        onsets.append(before.since_seconds)
    state, slope = _pace(signals, alarm, room, before, now_seconds)
    if teeth is not None and not room.full and (teeth.goes_on or state is GrowthState.RISING):
        state, slope = GrowthState.RISING, _around(teeth.pace)
    elif state is GrowthState.STOPPED and before.state not in _OVER:
        # What slows down before it stops is told with the pace of all its growth, and not with that of its end.
        slope = _grown_at(signals, now_seconds - min(onsets)) or slope
    mean = None if room.free_bytes is None else left_seconds(main, room.free_bytes / PAGE_BYTES, now_seconds)
    if teeth is not None and state is GrowthState.RISING and room.free_bytes is not None:
        left = teeth.seconds_left(room.free_bytes)
        exhaustion = exhaustion_of(left * teeth.pace, teeth.pace, None, mean)
    else:
        exhaustion = _exhaustion(state, room, slope, _steps(signals, alarm), mean)
    confirms = leak is not None and _driver_confirms(signals, leak.alarm, leak.evidence)
    stopped = state is not GrowthState.RISING  # its pace is that of before, and so is what confirmed it
    confirms = confirms or (stopped and leak is not None and before.driver_confirms)
    # What the app says of its allocator is no witness for itself.
    confirmed = leak is not None and confirms and is_confirmed(leak, room.free_bytes, exhaustion, prior, now_seconds)
    return Growth(
        Verdict.LEAKING if leak else Verdict.GROWING,
        None if leak is None else leak.evidence,
        slope,
        min(onsets),
        exhaustion,
        (*describe_rise(alarm, main.what, room.free_bytes), *([more] if more else [])),
        confirmed=confirmed or (leak is not None and before.confirmed),
        driver_confirms=confirms,
        suspected=leak is None,
        state=state,
    )


def _weaken(finding: Finding, sensitivity: Dial) -> Finding | None:
    """Return growth that is far from filling the memory by a weaker evidence; None where that is not asked for."""
    return None if sensitivity == "strict" else finding._replace(evidence=Evidence.BALANCED)


def _counts_as_leak(suspicion: Finding, sensitivity: Dial, prior: Prior, room: Headroom) -> bool:
    """Return whether growth is enough, because an earlier life of the service leaked until its end."""
    if sensitivity in ("off", "strict") or not prior.leaked:
        return False
    return not is_held_back(suspicion, room.free_bytes)


def add_fast_growth(slow: Growth, pace: float | None, free_bytes: float | None) -> Growth:
    """Return the verdict with growth of so many bytes a second that would fill the memory: one pace and one forecast.

    Where the slow judgment has a forecast that comes sooner, that one holds for both.
    """
    if pace is None or free_bytes is None:
        return replace(slow, fast=True)
    seconds = free_bytes / pace
    if slow.exhaustion is not None and slow.exhaustion.value <= seconds:
        return replace(slow, fast=True, fast_exhaustion_seconds=slow.exhaustion.value)
    return replace(
        slow,
        verdict=slow.verdict if slow.verdict in GROWS else Verdict.GROWING,
        state=GrowthState.RISING,
        slope=Range(pace, LOW_FACTOR * pace, HIGH_FACTOR * pace),
        exhaustion=None if slow.exhaustion is None else Range(seconds, LOW_FACTOR * seconds, HIGH_FACTOR * seconds),
        fast=True,
        fast_exhaustion_seconds=seconds,
    )


def _pace(
    signals: ProcessSignals, alarm: Alarm, room: Headroom, before: Growth, now_seconds: float
) -> tuple[GrowthState, Range | None]:
    """Return whether it still rises, and how fast; of what has stopped, how fast it did while it rose."""
    window = forecast_window(alarm.window_seconds)
    # What began within that time stood still before: no part of its pace.
    slope = _slope(signals, min(window, now_seconds - alarm.onset_seconds)) or _slope(signals, window)
    had_pace = before.verdict in GROWS and before.slope is not None and before.slope.value > 0
    if slope is None and had_pace and before.state is not GrowthState.FULL and not room.full:
        return before.state or GrowthState.RISING, before.slope  # nothing was read: neither has it stopped
    rises = slope is not None and _goes_on(slope, window, alarm, before) and not _has_stopped(signals, window)
    if rises and not room.full:
        resumed = _resumed(signals, window)
        if resumed is None or (resumed.pace is None and not had_pace):
            return GrowthState.RISING, slope
        if resumed.pace is not None:
            return GrowthState.RISING, _around(resumed.pace)
        # It has no pace of its own yet: until then it is told as before, or as what went on until the GPU was full.
        return GrowthState.STOPPED if before.state is GrowthState.STOPPED else GrowthState.RISING, before.slope
    waited = None if room.free_since_seconds is None else now_seconds - room.free_since_seconds
    if had_pace and not room.full and waited is not None and 0.0 <= waited < still_seconds(window):
        return GrowthState.RISING, before.slope  # it stood still for want of room, and not yet for long with some
    if not (had_pace and before.state in _OVER):
        grew = _grown_at(signals, window)
        if grew is not None:
            slope = grew
        elif had_pace:
            slope = before.slope
        elif not rises:
            slope = _around(alarm.growth * PAGE_BYTES / alarm.window_seconds)
    else:
        slope = before.slope
    return GrowthState.FULL if room.full else GrowthState.STOPPED, slope


def _goes_on(slope: Range, seconds: float, alarm: Alarm, before: Growth) -> bool:
    """Return whether this is growth: of what has stopped, what rises a little and unevenly is noise."""
    if before.state is not GrowthState.STOPPED or slope.low > 0:
        return slope.value > 0
    return slope.value * seconds >= RESUMES_SHARE * alarm.growth * PAGE_BYTES


def _around(pace: float) -> Range:
    return Range(pace, LOW_FACTOR * pace, HIGH_FACTOR * pace)


def _stores(signals: ProcessSignals) -> list[BlockStore]:
    """Return the blocks of what the driver tells, and of what the allocator does; typical ones where they leak."""
    if signals.own is None:
        typical = signals.typical.signal
        dips = typical is not None and typical.criteria[0].alarm is not None
        return [typical.store if typical and dips and not signals.used.criteria[0].alarm else signals.used.store]
    dipping = None if signals.typical_tensors is None else signals.typical_tensors.signal
    if dipping is not None and dipping.criteria[0].alarm and not signals.own[0].criteria[0].alarm:
        return [dipping.store]
    return [signals.used.store, signals.own[0].store]


def _has_stopped(signals: ProcessSignals, seconds: float) -> bool:
    """Return whether nothing of it rises any more, of what rose in the last so many seconds."""
    rising = [
        store for store in _stores(signals) if (slope := slope_of(store, seconds)) is not None and slope.value > 0
    ]
    return bool(rising) and all(stop_of(store, seconds) is not None for store in rising)


def _resumed(signals: ProcessSignals, seconds: float) -> Resumption | None:
    """Return how it goes on after it stood still; None where some of it did not stand still within that time."""
    found = [resumption_of(store, seconds) for store in _stores(signals)]
    known = [one for one in found if one is not None]
    if len(known) < len(found):
        return None
    return max(known, key=lambda one: one.pace or 0.0)


def _grown_at(signals: ProcessSignals, seconds: float) -> Range | None:
    """Return the pace of the growth of the last so many seconds, while it went on; None where nothing grew."""
    paces = [pace for store in _stores(signals) if (pace := growing_slope(store, seconds)) is not None]
    return _around(max(paces)) if paces else None


def _exhaustion(
    state: GrowthState, room: Headroom, slope: Range | None, steps: Steps | None, mean: float | None
) -> Range | None:
    if state is GrowthState.FULL:
        return FULL_NOW
    if state is GrowthState.STOPPED or slope is None or room.free_bytes is None:
        return None
    return exhaustion_of(room.free_bytes, slope.value, steps, mean)


def _steps(signals: ProcessSignals, alarm: Alarm) -> Steps | None:
    """Return how growth that comes in steps goes on; None where it rises all the time, or that cannot be said."""
    return steps_of(_stores(signals)[-1], forecast_window(alarm.window_seconds))


def _rises(signal: Signal, total_bytes: float) -> bool:
    """Return whether memory rises now, evenly and by an amount that counts: a jump of a while ago is over."""
    slope, late = slope_of(signal.store, USUAL_SECONDS), slope_of(signal.store, USUAL_SECONDS / 2)
    if slope is None or late is None or slope.low <= 0 or stop_of(signal.store, USUAL_SECONDS / 2) is not None:
        return False
    return slope.value * USUAL_SECONDS >= SUSPECTED.least_growth(total_bytes) and late.value >= LATE_SHARE * slope.value


def _leak(signals: ProcessSignals, sensitivity: Dial, prior: Prior) -> Finding | None:
    """Return the alarm that counts at this sensitivity, with the strictest criterion that has one."""
    if sensitivity == "off":
        return None
    if signals.own is not None:
        return next(_findings_of_own(signals, 0, prior), None)
    typical = signals.typical.signal
    dipping = None
    if typical is not None:
        dipping = finding_of(typical.criteria[0], typical.store, Evidence.STRICT, TYPICAL_NAME, prior.level_used)
    for name, criterion in zip(SENSITIVITIES, signals.used.criteria, strict=False):
        finding = finding_of(criterion, signals.used.store, Evidence(name), USED_NAME, prior.level_used) or dipping
        if finding is not None or name == sensitivity:
            return finding
    return None


def _findings_of_own(signals: ProcessSignals, place: int, prior: Prior) -> Iterator[Finding]:
    """Yield what the criteria of this place have found in the allocator's figures, the tensors' first."""
    for signal, what, level in zip(signals.own or (), OWN_NAMES, (prior.level_tensors, 0), strict=False):
        yield from _some(finding_of(signal.criteria[place], signal.store, Evidence.ALLOCATOR, what, level))
    dipping = None if signals.typical_tensors is None else signals.typical_tensors.signal
    if dipping is not None:
        one, store = dipping.criteria[0], dipping.store
        yield from _some(finding_of(one, store, Evidence.ALLOCATOR, TYPICAL_TENSORS_NAME, prior.level_tensors))


def _some(finding: Finding | None) -> Iterator[Finding]:
    if finding is not None:
        yield finding


def _suspicion(signals: ProcessSignals, prior: Prior) -> Finding | None:
    """Return the alarm of a lower criterion."""
    if signals.own is not None:
        return next(_findings_of_own(signals, -1, prior), None)
    for criterion in reversed(signals.used.criteria):
        finding = finding_of(criterion, signals.used.store, Evidence.BALANCED, USED_NAME, prior.level_used)
        if finding is not None:
            return finding
    return None


def _slope(signals: ProcessSignals, seconds: float) -> Range | None:
    """Return the steepest of what the driver and what the allocator tells."""
    slopes = (slope_of(store, seconds) for store in _stores(signals))
    return max((slope for slope in slopes if slope is not None), default=None)


def _driver_confirms(signals: ProcessSignals, leak: Alarm, evidence: Evidence | None) -> bool:
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


def _ending(signals: ProcessSignals, sensitivity: Dial, now_seconds: float) -> tuple[Ending | None, int]:
    """Return how the last leak ended, while that is worth telling, and how many pages it holds."""
    if sensitivity == "off":
        return None, 0
    judged = [(signals.used.criteria[SENSITIVITIES.index(sensitivity)], signals.used)]
    judged += [(signal.criteria[0], signal) for signal in signals.own or ()]
    endings = [(criterion.ending, signal.store) for criterion, signal in judged if criterion.ending is not None]
    if not endings:
        return None, 0
    last, store = max(endings, key=itemgetter(0))
    told = min(max(last.alarm.window_seconds, LEAST_LEVELLED_SECONDS), MOST_LEVELLED_SECONDS)
    held = next((value for value in reversed(store.ring(0)) if value != EMPTY), last.high)
    return (last if now_seconds - last.seconds <= told else None), held
