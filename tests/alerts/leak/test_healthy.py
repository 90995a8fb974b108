"""What rises and is no leak: through the real monitor, detector and rules, nobody is told of any of it."""

from __future__ import annotations

import math

import pytest

from gpuagent.core.growth import MemoryKey, Verdict
from tests.alerts.leak.node import HOUR, node, run

pytestmark = pytest.mark.slow

ABOUT_MEMORY = {"GpuProcessMemoryLeak", "GpuMemoryLeak", "GpuMemoryExhaustionSoon"}
PID = 5_000_000


def scenario(memory: str) -> str:
    """One process on one GPU of 80 GiB, of which the driver takes some."""
    return f"""\
gpus:
  - model: h100
    memory: {{total: 80GiB, base_used: 400MiB}}
    processes:
      - {{name: serve, user: ml, pid: {PID}, age: 1m, memory: {memory}}}
"""


def steps(points: list[tuple[float, float]]) -> str:
    """So many GiB from so many seconds on."""
    listed = ", ".join(f"[{seconds:.0f}, {gib:.3f}GiB]" for seconds, gib in points)
    return f"{{shape: steps, points: [{listed}]}}"


def day_curve(days: int, low: float, high: float) -> str:
    """Load by the hour of the day: up until the afternoon, down at night, every five minutes another amount."""
    return steps(
        [
            (second, low + (high - low) * (1 - math.cos(2 * math.pi * second / 86_400)) / 2)
            for second in range(0, days * 86_400, 300)
        ]
    )


HEALTHY = {
    "a caching allocator warms up": ("{shape: warm_up, start: 3GiB, level: 61GiB, time_constant: 40s}", 1),
    "a cache fills slowly": ("{shape: warm_up, start: 20GiB, level: 38GiB, time_constant: 20m}", 3),
    "a cache fills evenly, and stops": ("{shape: plateau, start: 20GiB, level: 38GiB, over: 1h}", 3),
    "a server takes 90 % when it starts": ("{shape: plateau, start: 1GiB, level: 72GiB, over: 40s}", 1),
    "a cache is emptied again and again": ("{shape: saw_tooth, low: 20GiB, high: 45GiB, period: 45s}", 1),
    "garbage is collected every quarter of an hour": (
        "{shape: saw_tooth, low: 20GiB, high: 40GiB, period: 15m}", 3,
    ),
    "each epoch takes one step more, and the last is the last": (
        "{shape: staircase, start: 20GiB, size: 3GiB, every: 20m, cap: 32GiB}", 3,
    ),
    "another model every ten minutes": (steps([(600 * n, (20, 41, 9, 34, 28, 41)[n % 6]) for n in range(18)]), 3),
}  # fmt: skip
"""Memory, and the hours to look at."""


@pytest.mark.few(3)
@pytest.mark.parametrize("name", HEALTHY)
def test_nobody_is_told(name: str) -> None:
    """LEAK-01, LEAK-02: warm-up, plateau, saw-tooth, preallocation, steps and model swap are no leaks."""
    memory, hours = HEALTHY[name]

    async def test() -> None:
        async with node(scenario(memory)) as stage:
            await stage.until(hours * HOUR, 20)
            assert ABOUT_MEMORY & {told.alert.name for told in stage.told} == set()
            assert Verdict.LEAKING not in stage.verdicts_of(PID)
            assert Verdict.STEADY in stage.verdicts_of(PID)  # it was judged

    run(test)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_load_follows_the_day() -> None:
    """LEAK-02: what comes back every day is no leak on the first day, and none on the second."""

    async def test() -> None:
        async with node(scenario(day_curve(2, 20.0, 36.0))) as stage:
            await stage.until(48 * HOUR, 60)
            assert ABOUT_MEMORY & {told.alert.name for told in stage.told} == set()

    run(test)


def test_workers_that_start_one_after_the_other() -> None:
    """LEAK-02: the device's memory rises in a straight line, and that of none of its processes does."""
    workers = """\
gpus:
  - model: h100
    memory: {total: 80GiB, base_used: 400MiB}
    processes:
      - {name: worker, user: ml, memory: 4GiB, count: 16, every: 6m}
"""

    async def test() -> None:
        async with node(workers) as stage:
            await stage.until(2 * HOUR, 20)
            assert stage.snapshot is not None
            assert ABOUT_MEMORY & {told.alert.name for told in stage.told} == set()
            (gpu,) = stage.snapshot.gpus
            assert stage.snapshot.growth[MemoryKey(gpu.identity.uuid)].verdict is Verdict.STEADY

    run(test)


def test_a_process_that_has_died() -> None:
    """LEAK-01: what the driver still lists of the dead is no process's growth, and no leak of nobody's either."""
    memory = "{shape: ramp, start: 10GiB, rate: 0.3MiB}, dead_after: 20m"

    async def test() -> None:
        async with node(scenario(memory)) as stage:
            await stage.until(1190)
            assert stage.growth(PID) is not None
            await stage.until(2 * HOUR, 20)
            assert stage.growth(PID) is None
            assert stage.alerts("GpuDeadProcessesHoldMemory")
            assert ABOUT_MEMORY & {told.alert.name for told in stage.told} == set()

    run(test)
