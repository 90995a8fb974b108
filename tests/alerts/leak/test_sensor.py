"""What the detector is fed with, and what becomes of its word; the detector itself is a fake here."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from gpuagent.core.growth import Evidence, Growth, MemoryKey, Range, Verdict
from gpuagent.core.identity import ProcessId
from gpuagent.core.snapshot import (
    AllocatorReading,
    ClientReading,
    GpuState,
    ProcessReading,
    ProcessState,
    Reconciliation,
    Snapshot,
)
from gpuagent.core.units import GIB
from gpuagent_alerts.leak.histories import Histories
from gpuagent_alerts.leak.sensor import LeakSensor
from tests.fakes.detectors import STEADY, FakeDetector, FakeDetectors
from tests.fakes.readings import BOOT_ID, NOW, WALL, absent_gpu, gpu, mig_instance, process, snapshot

GROWS = Growth(Verdict.GROWING, slope=Range(1e6, 0.9e6, 1.1e6), since_seconds=NOW - 100, reasons=("it rose",))
LEAKS = replace(GROWS, verdict=Verdict.LEAKING, evidence=Evidence.BALANCED)
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Bench:
    """A sensor over fake detectors."""

    def __init__(self, most: int = 100) -> None:
        self.detectors = FakeDetectors()
        self.histories = Histories("balanced", most, self.detectors.type)
        self.sensor = LeakSensor(self.histories)
        self.seconds = 0.0

    def show(self, seen: Snapshot, seconds: float = 1.0) -> Snapshot:
        """The next tick: every GPU that can be read was read now."""
        self.seconds += seconds
        now = NOW + self.seconds
        gpus = tuple(replace(one, time_seconds=now) if one.state is GpuState.OK else one for one in seen.gpus)
        return self.sensor.observe(replace(seen, gpus=gpus, clock_seconds=now, time_seconds=WALL + self.seconds))

    def of(self, pid: int) -> FakeDetector:
        """The newest detector of a process; they are told apart by their phase."""
        return [
            made for made in self.detectors.made if made.beginning.started_seconds and made.beginning.phase == pid % 15
        ][-1]


def on(*processes: ProcessReading, **changes: Any) -> Snapshot:
    """One GPU with these."""
    return snapshot([gpu(**changes)], list(processes))


def test_what_a_detector_is_told() -> None:
    """LEAK-03: its process' bytes, the GPU's free bytes, the time of the reading, and when the process really began."""
    bench = Bench()
    bench.show(on(process(7, used_gib=3.0)))
    (fed,) = [made for made in bench.detectors.made if made.beginning.started_seconds is not None]
    assert fed.beginning == (24 * GIB, 1000 / TICKS_PER_SECOND, 7)
    assert fed.readings == [(NOW + 1, 3 * GIB, int(4.25 * GIB), None, None)]


def test_a_reading_is_taken_once() -> None:
    """LEAK-03: a GPU that is late shows its last reading again: that is no second reading."""
    bench = Bench()
    seen = bench.show(on(process(7)))
    again = bench.sensor.observe(replace(seen, clock_seconds=seen.clock_seconds + 1))
    assert len(bench.of(7).readings) == 1
    assert again.growth is seen.growth


def test_what_was_handed_out_never_changes() -> None:
    """A snapshot is frozen; where nothing is new the same mapping is handed on."""
    bench = Bench()
    first = bench.show(on(process(7), process(8)))
    second = bench.show(on(process(7), process(8)))
    bench.of(7).said = GROWS
    third = bench.show(on(process(7), process(8)))
    assert second.growth is first.growth
    assert first.growth[process(7).key].verdict is Verdict.STEADY
    assert third.growth[process(7).key].verdict is Verdict.GROWING
    assert third.growth[process(8).key] is first.growth[process(8).key]


def test_since_is_told_in_unix_time() -> None:
    """It stays what it was though the wall clock is set, until the detector has something new to say."""
    bench = Bench()
    bench.show(on(process(7)))
    bench.of(7).said = GROWS
    seen = bench.show(on(process(7)))
    assert seen.growth[process(7).key].since_seconds == WALL - 100


def test_every_standard_that_a_leak_has_met() -> None:
    """LEAK-02: is told for as long as it lasts, and the next leak begins anew."""
    bench = Bench()
    told = []
    for said in (
        LEAKS,
        replace(LEAKS, evidence=Evidence.STRICT),
        replace(LEAKS, slope=None),
        STEADY,
        replace(LEAKS, evidence=Evidence.SENSITIVE),
    ):
        bench.show(on(process(7)))
        bench.of(7).said = said
        told.append(bench.show(on(process(7))).growth[process(7).key].evidence_told)
    both = (Evidence.BALANCED, Evidence.STRICT)
    assert told == [(Evidence.BALANCED,), both, both, (), (Evidence.SENSITIVE,)]


def test_another_process_under_the_same_pid() -> None:
    """LEAK-03: is another history, and nothing of the old one is said of it."""
    bench = Bench()
    bench.show(on(process(7)))
    bench.of(7).said = LEAKS
    bench.show(on(process(7)))
    seen = bench.show(on(process(7, id=ProcessId(BOOT_ID, 7, 2000))))
    assert seen.growth[process(7).key].verdict is Verdict.STEADY
    assert bench.of(7).beginning.started_seconds == 2000 / TICKS_PER_SECOND
    assert bench.histories.watching.histories == 2  # with nobody's


def test_a_tick_that_does_not_know_the_processes() -> None:
    """LEAK-03, KILL-02: is a missing reading, not zero: nothing is fed, nothing said, and all goes on afterwards."""
    bench = Bench()
    known = bench.show(on(process(7)))
    for unknown in (
        snapshot([gpu(processes_known=False)], []),
        snapshot([gpu(processes_trusted=False)], [process(7)]),
        snapshot([absent_gpu(0, GpuState.BLIND)], []),
        snapshot([], []),
    ):
        assert bench.show(unknown).growth == {}
    assert bench.show(on(process(7))).growth.keys() == known.growth.keys()
    assert len(bench.of(7).readings) == 2


def test_a_process_that_has_ended_is_forgotten_after_a_while() -> None:
    """LEAK-03: at once nothing is said of it; one that only gave its memory back for a minute has its history still."""
    bench = Bench()
    bench.show(on(process(7), process(8)))
    gone = bench.show(on(process(8)), 60)
    assert process(7).key not in gone.growth
    bench.show(on(process(7), process(8)), 60)
    assert len(bench.of(7).readings) == 2
    for _ in range(50):
        bench.show(on(process(8)), 20)
    assert bench.histories.watching.histories == 2  # pid 8 and nobody's


def test_the_dead_and_the_unresolved() -> None:
    """LEAK-01: memory of the dead is nobody's; a pid that means nothing here has a history until it is gone."""
    bench = Bench()
    dead = process(7, state=ProcessState.DEAD)
    other = process(8, state=ProcessState.UNRESOLVED)
    split = Reconciliation(5 * GIB, 3 * GIB, 1 * GIB)
    seen = bench.show(on(dead, other, reconciliation=split))
    assert set(seen.growth) == {other.key, MemoryKey("GPU-00000000")}
    assert [made.readings[-1][1] for made in bench.detectors.made] == [4 * GIB, other.used_bytes]
    assert [kept.key.id for kept in bench.histories.to_keep(0.0)] == [ProcessId(BOOT_ID, 0, 0)]
    bench.show(on(dead), 20)
    assert bench.histories.watching.histories == 1


