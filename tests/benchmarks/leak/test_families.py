"""The jobs are what they are called."""

from __future__ import annotations

import math
from array import array

import pytest
from benchmarks.leak.families import FAMILIES, make_trace
from benchmarks.leak.trace import Kind, Trace

pytestmark = [pytest.mark.exhaustive, pytest.mark.slow]

BOUNDED = [
    name for name, family in FAMILIES.items() if family.kind is not Kind.LEAK and family.kind is not Kind.COLLAPSE
]
LEAKING = [name for name in FAMILIES if name not in BOUNDED]


def valid(column: array[float]) -> list[float]:
    """Without what is missing."""
    return [value for value in column if not math.isnan(value)]


def columns(trace: Trace) -> list[bytes]:
    """Byte for byte, as NaN is not equal to itself."""
    return [column.tobytes() for column in trace.samples.columns()]


def test_a_seed_is_a_trace() -> None:
    """The same for the same seed, another for another: the table can be made again."""
    once, again, other = (make_trace("leak/collected", seed) for seed in (4, 4, 5))

    assert columns(once) == columns(again) != columns(other)


@pytest.mark.parametrize("name", BOUNDED)
def test_what_does_not_leak_lives_within_its_gpu(name: str) -> None:
    """LEAK-01, LEAK-02: no leak, memory never out, and readings that a GPU can have."""
    trace = make_trace(name, 1)

    assert (trace.leak_seconds, trace.exhausted_seconds) == (None, None)
    assert min(valid(trace.samples.free)) >= 0
    assert max(valid(trace.samples.used)) < trace.total_bytes
    assert all(a <= r for a, r in zip(valid(trace.samples.allocated), valid(trace.samples.reserved), strict=True))


@pytest.mark.parametrize("name", LEAKING)
def test_what_leaks_holds_ever_more(name: str) -> None:
    """The floor of the last tenth lies above that of the first tenth of the leak's life, inside torch or beside it."""
    trace = make_trace(name, 1)
    assert trace.leak_seconds is not None
    samples = trace.samples
    life = [
        (used - reserved) + allocated
        for at, used, allocated, reserved in zip(
            samples.times, samples.used, samples.allocated, samples.reserved, strict=True
        )
        if at >= trace.leak_seconds and not math.isnan(used)
    ]
    part = max(1, len(life) // 10)

    assert min(life[-part:]) > min(life[:part])


def test_the_families_that_cannot_be_told_are_there() -> None:
    """Every shape of the detector's promises has a family: LEAK-01, LEAK-02, LEAK-03, LEAK-04."""
    assert {
        "benign/warm_up",
        "benign/preallocated",
        "benign/restarts",
        "benign/diurnal",
        "leak/slow",
    } <= FAMILIES.keys()
    assert {family.kind for family in FAMILIES.values()} == set(Kind)
    assert len(BOUNDED) >= 17
    assert len(LEAKING) >= 11


def test_a_reused_pid_is_not_always_noticed() -> None:
    """LEAK-03: some agents know each process's start, some see one pid go on."""
    known = {make_trace("benign/restarts", seed).starts_known for seed in (0, 1, 2, 3)}

    assert known == {True, False}


def test_readings_come_at_different_paces_and_are_missing_now_and_then() -> None:
    """1, 5 and 10 s, with jitter, readings that failed, and minutes without any."""
    traces = [make_trace("benign/idle", seed) for seed in range(24)]
    paces = {round((trace.end_seconds - trace.begin_seconds) / len(trace.samples)) for trace in traces}
    gaps = [max(b - a for a, b in zip(t.samples.times, t.samples.times[1:], strict=False)) for t in traces]

    assert {1, 5, 10} <= paces
    assert any(math.isnan(value) for trace in traces for value in trace.samples.used)
    assert max(gaps) > 120
    assert min(gaps) < 60
    assert any(trace.begin_seconds > 600 for trace in traces)
