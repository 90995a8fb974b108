"""The ring of used memory, for sparklines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpuagent.core.hardware import Memory
from gpuagent.core.snapshot import GpuIdentity, GpuReading, GpuState, NodeReading, NvmlState, Snapshot
from gpuagent_exporters.history import History
from tests.fakes.readings import process


def tick(seconds: float, **used_bytes: int | None) -> Snapshot:
    """A snapshot at a time, with used memory by UUID; None is a GPU that could not be read."""
    gpus = tuple(
        GpuReading(GpuIdentity(index, uuid), GpuState.OK, memory=None if used is None else Memory(used_bytes=used))
        for index, (uuid, used) in enumerate(used_bytes.items())
    )
    return Snapshot(time_seconds=0.0, clock_seconds=seconds, node=NodeReading(NvmlState.READY), gpus=gpus)


def after(*ticks: Snapshot, length: int = 5) -> dict[str, Sequence[float | None]]:
    """The points after these ticks, 10 s each."""
    history = History(interval_seconds=10.0, length=length)
    for snapshot in ticks:
        history.add(snapshot)
    return history.points()


def test_a_point_is_the_peak_of_its_interval() -> None:
    """A peak is what runs into the wall: it is not lost between two points."""
    assert after(tick(0, a=5), tick(4, a=9), tick(8, a=6), tick(10, a=1)) == {"a": (9, 1)}


def test_an_interval_without_a_reading_is_none() -> None:
    """EXP-05: not zero, and not the last value again."""
    assert after(tick(0, a=5), tick(10, a=None), tick(20, a=7)) == {"a": (5, None, 7)}


def test_ticks_that_did_not_come_leave_gaps() -> None:
    """Time goes on while nothing is measured."""
    assert after(tick(0, a=5), tick(35, a=7)) == {"a": (5, None, None, 7)}


def test_the_ring_is_bounded() -> None:
    """EXP-01: by length, and by the GPUs of the last intervals."""
    ticks = [tick(seconds * 10, a=seconds) for seconds in range(1000)]

    assert after(*ticks) == {"a": (995, 996, 997, 998, 999)}
    assert after(tick(0, a=1), tick(1e6, b=2)) == {"b": (2,)}


def test_a_gpu_that_is_gone_leaves_in_time() -> None:
    """GPU-02: its last points are seen until they are older than the ring."""
    gone = [tick(10.0 * n, b=1) for n in range(1, 6)]

    assert "a" in after(tick(0, a=5, b=1), *gone[:-1])
    assert "a" not in after(tick(0, a=5, b=1), *gone)


def test_a_gpu_without_memory_of_its_own_has_no_points() -> None:
    """NUM-05: no total, no line."""
    snapshot = tick(0, a=1)
    assert after(snapshot) == {"a": (1,)}
    assert after(tick(0)) == {}


def test_a_process_that_changes_within_a_slot_is_noted() -> None:
    """A peak between two readings that are alike is not lost, and one that stays as it is fills the next slot too."""
    history = History(interval_seconds=10.0, length=5)
    low, high = process(10, used_gib=1), process(10, used_gib=3)
    for seconds, reading in ((0, low), (1, low), (2, high), (3, low), (10, low), (11, low), (20, low)):
        history.add(replace(tick(seconds, **{low.gpu_uuid: 80}), processes=(reading,)))

    (line,) = history.document()["gpus"][0]["processes"]
    assert line["memory_used_bytes"] == [high.used_bytes, low.used_bytes, low.used_bytes]