def test_under_mig() -> None:
    """LEAK-02: a process shares the memory of its own GPU instance; one pid in two instances is two histories."""
    bench = Bench()
    parts = (mig_instance(1, 4.0, 10.0), mig_instance(2, 9.0, 20.0))
    seen = bench.show(on(process(7, instance=1, used_gib=4.0), process(7, instance=2, used_gib=9.0), mig=parts))
    fed = [(made.beginning.total_bytes, made.readings[0][1:3]) for made in bench.detectors.made
           if made.beginning.started_seconds is not None]  # fmt: skip
    assert fed == [(10 * GIB, (4 * GIB, 6 * GIB)), (20 * GIB, (9 * GIB, 11 * GIB))]
    assert {key.gpu_instance_id for key in seen.growth if key.pid} == {1, 2}


@pytest.mark.parametrize(
    ("instance_of_process", "expected"),
    [(1, {1: 5.0, 2: 9.0, -1: 2.0}), (-1, {-1: 16.0})],
    ids=["in an instance", "the driver does not tell in which"],
)
def test_memory_of_no_process_under_mig(instance_of_process: int, expected: dict[int, float]) -> None:
    """LEAK-02: what is in an instance is measured against the room of that, and is no part of the rest of its GPU."""
    bench = Bench()
    parts = (mig_instance(1, 8.0, 10.0), mig_instance(2, 9.0, 20.0))
    inside = process(7, used_gib=3.0)._replace(gpu_instance_id=instance_of_process)
    whole = Reconciliation(3 * GIB, 0, 16 * GIB)
    bench.show(on(inside, mig=parts, used_gib=19.0, total_gib=40.0, reconciliation=whole))
    nobodys = {one.key.gpu_instance_id: (one.used_bytes or 0) / GIB for one in bench.histories if not one.id.pid}
    assert nobodys == expected
    bench.show(on(inside, mig=parts, used_gib=19.0, total_gib=40.0, reconciliation=None))
    assert {one.used_bytes for one in bench.histories if not one.id.pid} == {None}, "not known is not 0"
    bench.show(on(used_gib=2.0, total_gib=40.0, reconciliation=Reconciliation(0, 0, 2 * GIB)))
    assert {one.key.gpu_instance_id for one in bench.histories if not one.id.pid} == {-1}


