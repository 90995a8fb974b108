"""A detector's state as bytes, for the agent's next life: a version, a checksum, and every number exactly.

At most `MOST_STATE_BYTES`, whatever was seen. Little-endian, so that a disk may move to another machine.
"""

from __future__ import annotations

import math
import struct
import sys
import zlib
from array import array
from typing import Any, Final

from gpuagent.core.growth import Evidence, Growth, GrowthState, Range, Verdict
from gpuagent_alerts.leak.blocks import LEVELS, RING, SLOTS, BlockStore
from gpuagent_alerts.leak.criterion import Alarm, Criterion, Ending, Rejection, RejectReason
from gpuagent_alerts.leak.forecast import POINTS, FastGrowth
from gpuagent_alerts.leak.signals import ProcessSignals, Signal
from gpuagent_alerts.leak.typical import MEDIANS
from gpuagent_alerts.leak.work_clock import WORK_LEVELS

VERSION: Final = 3
OLDEST_VERSION: Final = 2
"""What a dump of an earlier version lacks begins anew: the clock of work and the typical memory."""
_WITH_CLOCK: Final = 3
_WITH_TYPICAL: Final = 3
MOST_STATE_BYTES: Final = 16_384
_HEAD: Final = struct.Struct("<4sHI")  # magic, version, CRC-32 of the rest
_MAGIC: Final = b"GLKD"
_ALARM: Final = "ddIIIQB?"
_VERDICTS: Final = tuple(Verdict)
_EVIDENCE: Final = (
    None, Evidence.ALLOCATOR, Evidence.STRICT, Evidence.BALANCED, Evidence.SENSITIVE
)  # fmt: skip
"""By their numbers in dumps."""
_CONFIRMED: Final = 0x80
"""Beside the number of the evidence: the driver's own figures confirm the leak."""
_SUSPECTED: Final = 0x40
_WITNESSED: Final = 0x08
"""... and there is more than one witness of it."""
_STATES: Final = {None: 0x00, GrowthState.RISING: 0x10, GrowthState.STOPPED: 0x20, GrowthState.FULL: 0x30}
_STATE_BITS: Final = 0x30
_HELD_BEFORE: Final = 0x80
"""Beside the number of the verdict."""
_MOST_REASONS: Final = 4
_LARGEST_PAGES: Final = 2**64 - 1


class Writer:
    """Numbers, one after another."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def put(self, form: str, *values: float) -> None:
        """Values in `struct`'s format, without padding."""
        self._parts.append(struct.pack(f"<{form}", *values))

    def put_array(self, numbers: array[Any]) -> None:
        """Write an array of at most 255 numbers, with its length."""
        if sys.byteorder == "big":
            numbers = array(numbers.typecode, numbers)
            numbers.byteswap()
        self.put("B", len(numbers))
        self._parts.append(numbers.tobytes())

    def seal(self) -> bytes:
        """Return all of it, with a head."""
        body = b"".join(self._parts)
        return _HEAD.pack(_MAGIC, VERSION, zlib.crc32(body)) + body


class Reader:
    """What a `Writer` has sealed. Every fault is a ValueError."""

    def __init__(self, data: bytes) -> None:
        if len(data) < _HEAD.size or len(data) > MOST_STATE_BYTES:
            raise ValueError("no state of a leak detector: of an impossible length")
        magic, version, checksum = _HEAD.unpack_from(data)
        if magic != _MAGIC:
            raise ValueError("no state of a leak detector")
        if not OLDEST_VERSION <= version <= VERSION:
            raise ValueError(f"state of a leak detector of version {version}, here it is {VERSION}")
        self.version = int(version)
        if zlib.crc32(data[_HEAD.size :]) != checksum:
            raise ValueError("state of a leak detector: it is damaged")
        self._data = data
        self._place = _HEAD.size

    def take(self, form: str) -> tuple[Any, ...]:
        """Return the next values of this format."""
        packed = struct.Struct(f"<{form}")
        if self._place + packed.size > len(self._data):
            raise ValueError("state of a leak detector: it ends too early")
        values = packed.unpack_from(self._data, self._place)
        self._place += packed.size
        return values

    def take_array(self, typecode: str, most: int) -> array[Any]:
        """Return the next array, of at most so many numbers."""
        (length,) = self.take("B")
        numbers = array(typecode)
        end = self._place + length * numbers.itemsize
        if length > most or end > len(self._data):
            raise ValueError("state of a leak detector: an array of an impossible length")
        numbers.frombytes(self._data[self._place : end])
        if sys.byteorder == "big":
            numbers.byteswap()
        self._place = end
        return numbers

    def end(self) -> None:
        """There must be nothing left."""
        if self._place != len(self._data):
            raise ValueError("state of a leak detector: something follows its end")


