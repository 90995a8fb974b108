"""After figures that cannot be true: shown again at once, acted on a minute later."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from gpuagent.collector.inventory import find_conflicts
from gpuagent.collector.trust import TRUST_AFTER_SECONDS, FigureTrust
from gpuagent.core.snapshot import GpuIdentity, GpuState
from gpuagent.core.wording import SHUFFLED_LIST
from gpuagent_exporters.status.problems import find_problems
from gpuagent_simulator.abi import Code
from gpuagent_simulator.faults import FaultKind
from tests.fakes.rig import Rig, rig

GIB = 2**30
ONE = "gpus:\n  - {model: h100, processes: [{name: a, memory: 1GiB}, {name: b, memory: 2GiB}]}\n"
TWINS = """
gpus:
  - {model: h100, uuid: GPU-twin, processes: [{name: a, memory: 1GiB}]}
  - {model: h100, uuid: GPU-twin, processes: [{name: b, memory: 2GiB}]}
  - {model: h100, processes: [{name: c, memory: 3GiB}]}
"""
DECLARED = "gpuagent_gpu_figures_trusted"


def problems(stage: Rig) -> list[tuple[int | None, str]]:
    """GPU and kind of every problem of the last tick, but for the events that this library lacks."""
    found = find_problems(stage.monitor.snapshot, stage.clock.now())
    return [(each.gpu, each.kind) for each in found if "xid_events" not in each.text]


async def ticks(stage: Rig, seconds: int) -> list[str]:
    """The first GPU's refusal in each of so many ticks, a second apart."""
    return [(await stage.tick()).gpus[0].act_refusal for _ in range(seconds)]


def test_impossible_memory_forbids_acts_for_a_minute() -> None:
    """NUM-12: withheld while impossible, one problem, one text; back at once when possible, acted on after 60 s."""

    async def run() -> None:
        async with rig(ONE, events=False) as stage:
            assert (await stage.tick()).gpus[0].act_refusal == ""
            stage.fail(FaultKind.IMPOSSIBLE_MEMORY, size=200 * GIB)
            during = await ticks(stage, 3)

            assert stage.value("gpuagent_process_memory_used_bytes") is None
            assert stage.value("gpuagent_gpu_memory_processes_bytes") is None
            assert stage.value("gpuagent_gpu_memory_unattributed_bytes") is None
            assert stage.value("gpuagent_gpu_memory_used_bytes") == 3 * GIB
            assert stage.value(DECLARED) == 0
            assert problems(stage) == [(0, "figures_untrusted")]

            stage.node.clear()
            stage.fail(FaultKind.IMPOSSIBLE_MEMORY, size=70 * GIB)
            during += await ticks(stage, 1)
            stage.node.clear()
            during += await ticks(stage, int(TRUST_AFTER_SECONDS))

            assert stage.value("gpuagent_gpu_memory_processes_bytes") == 3 * GIB
            assert len(set(during)) == 1
            assert "holds 200.0 GiB of 79.6 GiB" in during[0]
            assert problems(stage) == [(0, "figures_untrusted")]
            assert await ticks(stage, 1) == [""]
            assert (stage.value(DECLARED), problems(stage)) == (1, [])

    asyncio.run(run())


def test_a_minute_without_readings_does_not_count() -> None:
    """NUM-12: while the GPU cannot be read, or between two readings far apart, nothing was possible."""

    async def run() -> None:
        async with rig(ONE, events=False) as stage:
            await stage.tick()
            stage.fail(FaultKind.IMPOSSIBLE_MEMORY, size=200 * GIB)
            await ticks(stage, 1)
            stage.node.clear()
            await ticks(stage, 40)
            stage.fail(FaultKind.ERROR, calls=("nvmlDeviceGetMemoryInfo*",), code=Code.UNKNOWN)
            assert (await stage.tick()).gpus[0].state is GpuState.FAILED
            stage.node.clear()
            assert "" not in await ticks(stage, 40)
            await stage.tick(3600)
            assert "" not in await ticks(stage, int(TRUST_AFTER_SECONDS) - 1)
            assert await ticks(stage, 1) == [""]

    asyncio.run(run())


