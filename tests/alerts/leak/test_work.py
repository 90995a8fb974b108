"""Growth beside the work that was done: a leak takes its part of every request, a cache only what is new to it."""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpuagent.core.growth import Growth, Verdict
from gpuagent_alerts.leak import signals
from gpuagent_alerts.leak.blocks import EMPTY, RING
from gpuagent_alerts.leak.detector import MemoryLeakDetector
from gpuagent_alerts.leak.settings import ALLOCATOR_SETTINGS
from gpuagent_alerts.leak.windows import FLOOR_BLOCKS, LEAST_PAGES, WORK_LEVEL, WorkSignal, bend_by_work
from tests.alerts.leak.curves import HOUR, MIB, TOTAL_BYTES, detector

BLOCKS = 1 << WORK_LEVEL
LOADS = [2000.0, 3000.0, 5000.0, 3000.0, 2500.0, 6000.0, 8000.0, 5000.0]
"""Pages in passing in each eighth of a day."""
PARTS = st.lists(st.floats(0.01, 1), min_size=8, max_size=8).map(lambda parts: [part / sum(parts) for part in parts])
WORK = st.lists(st.floats(LEAST_PAGES, 1e6), min_size=8, max_size=8)

Rate = Callable[[float], float]
"""By the hour."""


def parts_of(growth: list[float]) -> list[float]:
    """As parts of their sum."""
    return [part / sum(growth) for part in growth]


# ---- the bend --------------------------------------------------------------------------------------------


@given(WORK, st.floats(-0.9, 0.9))
def test_it_is_the_change_of_growth_for_the_same_work(work: list[float], change: float) -> None:
    """LEAK-01, LEAK-02: 0 for a leak of every request, whatever the load did; less than 0 where it takes ever less."""
    growth = [load * (1 + change * (k - 3.5) / 4) for k, load in enumerate(work)]
    bend = bend_by_work(parts_of(growth), work)

    assume(bend is not None)  # the same load all day
    assert bend == pytest.approx(change, abs=1e-4)


@given(WORK, st.floats(-0.9, 0.9))
def test_growth_by_the_clock_is_not_compared(work: list[float], change: float) -> None:
    """LEAK-02: a leak of a timer is not excused by load that rose while it did not."""
    assert bend_by_work(parts_of([1 + change * (k - 3.5) / 4 for k in range(8)]), work) is None


@given(PARTS, st.floats(1, 1000))
def test_the_unit_of_work_does_not_matter(parts: list[float], factor: float) -> None:
    """LEAK-01: requests of another size show the same."""
    bend, larger = bend_by_work(parts, LOADS), bend_by_work(parts, [factor * load for load in LOADS])

    assert larger == (None if bend is None else pytest.approx(bend, rel=1e-4, abs=1e-6))


def test_less_and_less_for_the_same_work() -> None:
    """LEAK-01: growth that looks even, because the load rose as what was new fell, slows down for the same work."""
    parts = parts_of([load / (6 + k) for k, load in enumerate(LOADS)])

    assert 32 * sum((k - 3.5) * part for k, part in enumerate(parts)) / 42 > 0
    assert bend_by_work(parts, LOADS) == pytest.approx(-0.38, abs=0.02)


def test_no_work_is_no_witness() -> None:
    """An app that holds nothing in passing, or did so unseen, is judged by its growth alone."""
    busy = [load / sum(LOADS) for load in LOADS]

    assert bend_by_work(busy, LOADS) is not None
    assert bend_by_work(busy, [load * 8 * LEAST_PAGES / sum(LOADS) / 1.01 for load in LOADS]) is None
    assert bend_by_work(busy, [*LOADS[:7], math.nan]) is None
    assert bend_by_work(busy, [0.0] * 7 + [1e6]) is None


# ---- what is kept ----------------------------------------------------------------------------------------


def test_what_lies_above_the_lowest_of_eight_minutes() -> None:
    """A block is the mean of what was held beyond the lowest reading; slow growth is hardly in it."""
    work = WorkSignal()
    for block in range(2 * BLOCKS):
        floor = 10_000 + block  # a page in 15 s
        work.push(floor, floor + (400 if block % 4 == 0 else 0) + (1000 if block >= BLOCKS else 0), block + 1)

    growth = (FLOOR_BLOCKS - 1) / 2
    assert list(work.newest(2, 2 * BLOCKS)) == [100 + growth, 1100 + growth]