# ---- blocks ----------------------------------------------------------------------------------------------


def _write_store(writer: Writer, store: BlockStore) -> None:
    writer.put("qqB", store.base_count, store.slot, store.levels)
    for level in store.begun:
        writer.put_array(store.ring(level))
        writer.put_array(store.highs_of(level))
        waits = (store.base_count >> level) % 2 == 1  # the first of a pair, which goes up with its second
        writer.put("?I", waits, store.newest(level) if waits else 0)


def _read_store(reader: Reader, store: BlockStore) -> None:
    store.base_count, store.slot, levels = reader.take("qqB")
    if store.base_count < 0 or levels != store.levels:
        raise ValueError("state of a leak detector: levels are missing")
    for level in store.begun:
        ring, highs = reader.take_array("I", RING), reader.take_array("I", SLOTS)
        try:
            store.restore_level(level, ring, highs)
        except ValueError:
            raise ValueError("state of a leak detector: blocks are missing") from None
        reader.take("?I")


# ---- criteria -------------------------------------------------------------------------------------------


def _write_alarm(writer: Writer, alarm: Alarm) -> None:
    writer.put(
        _ALARM,
        alarm.seconds,
        alarm.onset_seconds,
        int(alarm.window_seconds),
        alarm.growth,
        alarm.floor,
        min(alarm.free, _LARGEST_PAGES),
        alarm.even_eighths,
        alarm.slows_down,
    )


def _read_alarm(reader: Reader) -> Alarm:
    seconds, onset, window, growth, floor, free, eighths, slows_down = reader.take(_ALARM)
    return Alarm(seconds, onset, float(window), growth, floor, free, eighths, slows_down)


def _write_criterion(writer: Writer, criterion: Criterion) -> None:
    alarm, ending, rejection = criterion.alarm, criterion.ending, criterion.rejection
    flags = (alarm is not None) + 2 * (ending is not None) + 4 * (rejection is not None)
    writer.put(
        "BqIdIq", flags, criterion.epoch, criterion.high, criterion.high_seconds, criterion.bar, criterion.bar_slot
    )
    writer.put_array(array("B", criterion.repeats or bytes(LEVELS)))
    if alarm is not None:
        _write_alarm(writer, alarm)
    if ending is not None:
        writer.put("d?I", ending.seconds, ending.released, ending.high)
        _write_alarm(writer, ending.alarm)
    if rejection is not None:
        writer.put("dBII", rejection.seconds, rejection.stop, int(rejection.window_seconds), rejection.growth)


def _read_criterion(reader: Reader, criterion: Criterion) -> None:
    flags, *numbers = reader.take("BqIdIq")
    criterion.epoch, criterion.high, criterion.high_seconds, criterion.bar, criterion.bar_slot = numbers
    repeats = reader.take_array("B", LEVELS)
    if len(repeats) != LEVELS:
        raise ValueError("state of a leak detector: repeats are missing")
    criterion.repeats = bytearray(repeats) if any(repeats) else None
    if flags & 1:
        criterion.alarm = _read_alarm(reader)
    if flags & 2:
        seconds, released, high = reader.take("d?I")
        criterion.ending = Ending(seconds, released, _read_alarm(reader), high)
    if flags & 4:
        seconds, stop, window, growth = reader.take("dBII")
        criterion.rejection = Rejection(seconds, RejectReason(stop), float(window), growth)


# ---- the whole -------------------------------------------------------------------------------------------


def _write_signal(writer: Writer, signal: Signal) -> None:
    _write_store(writer, signal.store)
    if signal.work is not None:
        ring, numbers = signal.work.state()
        writer.put_array(ring)
        writer.put("5q", *numbers)
        writer.put("I", signal.work.floor)
        for each in signal.work.clock.state():
            writer.put_array(each)
    for criterion in signal.criteria:
        _write_criterion(writer, criterion)


def _read_signal(reader: Reader, signal: Signal) -> None:
    _read_store(reader, signal.store)
    if signal.work is not None:
        ring = reader.take_array("f", RING)
        signal.work.restore(ring, reader.take("5q"))
        if reader.version >= _WITH_CLOCK:
            (signal.work.floor,) = reader.take("I")
            signal.work.clock.restore([reader.take_array("f", RING) for _ in range(WORK_LEVELS)])
    for criterion in signal.criteria:
        _read_criterion(reader, criterion)


