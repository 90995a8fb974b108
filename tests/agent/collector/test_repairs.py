"""Faults that take a repair stay until the driver shows that it was done."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from gpuagent.collector.repairs import DriverSession, FaultTracker, RepairsFile
from gpuagent.core.clock import ManualClock
from gpuagent.core.hardware import Ecc, Power
from gpuagent.core.snapshot import GpuIdentity, GpuReading, GpuState, XidCount
from gpuagent.core.xids import REPAIR_XIDS
from gpuagent.driver.nvml.events import XidWatcher
from gpuagent_simulator.faults import FaultKind
from tests.fakes.rig import at, rig
from tests.integration.waiting import until
from tests.tables import table

UUID = "GPU-a"
FIRST = DriverSession(1, 0, "580.1")
SECOND = DriverSession(2, 0, "580.1")
TWO = "gpus:\n  - {model: h100, count: 2, processes: [{name: a, memory: 1GiB}]}\n"
DAY = 86_400.0


def reading(
    state: GpuState = GpuState.OK, *, energy: float | None = None, action: int | None = None, since: float = 0.0
) -> GpuReading:
    """One of the GPU that all tests here are about."""
    return GpuReading(
        GpuIdentity(2, UUID), state, since_seconds=since, power=Power(energy_joules=energy),
        ecc=Ecc(recovery_action=action),
    )  # fmt: skip


def xid(code: int, seconds: float = 100.0) -> XidCount:
    """An event of that GPU, at this Unix time."""
    return XidCount(2, UUID, code, 1, seconds)


def open_xids(
    memory: FaultTracker, gpu: GpuReading, events: Sequence[XidCount] = (), session: DriverSession = FIRST
) -> list[int]:
    """Xids without a repair after this tick."""
    (seen,), _ = memory.observe([gpu], events, session)
    return [each.xid for each in seen.unrepaired_xids]


@table("code", sorted(REPAIR_XIDS))
def test_no_time_repairs_a_gpu(code: int) -> None:
    """ALERT-01: a day later, in a new session, with an energy counter that went on, the Xid is still open."""
    clock = ManualClock()
    memory = FaultTracker(clock)
    assert open_xids(memory, reading(energy=500.0, action=0), [xid(code)]) == [code]
    clock.advance(DAY)
    assert open_xids(memory, reading(energy=900.0, action=0), [xid(code)], SECOND) == [code]


def test_an_xid_of_a_program_needs_no_repair() -> None:
    """ALERT-01: 13 is remembered as an event and is never open."""
    assert open_xids(FaultTracker(ManualClock()), reading(), [xid(13), xid(63)]) == []


@pytest.mark.parametrize(
    ("gpu", "session"),
    [
        (reading(energy=3.0), SECOND),
        (reading(energy=900.0), DriverSession(2, 1, "580.1")),
        (reading(energy=900.0), DriverSession(2, 0, "590.2")),
    ],
    ids=["energy counter anew", "driver loaded", "another driver"],
)
def test_what_shows_a_reset(gpu: GpuReading, session: DriverSession) -> None:
    """ALERT-01: each of these closes the Xid, and a later Xid opens it again."""
    memory = FaultTracker(ManualClock())
    assert open_xids(memory, reading(energy=500.0), [xid(95)]) == [95]
    assert open_xids(memory, gpu, [xid(95)], session) == []
    assert open_xids(memory, gpu, [xid(95, 200.0)], session) == [95]


@pytest.mark.parametrize(
    ("gpu", "session", "words"),
    [
        (reading(energy=3.0), SECOND, "the GPU was reset, or its driver loaded anew"),
        (reading(energy=3.0), DriverSession(2, 1, "580.1"), "the driver was loaded anew"),
        (reading(energy=900.0), DriverSession(2, 1, "580.1"), "the driver was loaded anew"),
        (reading(energy=900.0), DriverSession(2, 0, "590.2"), "driver 590.2 was loaded"),
    ],
)
def test_a_repair_in_words(gpu: GpuReading, session: DriverSession, words: str) -> None:
    """ALERT-01: the end of an Xid says what has shown its repair."""
    memory = FaultTracker(ManualClock())
    open_xids(memory, reading(energy=500.0), [xid(95)])
    (seen,), _ = memory.observe([gpu], [xid(95)], session)
    assert seen.repair == words


def test_an_energy_counter_that_goes_back_within_a_session_shows_nothing() -> None:
    """ALERT-01: a reset needs every session to be left, so this is an odd reading."""
    memory = FaultTracker(ManualClock())
    open_xids(memory, reading(energy=500.0), [xid(95)])
    assert open_xids(memory, reading(energy=3.0), [xid(95)]) == [95]


def test_a_recovery_action_that_is_no_longer_asked_for() -> None:
    """ALERT-01: the driver asked for a reset after the Xid, and then for nothing: it was done."""
    memory = FaultTracker(ManualClock())
    assert open_xids(memory, reading(action=0), [xid(48)]) == [48]
    assert open_xids(memory, reading(action=4), [xid(48)]) == [48]
    assert open_xids(memory, reading(action=0), [xid(48)]) == []


def test_a_lost_gpu_is_back_in_a_new_session_only() -> None:
    """GPU-01: an answer in the session of the loss is no proof, one after a new initialization is; 79 goes with it."""
    clock = ManualClock()
    memory = FaultTracker(clock)
    began = clock.now()
    (lost,), _ = memory.observe([reading(GpuState.LOST, since=began)], [xid(79), xid(48)], FIRST)
    clock.advance(60)
    (same,), _ = memory.observe([reading(since=clock.now())], [xid(79), xid(48)], FIRST)
    wanted = memory.proof_wanted
    (back,), _ = memory.observe([reading(since=clock.now())], [xid(79), xid(48)], SECOND)

    assert (lost.lost_since_seconds, same.lost_since_seconds, wanted) == (began, began, True)
    assert (back.lost_since_seconds, [each.xid for each in back.unrepaired_xids]) == (None, [48])
    (reset,), _ = memory.observe([reading(since=clock.now())], (), DriverSession(3, 1, "580.1"))
    assert [each.repair for each in (lost, same, back)] == ["", "", ""]
    assert reset.repair == "the driver was loaded anew"


def test_an_answer_alone_is_called_an_answer() -> None:
    """GPU-01: a GPU that was lost with Xid 79 and answers again is not said to have been reset."""
    memory = FaultTracker(ManualClock())
    memory.observe([reading(GpuState.LOST, since=1.0)], [xid(79)], FIRST)
    (back,), _ = memory.observe([reading()], [xid(79)], SECOND)
    assert back.repair == "it answers again after a new initialization of NVML"


def test_the_same_since_whatever_happens_in_between() -> None:
    """GPU-01: lost, initialized again, failed, lost again: since the first time."""
    clock = ManualClock()
    memory = FaultTracker(clock)
    began = clock.now()
    memory.observe([reading(GpuState.LOST, since=began)], (), FIRST)
    for state in (GpuState.STARTING, GpuState.FAILED, GpuState.LOST, GpuState.GONE):
        clock.advance(30)
        (seen,), _ = memory.observe([reading(state, since=clock.now())], (), SECOND)
        assert seen.lost_since_seconds == began
    assert seen.since_seconds == began


def _written(path: Path, clock: ManualClock) -> None:
    memory = FaultTracker(clock, RepairsFile(path, "boot"))
    memory.observe([reading(GpuState.LOST, since=clock.now(), energy=500.0)], [xid(79), xid(13)], FIRST)
    until(path.exists, "the faults are written")


def test_a_restart_keeps_what_is_open(tmp_path: Path) -> None:
    """GPU-01: the next agent tells the same loss since the same time, the same Xids, and 0 events of its own."""
    clock = ManualClock()
    path, began = tmp_path / "faults.json", clock.now()
    _written(path, clock)
    clock.advance(3600)
    memory = FaultTracker(clock, RepairsFile(path, "boot"))
    (seen,), xids = memory.observe([reading(GpuState.LOST, since=clock.now())], (), FIRST)

    assert seen.lost_since_seconds == began
    assert [(each.xid, each.last_time_seconds) for each in seen.unrepaired_xids] == [(79, 100.0)]
    assert [(each.xid, each.count, each.last_time_seconds) for each in xids] == [(13, 0, 100.0), (79, 0, 100.0)]


def test_a_reboot_repairs(tmp_path: Path) -> None:
    """ALERT-01: in another boot nothing of it is left."""
    clock = ManualClock()
    _written(tmp_path / "faults.json", clock)
    memory = FaultTracker(clock, RepairsFile(tmp_path / "faults.json", "another boot"))
    (seen,), xids = memory.observe([reading()], (), FIRST)
    assert (seen.lost_since_seconds, seen.unrepaired_xids, xids) == (None, (), ())
    assert seen.repair == "it answers again after a reboot"


def test_a_reboot_after_which_it_is_not_listed_repairs_nothing(tmp_path: Path) -> None:
    """ALERT-01: it is lost for as long as it was, by the wall clock, also over a second reboot, until it answers."""
    clock = ManualClock()
    _written(tmp_path / "faults.json", clock)
    for boot in ("second", "third"):
        clock = ManualClock(now=30.0, wall=clock.wall() + DAY)
        memory = FaultTracker(clock, RepairsFile(tmp_path / "faults.json", boot))
        (gone,), _ = memory.observe([reading(GpuState.GONE, since=30.0)], (), FIRST)
        assert gone.lost_since_seconds is not None
        assert 30.0 - gone.lost_since_seconds >= DAY * (1 if boot == "second" else 2)
        clock.advance(61.0)
        memory.observe([reading(GpuState.GONE, since=30.0)], (), FIRST)
        until(partial(_is_of, tmp_path / "faults.json", boot), "the faults are written")
    (back,), _ = memory.observe([reading()], (), SECOND)
    assert (back.lost_since_seconds, back.repair) == (None, "it answers again after a reboot")


def _is_of(path: Path, boot: str) -> bool:
    return boot in path.read_text()


def test_a_gpu_that_was_taken_out_is_not_lost(tmp_path: Path) -> None:
    """GPU-01: what is not expected any more, as a person has removed the list, is forgotten."""
    clock = ManualClock()
    _written(tmp_path / "faults.json", clock)
    memory = FaultTracker(clock, RepairsFile(tmp_path / "faults.json", "another boot"))
    assert memory.lost == {UUID}
    memory.expect(())
    assert memory.lost == frozenset()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema": 1, "boot_id": "boot", "gpus": [{"uuid": "a"}]}', '{"schema": 9}']
)
def test_a_damaged_file_is_no_reason_not_to_start(tmp_path: Path, text: str) -> None:
    """STATE-02: what cannot be read is started anew."""
    path = tmp_path / "faults.json"
    path.write_text(text)
    memory = FaultTracker(ManualClock(), RepairsFile(path, "boot"))
    assert open_xids(memory, reading()) == []


def test_a_gpu_that_answers_again_is_proven_by_a_new_session() -> None:
    """GPU-01: the monitor initializes NVML again to find out, and `gpuagent_gpu_lost` ends with that and not before."""

    async def run() -> None:
        async with rig(TWO, events=False) as stage:
            await stage.tick()
            stage.fail(FaultKind.LOST, gpu=1)
            await stage.tick()
            stage.node.clear()
            back = at(await stage.tick(15, slow=True), 1)
            assert (back.state, stage.value("gpuagent_gpu_lost", gpu="1")) == (GpuState.OK, 1)
            for _ in range(8):
                snapshot = await stage.tick(15, slow=True)
            assert snapshot.node.nvml_initializations == 2
            assert stage.value("gpuagent_gpu_lost", gpu="1") == 0
            assert stage.value("gpuagent_gpu_lost_timestamp_seconds", gpu="1") is None

    asyncio.run(run())


def test_a_driver_reload_repairs_an_xid() -> None:
    """ALERT-01: after the reload the GPU begins anew, and Xid 48 is over; before, 20 minutes change nothing."""

    async def run() -> None:
        async with rig(TWO, events=False) as stage:
            await stage.tick(100, slow=True)
            watcher = stage.monitor._xids
            assert isinstance(watcher, XidWatcher)
            watcher.record(1, at(await stage.tick(), 1).identity.uuid, 48)
            last = stage.clock.wall()
            await stage.tick(1200, slow=True)
            assert stage.value("gpuagent_gpu_xid_unrepaired_timestamp_seconds", gpu="1", xid="48") == last
            stage.fail(FaultKind.DRIVER_RELOAD, down=3.0)
            for _ in range(10):
                await stage.tick(5, slow=True)
            assert stage.value("gpuagent_gpu_lost", gpu="1") == 0
            assert stage.value("gpuagent_gpu_xid_unrepaired_timestamp_seconds", gpu="1") is None
            assert stage.value("gpuagent_xid_events_total", gpu="1", xid="48") == 1

    asyncio.run(run())
