"""Units and containers that fill a GPU by ever more processes, each of which stays as it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpuagent.core.growth import GrowthState, MemoryKey, Verdict
from gpuagent.core.snapshot import ProcessReading
from gpuagent.core.units import GIB
from gpuagent_alerts.leak.device import GrowingPart, MemoryPool, sum_up_device
from gpuagent_alerts.leak.groups import GroupWatch
from tests.fakes.readings import process

MINUTE = 60.0
TOTAL_GIB = 80.0
BESIDE_GIB = 5.0
WALL = 1_700_000_000.0


def pool_of(count: int, unit: str = "pool.service", gib: float = 2.0) -> list[ProcessReading]:
    """So many workers of a unit beside a server."""
    workers = [process(100 + number, used_gib=gib, name="worker", unit=unit) for number in range(count)]
    return [process(7, used_gib=BESIDE_GIB, name="v", unit="v.service"), *workers]


def told(
    count_at: Callable[[float], int], minutes: float, growing: frozenset[MemoryKey] = frozenset(), gib: float = 2.0
) -> list[tuple[float, list[GrowingPart]]]:
    """What is said until then, or until the GPU is full."""
    watch, said = GroupWatch(), []
    for seconds in range(0, int(minutes * MINUTE), 5):
        held = pool_of(count_at(seconds), gib=gib)
        free = TOTAL_GIB * GIB - sum(one.used_bytes or 0 for one in held)
        if free < 0:
            break
        pool = MemoryPool(int(TOTAL_GIB * GIB), int(free), {})
        said.append((float(seconds), watch.observe(held, pool, growing, float(seconds), WALL)))
    return said


def one_each(period: float, most: int = 1000) -> Callable[[float], int]:
    """A worker more each so many seconds from minute 5 on, and none ends."""
    return lambda seconds: min(most, max(0, int((seconds - 5 * MINUTE) / period) + 1)) if seconds >= 300 else 0


def test_ever_more_workers_are_told_before_the_gpu_is_full() -> None:
    """LEAK-04: 80 GiB/h in steps of 2 GiB: told by name, with the pace and a forecast, 15 min before the end."""
    said = told(one_each(90.0), 90)
    full = said[-1][0]
    seconds, parts = next((seconds, parts) for seconds, parts in said if parts)
    assert full - seconds > 15 * MINUTE
    (part,) = parts
    count = one_each(90.0)(seconds)
    assert part.whose == f"{count} processes of pool.service"
    assert (part.growth.verdict, part.growth.suspected, part.growth.state) == (
        Verdict.GROWING, True, GrowthState.RISING,
    )  # fmt: skip
    assert part.growth.slope is not None
    assert part.growth.slope.value * 3600 == pytest.approx(80 * GIB, rel=0.15)
    assert part.growth.exhaustion is not None
    assert part.growth.exhaustion.value == pytest.approx(full - seconds, rel=0.25)
    assert part.growth.since_seconds is not None
    assert WALL < part.growth.since_seconds < WALL + seconds

    whole = sum_up_device(None, parts, int(20 * GIB))
    assert whole is not None
    assert (whole.verdict, whole.group) == (Verdict.GROWING, part.whose)
    assert whole.forecast_seconds is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("period", "most", "gib"),
    [(20.0, 16, 2.0), (60.0, 20, 2.0), (540.0, 4, 15.0), (5.0, 30, 2.0)],
    ids=["16 in 5 min", "20 in 20 min", "an autoscaler", "30 at once"],
)
def test_a_pool_that_grows_to_its_size_is_not_told(period: float, most: int, gib: float) -> None:
    """A fixed number of workers is no growth without an end."""
    assert all(not parts for _, parts in told(one_each(period, most), 180, gib=gib))


def test_the_growth_of_a_member_is_its_own() -> None:
    """Where a process grows by itself, that one is told of, and not its unit."""
    worker = pool_of(1)[-1].key
    assert all(not parts for _, parts in told(one_each(90.0), 90, frozenset({worker})))