def write_signals(writer: Writer, signals: ProcessSignals) -> None:
    """Blocks and alarms."""
    writer.put("q?", signals.silent_blocks, signals.own is not None)
    for signal in (signals.used, *(signals.own or ())):
        _write_signal(writer, signal)
    for typical in (signals.typical, signals.typical_tensors):
        if typical is not None:
            writer.put_array(typical.memory.medians)
            writer.put_array(typical.memory.lows)
            writer.put("q?", typical.epoch, typical.signal is not None)
            if typical.signal is not None:
                _write_signal(writer, typical.signal)


def read_signals(reader: Reader, signals: ProcessSignals) -> None:
    """Into signals that are new."""
    signals.silent_blocks, own = reader.take("q?")
    _read_signal(reader, signals.used)
    if own:
        for signal in signals.open_own():
            _read_signal(reader, signal)
    for typical in (signals.typical, signals.typical_tensors):
        if typical is not None and reader.version >= _WITH_TYPICAL:
            medians, lows = (reader.take_array("I", MEDIANS) for _ in range(2))
            if len(medians) != len(lows):
                raise ValueError("state of a leak detector: medians without their lows")
            typical.memory.medians, typical.memory.lows = medians, lows
            typical.epoch, opened = reader.take("q?")
            if opened:
                _read_signal(reader, typical.open())


def write_fast(writer: Writer, fast: FastGrowth) -> None:
    """Write the last readings."""
    writer.put_array(fast.times)
    writer.put_array(fast.used)
    writer.put("dd", fast.until_seconds, -1.0 if fast.pace is None else fast.pace)


def read_fast(reader: Reader, fast: FastGrowth) -> None:
    """Into one that is new."""
    fast.times = reader.take_array("d", POINTS)
    fast.used = reader.take_array("d", POINTS)
    if len(fast.times) != len(fast.used):
        raise ValueError("state of a leak detector: readings without a time")
    fast.free = array("d", [math.nan] * len(fast.times))
    fast.until_seconds, pace = reader.take("dd")
    fast.pace = pace if pace > 0 else None


def write_growth(writer: Writer, growth: Growth) -> None:
    """Write the last verdict of the slow detector."""
    evidence = _EVIDENCE.index(growth.evidence) | (_CONFIRMED if growth.driver_confirms else 0)
    evidence |= _WITNESSED if growth.confirmed else 0
    evidence |= (_SUSPECTED if growth.suspected else 0) | _STATES[growth.state]
    verdict = _VERDICTS.index(growth.verdict) | (_HELD_BEFORE if growth.held_before else 0)
    writer.put("BBd", verdict, evidence, or_nan(growth.since_seconds or growth.stopped_seconds))
    for figure in (growth.slope, growth.exhaustion):
        writer.put("ddd", *(figure or (math.nan,) * 3))
    writer.put("B", len(growth.reasons))
    for reason in growth.reasons:
        writer.put_array(array("B", reason.encode()))


def read_growth(reader: Reader) -> Growth:
    """Return the same."""
    verdict, evidence, since = reader.take("BBd")
    held_before, verdict = bool(verdict & _HELD_BEFORE), verdict & ~_HELD_BEFORE
    flags, evidence = evidence, evidence & ~(_CONFIRMED | _SUSPECTED | _WITNESSED | _STATE_BITS)
    slope, exhaustion = Range(*reader.take("ddd")), Range(*reader.take("ddd"))
    (reasons,) = reader.take("B")
    if verdict >= len(_VERDICTS) or evidence >= len(_EVIDENCE) or reasons > _MOST_REASONS:
        raise ValueError("state of a leak detector: an unknown verdict")
    is_over = _VERDICTS[verdict] is Verdict.LEVELLED_OFF
    return Growth(
        _VERDICTS[verdict],
        _EVIDENCE[evidence],
        None if math.isnan(slope.value) else slope,
        None if is_over else or_none(since),
        None if math.isnan(exhaustion.value) else exhaustion,
        tuple(reader.take_array("B", 255).tobytes().decode() for _ in range(reasons)),
        held_before=held_before,
        stopped_seconds=or_none(since) if is_over else None,
        confirmed=bool(flags & _WITNESSED),
        driver_confirms=bool(flags & _CONFIRMED),
        suspected=bool(flags & _SUSPECTED),
        state=next(state for state, bits in _STATES.items() if bits == flags & _STATE_BITS),
    )


def or_nan(value: float | None) -> float:
    """Return a number for one that may be missing."""
    return math.nan if value is None else value


def or_none(value: float) -> float | None:
    """Return the inverse."""
    return None if math.isnan(value) else value