def test_a_block_without_a_reading_is_unknown() -> None:
    """LEAK-03: a silent hour says neither work nor rest."""
    work = WorkSignal()
    for block in range(3 * BLOCKS):
        seen = block // BLOCKS != 1
        work.push(100 if seen else EMPTY, 200 if seen else EMPTY, block + 1)

    first, second, third = work.newest(3, 3 * BLOCKS)
    assert (first, third) == (100, 100)
    assert math.isnan(second)


@pytest.mark.slow
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40 * BLOCKS)), max_size=12), st.randoms(use_true_random=False))
@settings(max_examples=25)
def test_a_gap_is_the_same_as_block_by_block(steps: list[tuple[bool, int]], draw: random.Random) -> None:
    """LEAK-03: a gap of any length costs the same, and leaves what its blocks one by one would."""
    leapt, walked, count = WorkSignal(), WorkSignal(), 0
    for gap, number in steps:
        if gap:
            leapt.skip(count, count + number)
        for _ in range(number if gap else number % 600):
            count += 1
            low = EMPTY if gap else draw.randrange(1000, 2000)
            held = EMPTY if gap else low + draw.randrange(500)
            walked.push(low, held, count)
            if not gap:
                leapt.push(low, held, count)

    assert [str(block) for block in leapt.newest(RING, count)] == [str(block) for block in walked.newest(RING, count)]
    assert leapt.state()[1] == walked.state()[1]


def test_only_a_whole_ring_is_taken_back() -> None:
    """A state that is cut is refused."""
    with pytest.raises(ValueError, match="not the work"):
        WorkSignal().restore(array("f", [1.0]), (0, 0, 0, 0, 0))


# ---- the verdict -----------------------------------------------------------------------------------------


def load(hour: float) -> float:
    """Share of the time in which a request runs: three peaks a day, each higher than the one before."""
    return 0.08 * (1 + hour / 16) * (1 + 0.6 * math.sin(2 * math.pi * hour / 8))


def serve(watched: MemoryLeakDetector, rate: Rate, hours: float, every: float = 5.0) -> Growth:
    """A server whose tensors grow by so many MiB an hour, with requests of 700 MiB; its first alarm, or last word."""
    draw, held = random.Random(3), 20_000.0
    growth = None
    for tick in range(int(hours * HOUR / every)):
        seconds = tick * every
        held += rate(seconds / HOUR) * every / HOUR if seconds > 600 else 0
        tensors = held + (700 if draw.random() < load(seconds / HOUR) else 0)
        free = TOTAL_BYTES - (held + 3000) * MIB
        growth = watched.update(seconds, (held + 3000) * MIB, free, tensors * MIB, (held + 2000) * MIB)
        if growth.verdict is Verdict.LEAKING:
            break
    assert growth is not None
    return growth


def filling(hour: float) -> float:
    """A cache of what is popular: the longer it runs, the fewer requests bring something new."""
    return 900 * load(hour) / (1 + hour / 16)


def leaking(hour: float) -> float:
    """The same memory in a day, the same part of it for every request."""
    return 520 * load(hour)


def by_the_clock(hour: float) -> float:
    """The same memory in a day, whatever the load."""
    return 72


@pytest.mark.slow
def test_a_cache_under_changing_load_is_no_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    """LEAK-01: its growth over 20 h looks even; for the same work it slows down."""
    assert serve(detector(), filling, 24).verdict is not Verdict.LEAKING

    blind = ALLOCATOR_SETTINGS | {"balanced": replace(ALLOCATOR_SETTINGS["balanced"], bend_by_work=-math.inf)}
    monkeypatch.setattr(signals, "ALLOCATOR_SETTINGS", blind)
    assert serve(detector(), filling, 24).verdict is Verdict.LEAKING


@pytest.mark.slow
@pytest.mark.parametrize("every", [2.0, 20.0, 60.0])
def test_how_often_it_is_read_does_not_matter(every: float) -> None:
    """From seconds to a minute, the cache is none and the leak is one."""
    assert serve(detector(), filling, 24, every).verdict is not Verdict.LEAKING
    assert serve(detector(), leaking, 24, every).verdict is Verdict.LEAKING


@pytest.mark.slow
@pytest.mark.parametrize("rate", [leaking, by_the_clock])
def test_a_leak_under_changing_load_is_one(rate: Rate) -> None:
    """LEAK-02: a leak of every request, and one of a timer, are told within the day under the same load."""
    assert serve(detector(), rate, 24).verdict is Verdict.LEAKING