def test_it_outlives_an_initialization() -> None:
    """NUM-12: after the driver was reloaded the GPU is the same one; the minute begins with its next reading."""

    async def run() -> None:
        async with rig(ONE, events=False) as stage:
            await stage.tick()
            stage.fail(FaultKind.IMPOSSIBLE_MEMORY, size=200 * GIB)
            await ticks(stage, 1)
            stage.node.clear()
            stage.fail(FaultKind.DRIVER_RELOAD, down=3.0)
            for _ in range(30):
                snapshot = await stage.tick()
            assert snapshot.gpus[0].state is GpuState.OK
            assert "impossible" in snapshot.gpus[0].act_refusal

    asyncio.run(run())


def test_a_doubtful_sum_is_shown_and_not_acted_on() -> None:
    """NUM-12: shared memory may be counted twice: the figures are exported as they are."""

    async def run() -> None:
        async with rig(ONE, events=False) as stage:
            stage.fail(FaultKind.IMPOSSIBLE_MEMORY, size=2 * GIB)
            (refusal,) = await ticks(stage, 1)

            assert "in doubt" in refusal
            assert stage.value("gpuagent_gpu_memory_processes_bytes") == 4 * GIB
            assert stage.value(DECLARED) == 0

    asyncio.run(run())


def test_a_shuffled_list_takes_the_same_way() -> None:
    """NUM-10: for such a driver the refusal says so for as long as it is there, and the older metric stays."""

    async def run() -> None:
        async with rig("driver: 535.86.10\n" + ONE, events=False) as stage:
            assert set(await ticks(stage, 3)) == {SHUFFLED_LIST}
            assert stage.value("gpuagent_gpu_processes_trusted") == 0
            assert problems(stage) == [(0, "processes_untrusted")]

    asyncio.run(run())


def test_two_gpus_with_one_uuid() -> None:
    """GPU-13: whose process is whose cannot be told: withheld, refused and named on both, and not on the third.

    Once it is over, no numbers are told for the minute that is left: the GPUs may have others by then.
    """

    async def run() -> None:
        async with rig(TWINS, events=False) as stage:
            await stage.tick()
            snapshot = await stage.tick()

            assert [process.gpu_index for process in snapshot.processes] == [2]
            assert [gpu.processes_known for gpu in snapshot.gpus] == [False, False, True]
            assert [("GPUs 0 and 1" in gpu.act_refusal) for gpu in snapshot.gpus] == [True, True, False]
            assert problems(stage) == [(0, "figures_untrusted"), (1, "figures_untrusted")]
            assert stage.value("gpuagent_gpu_memory_used_bytes", gpu="0") == GIB

            for slot in stage.monitor._slots:
                slot.set_conflict("")
            (after, _, _) = stage.monitor._slots
            said = after._act_refusal()
            assert (
                said
                == "another GPU answered with its UUID or PCI address: no act until they have been possible for 60 s"
            )

    asyncio.run(run())


def test_conflicts() -> None:
    """GPU-13: a shared UUID, a shared PCI address in any spelling, no UUID; an address that is not told is none."""
    gpus = [
        GpuIdentity(0, "a", pci_bus_id="00000000:3B:00.0"), GpuIdentity(1, "a", pci_bus_id="1"),
        GpuIdentity(2, "b", pci_bus_id="00000000:3b:00.0"), GpuIdentity(3, "c"), GpuIdentity(4, "d"),
        GpuIdentity(5, "", pci_bus_id="5"),
    ]  # fmt: skip
    found = find_conflicts(gpus)

    assert sorted(found) == [0, 1, 2, 5]
    assert "GPUs 0 and 2 have the same PCI address" in found[2]
    assert found[5] == "GPU 5 has no UUID"


@given(st.lists(st.tuples(st.floats(0.1, 30), st.sampled_from(["ok", "ok", "ok", "bad", "gap"])), max_size=120))
def test_nothing_is_acted_on_before_a_minute_of_possible_readings(story: list[tuple[float, str]]) -> None:
    """NUM-12: whatever the order, trust comes back only after 60 s of possible readings at most 10 s apart."""
    trust, now, since, last, bad = FigureTrust(), 0.0, None, None, False
    for seconds, what in story:
        now += seconds
        if what == "gap":
            trust.interrupt()
            since = None
        else:
            trust.observe("bad" if what == "bad" else "", now)
            apart = last is not None and now - last > 10.0
            since = None if what == "bad" else now if since is None or apart else since
            last = now
        bad = bad or what == "bad"
        if bad and (since is None or now - since < TRUST_AFTER_SECONDS):
            assert trust.refusal
        else:
            assert not trust.refusal
            bad = False
