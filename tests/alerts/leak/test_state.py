"""Dump and load: a slow leak is not forgotten at every upgrade of the agent."""

from __future__ import annotations

import random
import struct
import sys
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import NoneType

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuagent.core.growth import Verdict
from gpuagent_alerts.leak.detector import MemoryLeakDetector
from gpuagent_alerts.leak.settings import SENSITIVITIES, Settings
from gpuagent_alerts.leak.state import MOST_STATE_BYTES
from tests.alerts.leak.curves import HOUR, MIB, TOTAL_BYTES, detector, leak, show

DATA = Path(__file__).parents[2] / "data" / "leaks"


def reload(watched: MemoryLeakDetector) -> MemoryLeakDetector:
    """Its next life."""
    return MemoryLeakDetector.load(watched.dump(), total_bytes=TOTAL_BYTES)


@cache
def _dump() -> bytes:
    watched = detector()
    show(watched, leak(2), 16_000, every=15)
    return watched.dump()


@pytest.mark.slow
@given(st.data())
@settings(max_examples=8)
def test_a_restart_anywhere_changes_nothing(data: st.DataObject) -> None:
    """GEN: with any readings, gaps and restarts, the word is the same at every reading."""
    draw = random.Random(data.draw(st.integers(0, 2**32)))
    watched, restarted = detector(), detector()
    seconds, level, slope = 0.0, 20_000.0, draw.choice([0, 0.5, 2, 20])
    client = draw.random() < 0.5
    for _ in range(1500):
        seconds += draw.choice([1, 5, 10, 60]) if draw.random() < 0.99 else draw.choice([300, 5000, 200_000])
        level = min(70_000, level + slope * 10) if draw.random() < 0.995 else 20_000
        used = (level + 500 * draw.random()) * MIB if draw.random() < 0.95 else None
        own = (used * 0.8, used * 0.9) if client and used else (None, None)
        free = None if used is None else TOTAL_BYTES - used
        assert watched.update(seconds, used, free, *own) == restarted.update(seconds, used, free, *own)
        if draw.random() < 0.01:
            restarted = reload(restarted)


@pytest.mark.slow
def test_the_agent_restarts_in_the_middle_of_a_slow_leak() -> None:
    """The alarm comes at the same second as without the restarts, one of which took an hour."""
    curve = leak(0.05)
    whole = show(detector(), curve, 24 * HOUR, every=15, client=True)
    watched = detector()
    show(watched, curve, 10 * HOUR, every=15, client=True)
    watched = reload(watched)
    show(watched, curve, 15 * HOUR, since=11 * HOUR, every=15, client=True)
    changes = show(reload(watched), curve, 24 * HOUR, since=15 * HOUR, every=15, client=True)

    assert changes[-1].growth.verdict is Verdict.LEAKING
    assert changes[-1].seconds == whole[-1].seconds


def test_an_alarm_goes_on() -> None:
    """Evidence, onset, forecast and reasons are those from before, at once."""
    watched = detector()
    show(watched, leak(2), 16_000)
    loaded = reload(watched)
    used = leak(2)(16_000) * MIB

    assert loaded.update(16_000, used, TOTAL_BYTES - used) == watched.update(16_000, used, TOTAL_BYTES - used)


@pytest.mark.slow
def test_the_size_is_bounded() -> None:
    """After weeks of anything, with a client: at most 8 KiB."""
    watched = detector()
    draw = random.Random(7)
    seconds = 0
    while seconds < 14 * 24 * 3600:
        seconds += 300
        used = (20_000 + seconds % 86_400 * 0.6 + 3000 * draw.random()) * MIB
        watched.update(seconds, used, TOTAL_BYTES - used, used * 0.6, used * 0.7)
    dump = watched.dump()

    assert 6000 < len(dump) <= MOST_STATE_BYTES


def _held_bytes(thing: object, seen: set[int]) -> int:
    """What an object and all that it alone holds take: no settings, words and tables that all detectors share."""
    shared = (Settings, StrEnum, str, bool, NoneType, type)
    if id(thing) in seen or isinstance(thing, shared) or (isinstance(thing, int) and -5 <= thing <= 256):
        return 0
    seen.add(id(thing))
    parts = [getattr(thing, name) for name in getattr(thing, "__slots__", ()) if name not in {"shares", "_shares"}]
    parts += [*thing] if isinstance(thing, (list, tuple)) else []
    return sys.getsizeof(thing) + sum(_held_bytes(part, seen) for part in parts)