def test_the_allocators_figures() -> None:
    """LEAK-01: of the very process, never of one that had its pid before; under MIG by the instance's UUID."""
    bench = Bench()
    one = process(7)
    figures = {
        one.gpu_uuid: AllocatorReading(allocated_bytes=2, reserved_bytes=5),
        "MIG-00010000": AllocatorReading(1, 0, 3),
    }
    assert one.info is not None
    own = ClientReading(one.info.id, "app", devices=figures)
    bench.show(replace(on(one), clients={7: own}))
    bench.show(replace(on(one), clients={7: replace(own, id=ProcessId(BOOT_ID, 7, 5))}))
    bench.show(replace(on(one), clients={7: replace(own, devices={})}))
    assert [reading[3:] for reading in bench.of(7).readings] == [(2, 5), (None, None), (None, None)]

    inside = process(9, instance=1)
    assert inside.info is not None
    client = replace(own, id=inside.info.id)
    bench.show(replace(on(inside, mig=(mig_instance(1, 4.0),)), clients={9: client}))
    assert bench.of(9).readings[0][3:] == (1, 3)


def test_what_an_app_says_it_needs() -> None:
    """LEAK-04: goes to the detector of that very process, before its first figures too."""
    bench = Bench()
    one = process(7)
    assert one.info is not None
    own = ClientReading(one.info.id, "app", declared_typical_bytes=40 * GIB)
    bench.show(replace(on(one), clients={7: own}))
    assert bench.of(7).declared_bytes == 40 * GIB
    bench.show(replace(on(one), clients={7: replace(own, id=ProcessId(BOOT_ID, 7, 5))}))
    assert bench.of(7).declared_bytes is None


def test_there_is_an_end_to_how_much_is_remembered() -> None:
    """LEAK-03: who finds no room is counted once; those who have gone make room."""
    bench = Bench(most=3)
    crowd = [process(pid) for pid in range(20, 30)]
    for _ in range(3):
        seen = bench.show(on(*crowd))
    assert bench.histories.watching == (3, 8)  # two processes, and nobody's memory
    assert len(seen.growth) == 3
    for _ in range(3):  # room is looked for now and then
        seen = bench.show(on(*crowd[5:]), 20)
    assert bench.histories.watching.histories == 3
    assert len({key.pid for key in seen.growth} & {one.pid for one in crowd[5:]}) == 2
    for _ in range(3):
        back = bench.show(on(*crowd[:2]), 20)
    assert {key.pid for key in back.growth} == {0, 20, 21}
    assert all(made.readings for made in bench.detectors.made)


def test_a_gpu_with_impossible_memory() -> None:
    """LEAK-03: a driver that tells 2^64 - 1 bytes costs that GPU its histories, and nothing else."""

    def refuse(beginning: Any) -> None:
        if beginning.total_bytes > 2**60:
            raise ValueError("no GPU has that much")

    bench = Bench()
    bench.detectors.on_begin = refuse
    odd = gpu(0)
    assert odd.memory is not None
    odd = replace(odd, memory=replace(odd.memory, total_bytes=2**64 - 1))
    seen = bench.show(snapshot([odd, gpu(1)], [process(7), process(8, gpu_index=1)]))
    assert {key.gpu_uuid for key in seen.growth} == {"GPU-00000001"}
