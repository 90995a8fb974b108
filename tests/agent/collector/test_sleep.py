"""GPUs that may power down while nobody uses them."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from gpuagent.collector.sleep import (
    ASLEEP,
    IDLE_SECONDS,
    LEFT_ALONE,
    PATIENCE_SECONDS,
    IdleGpuTracker,
    RuntimePower,
    read_runtime_power,
)
from gpuagent.core.snapshot import GpuIdentity, GpuReading, GpuState
from gpuagent_simulator.faults import FaultKind
from tests.fakes.rig import at, rig

AWAKE, SLEEPING, ALWAYS_ON = RuntimePower(True, False), RuntimePower(True, True), RuntimePower(False, False)
EMPTY = GpuReading(GpuIdentity(0, "GPU-0"), GpuState.OK, processes_known=True)
LAPTOP = """\
gpus:
  - {model: rtx-4080-super, processes: [{name: game, memory: 1GiB, from: 400s, until: 500s}]}
"""


def rests(rest: IdleGpuTracker, seconds: float, power: RuntimePower | None = AWAKE, *, used: bool = False) -> bool:
    """Whether it is left alone at this time."""
    return rest.update(seconds, power, EMPTY, used=used)


def test_nobody_for_a_minute() -> None:
    """It is left alone then, and read again as soon as somebody has woken it."""
    rest = IdleGpuTracker()
    assert not rests(rest, 0)
    assert not rests(rest, IDLE_SECONDS - 1)
    assert rests(rest, IDLE_SECONDS)
    assert rest.reason == LEFT_ALONE
    assert rests(rest, IDLE_SECONDS + 5, SLEEPING)
    assert rest.reason == ASLEEP
    assert rests(rest, 86_400, SLEEPING)
    assert not rests(rest, 86_401, AWAKE)
    assert not rests(rest, 86_402, AWAKE)


def test_one_that_does_not_fall_asleep_is_looked_at() -> None:
    """Somebody may have come to it: it is read once a minute."""
    rest = IdleGpuTracker()
    times = [second for second in range(600) if not rests(rest, second)]

    assert len(times) < 600 * IDLE_SECONDS / (IDLE_SECONDS + PATIENCE_SECONDS) + 10
    assert max(later - sooner for sooner, later in pairwise(times)) <= PATIENCE_SECONDS + 1


@pytest.mark.parametrize("power", [None, ALWAYS_ON])
def test_one_that_may_not_sleep_is_always_read(power: RuntimePower | None) -> None:
    """As on servers, and where the kernel tells nothing."""
    assert not any(rests(IdleGpuTracker(), second, power) for second in range(0, 600, 10))


def test_one_in_use_is_always_read() -> None:
    """By a process or by work that no process is listed for."""
    rest = IdleGpuTracker()
    assert not any(rests(rest, second, used=True) for second in range(0, 600, 10))


@pytest.mark.parametrize("state", [GpuState.LOST, GpuState.FAILED])
def test_one_in_trouble_is_looked_at(state: GpuState) -> None:
    """A lost GPU is not told as asleep."""
    rest = IdleGpuTracker()
    reading = GpuReading(GpuIdentity(0, "GPU-0"), state)
    assert not any(rest.update(second, SLEEPING, reading, used=False) for second in range(0, 600, 10))


@pytest.mark.parametrize(
    ("control", "status", "expected"),
    [
        ("auto", "active", AWAKE),
        ("auto", "suspended", SLEEPING),
        ("on", "active", ALWAYS_ON),
        ("on", "suspended", ALWAYS_ON),
    ],
)
def test_what_the_kernel_says(tmp_path: Path, control: str, status: str, expected: RuntimePower) -> None:
    """By the GPU's address as NVML writes it."""
    folder = tmp_path / "0000:3b:00.0" / "power"
    folder.mkdir(parents=True)
    (folder / "control").write_text(f"{control}\n")
    (folder / "runtime_status").write_text(f"{status}\n")

    assert read_runtime_power("00000000:3B:00.0", tmp_path) == expected
    assert read_runtime_power("00000000:18:00.0", tmp_path) is None
    assert read_runtime_power("", tmp_path) is None


def test_one_that_wakes_slowly_is_not_blind() -> None:
    """GPU-04: a GPU that powers up takes seconds to answer: it is asleep until then, as one that starts is starting."""
    power = AWAKE

    async def run() -> None:
        nonlocal power
        async with rig(LAPTOP, events=False, power=lambda _: power) as stage:
            for _ in range(8):
                await stage.tick(10)
            power = SLEEPING
            await stage.tick()
            power = AWAKE
            stage.fail(FaultKind.HANG, gpu=0)
            assert at(await stage.hasty_tick(well=()), 0).state is GpuState.ASLEEP
            await stage.mend()

    asyncio.run(run())


def test_one_that_may_not_sleep_costs_no_look_at_each_tick() -> None:
    """EXP-08: its power is looked at again at the slow rate."""
    looks: list[str] = []

    def power(address: str) -> RuntimePower:
        looks.append(address)
        return ALWAYS_ON

    async def run() -> None:
        async with rig(LAPTOP, events=False, power=power) as stage:
            await stage.tick(slow=True)
            looks.clear()
            for _ in range(5):
                await stage.tick()
            assert not looks
            await stage.tick(slow=True)
            assert looks

    asyncio.run(run())


def test_a_laptop() -> None:
    """Its GPU is asleep and not read, is no trouble of the node, and is back with whoever comes."""
    power = AWAKE

    async def run() -> None:
        nonlocal power
        async with rig(LAPTOP, events=False, power=lambda _: power) as stage:
            for _ in range(8):
                snapshot = await stage.tick(10)
            assert at(snapshot, 0).state is GpuState.ASLEEP
            power = SLEEPING
            snapshot = await stage.tick(300)
            assert (at(snapshot, 0).state, at(snapshot, 0).reason) == (GpuState.ASLEEP, ASLEEP)
            assert at(snapshot, 0).identity.name
            assert stage.value("gpuagent_gpus_readable") == 1
            assert stage.value("gpuagent_gpu_lost", gpu="0") == 0
            assert stage.value("gpuagent_gpu_memory_used_bytes", gpu="0") is None
            assert stage.value("gpuagent_gpu_reading_age_seconds", gpu="0") is None
            power = AWAKE
            snapshot = await stage.tick(30)
            assert at(snapshot, 0).state is GpuState.OK
            assert [process.info.name for process in snapshot.processes if process.info] == ["game"]

    asyncio.run(run())