@pytest.mark.slow
@pytest.mark.parametrize(("client", "most_kib"), [(False, 8), (True, 16)])
@pytest.mark.parametrize("rate", [0.0, 0.7])
def test_the_memory_it_takes_is_bounded(rate: float, client: bool, most_kib: int) -> None:
    """All levels begun, steady or leaking: thousands of processes must fit into what an agent may take."""
    watched = detector()
    show(watched, leak(rate), 18 * HOUR, every=15, client=client)

    assert watched.update(18 * HOUR, None, None).verdict is (Verdict.LEAKING if rate else Verdict.STEADY)
    assert 2000 < _held_bytes(watched, set()) <= most_kib * 1024


def test_another_sensitivity_goes_on() -> None:
    """A changed configuration keeps the history."""
    watched = detector()
    show(watched, leak(2), 13_000)
    loaded = MemoryLeakDetector.load(watched.dump(), total_bytes=TOTAL_BYTES, sensitivity="sensitive", phase=3)

    assert show(loaded, leak(2), 14_000, since=13_000)[-1].growth.verdict is Verdict.LEAKING


@pytest.mark.slow
@given(st.integers(0, 2**32))
@example(16_384)  # restarts while the alarms of all criteria are on
@settings(max_examples=12)
def test_a_changed_dial_is_a_restart_with_another(seed: int) -> None:
    """GEN: `use` does in place what a dump, loaded with that sensitivity, does; nothing else changes."""
    draw = random.Random(seed)
    one, other = detector(), detector()
    level, slope, client = 20_000.0, draw.choice([0.5, 2, 20]), draw.random() < 0.7
    for number in range(1200):
        level = min(75_000, level + slope * 15)
        used = (level + 500 * draw.random()) * MIB
        own = (used * 0.8, used * 0.9) if client else (None, None)
        assert one.update(15.0 * number, used, TOTAL_BYTES - used, *own) == other.update(
            15.0 * number, used, TOTAL_BYTES - used, *own
        )
        if draw.random() < 0.01:
            sensitivity = draw.choice(SENSITIVITIES)
            one.use(sensitivity)
            other = MemoryLeakDetector.load(other.dump(), total_bytes=TOTAL_BYTES, sensitivity=sensitivity)
            assert one.dump() == other.dump()


def test_an_unknown_dial_is_refused() -> None:
    """The one that holds goes on to hold."""
    watched = detector()
    before = watched.dump()
    with pytest.raises(ValueError, match="lax is none of off, strict, balanced, sensitive"):
        watched.use("lax")  # type: ignore[arg-type]
    assert watched.dump() == before


@given(st.binary(max_size=9000))
@settings(max_examples=100)
def test_garbage_is_refused(data: bytes) -> None:
    """Whatever the file holds, it is a ValueError and nothing else."""
    with pytest.raises(ValueError, match="state of a leak detector"):
        MemoryLeakDetector.load(data, total_bytes=TOTAL_BYTES)


@given(st.integers(0, 6000), st.integers(1, 255))
@settings(max_examples=100)
def test_a_damaged_state_is_refused(place: int, flip: int) -> None:
    """One changed byte is noticed."""
    data = bytearray(_dump())
    data[place % len(data)] ^= flip
    with pytest.raises(ValueError, match="state of a leak detector"):
        MemoryLeakDetector.load(bytes(data), total_bytes=TOTAL_BYTES)


@pytest.mark.parametrize(("name", "client"), [("nvml", False), ("app", True)])
def test_a_dump_of_the_version_before_goes_on(name: str, client: bool) -> None:
    """LEAK-03: an upgrade keeps the blocks, the alarm and the pace of a leak of 30 h; what is new begins empty."""
    old = (DATA / f"detector-2-{name}.state").read_bytes()
    watched = MemoryLeakDetector.load(old, total_bytes=TOTAL_BYTES)
    changes = show(watched, leak(0.3), 32 * HOUR, since=30 * HOUR, every=15, client=client)

    assert {change.growth.verdict for change in changes} == {Verdict.LEAKING}
    since = changes[-1].growth.since_seconds
    assert since is not None
    assert since < 10 * HOUR
    assert MemoryLeakDetector.load(watched.dump(), total_bytes=TOTAL_BYTES).dump() == watched.dump()


def test_another_version_is_refused() -> None:
    """A state of a later agent is not guessed at."""
    data = detector().dump()
    with pytest.raises(ValueError, match="version 9"):
        MemoryLeakDetector.load(data[:4] + struct.pack("<H", 9) + data[6:], total_bytes=TOTAL_BYTES)
