"""What the page's charts draw: the ring's document, whole or from a cursor on."""

from __future__ import annotations

import gc
import json
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from gpuagent.core.hardware import Memory, Utilization
from gpuagent.core.identity import NO_INSTANCE, ProcessId
from gpuagent.core.snapshot import (
    GpuIdentity,
    GpuReading,
    GpuState,
    NodeReading,
    NvmlState,
    ProcessInfo,
    ProcessReading,
    ProcessState,
    Snapshot,
)
from gpuagent.core.units import GIB
from gpuagent_exporters.history import History

WALL = 1_700_000_000.0


def process(
    pid: int, used_bytes: int | None, *, ticks: int = 1, uuid: str = "a", name: str = "python3"
) -> ProcessReading:
    """A process on a GPU that started at `ticks`."""
    info = ProcessInfo(id=ProcessId("boot", pid, ticks), name=name, uid=1000, user="alice", command="secret")
    return ProcessReading(0, uuid, pid, ProcessState.LIVE, info, used_bytes, "C", None, NO_INSTANCE, NO_INSTANCE)


def tick(seconds: float, *processes: ProcessReading, used: int | None = 10, busy: float | None = 0.5) -> Snapshot:
    """A snapshot of GPU `a` at a time."""
    memory = None if used is None else Memory(used_bytes=used)
    gpu = GpuReading(GpuIdentity(0, "a"), GpuState.OK, memory=memory, utilization=Utilization(gpu_ratio=busy))
    node = NodeReading(NvmlState.READY)
    return Snapshot(WALL + seconds, seconds, node, gpus=(gpu,), processes=processes)


def after(*ticks: Snapshot, length: int = 5, most: int = 512) -> History:
    """The history after these ticks, in slots of 10 s."""
    history = History(interval_seconds=10.0, length=length, most_processes=most)
    for snapshot in ticks:
        history.add(snapshot)
    return history


def lines(document: dict[str, Any]) -> dict[int, list[float | None]]:
    """Used memory by pid."""
    return {one["pid"]: one["memory_used_bytes"] for gpu in document["gpus"] for one in gpu["processes"]}


def test_before_the_first_tick_there_is_nothing() -> None:
    """EXP-06: an answer that stands alone, and a cursor that asks for everything again."""
    document = after().document()

    assert (document["gpus"], document["cursor"], document["whole"]) == ([], "", True)
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_everything_comes_first() -> None:
    """Memory and utilization of the GPU, and a line for each process with a name and no command or user."""
    document = after(tick(0, process(7, 4)), tick(10, process(7, 6), used=20, busy=None)).document()

    assert document["whole"] is True
    assert (document["first_slot"], document["last_slot"], document["time_seconds"]) == (0, 1, WALL + 10)
    (gpu,) = document["gpus"]
    assert (gpu["memory_used_bytes"], gpu["utilization_ratio"]) == ([10, 20], [0.5, None])
    assert lines(document) == {7: [4, 6]}
    assert gpu["processes"][0]["process"] == "python3"
    assert "alice" not in str(document)
    assert "secret" not in str(document)


def test_then_only_what_is_new() -> None:
    """From the slot of the cursor on, which was still growing when it was told."""
    history = after(tick(0, process(7, 4)), tick(10, process(7, 5)))
    cursor = history.document()["cursor"]
    history.add(tick(15, process(7, 9)))
    history.add(tick(20, process(7, 6)))
    answer = history.document(cursor)

    assert (answer["whole"], answer["first_slot"]) == (False, 1)
    assert lines(answer) == {7: [9, 6]}


@pytest.mark.parametrize("seconds", [60.0, 1e6])
def test_a_cursor_that_is_too_old_gets_everything(seconds: float) -> None:
    """A tab that slept for longer than the ring begins again, and knows that it does."""
    history = after(tick(0))
    cursor = history.document()["cursor"]
    history.add(tick(seconds))

    assert history.document(cursor)["whole"] is True


def test_another_agents_cursor_gets_everything() -> None:
    """After a restart of the agent, or a reboot, slots are not those that the browser knows."""
    cursor = after(tick(20)).document()["cursor"]
    restarted = after(tick(10), tick(30))

    assert restarted.document(cursor)["whole"] is True


@pytest.mark.parametrize(
    "cursor", ["x", "-", "1", "1-", "-1", "1-2-3", "1-\N{SUPERSCRIPT TWO}", "1" * 50 + "-1", " 1-1"]
)
def test_a_cursor_that_was_never_given_is_refused(cursor: str) -> None:
    """Bad input is told so, not answered with something else."""
    with pytest.raises(ValueError, match="cursor of an earlier answer"):
        after(tick(0)).document(cursor)


def test_a_gap_is_no_line() -> None:
    """EXP-05: what was not read, or not known, is null, and never the last value again."""
    document = after(tick(0, process(7, 4)), tick(10, used=None), tick(30, process(7, None))).document()

    assert document["gpus"][0]["memory_used_bytes"] == [10, None, None, 10]
    assert lines(document) == {7: [4, None, None, None]}


def test_a_process_that_has_ended_goes_on_under_its_name() -> None:
    """PROC-01: what is still held by it is one line with what it held while it lived."""
    lived = process(7, 4)
    dead = lived._replace(state=ProcessState.DEAD, info=None, former=lived.info)
    (gpu,) = after(tick(0, lived), tick(10, dead)).document()["gpus"]

    assert [(line["process"], line["memory_used_bytes"]) for line in gpu["processes"]] == [("python3", [4, 4])]


def test_a_pid_that_is_used_again_is_another_line() -> None:
    """LEAK-03: two processes are never drawn as one."""
    document = after(tick(0, process(7, 4)), tick(10, process(7, 6, ticks=99))).document()
    drawn = [(one["first_slot"], one["memory_used_bytes"]) for one in document["gpus"][0]["processes"]]

    assert sorted(drawn) == [(0, [4, None]), (1, [None, 6])]


def test_the_largest_have_lines() -> None:
    """No more than a person can tell apart, by the most that each has held; the others are counted."""
    many = [process(pid, pid * 10) for pid in range(1, 11)]
    document = after(tick(0, *many)).document(top=3)

    assert set(lines(document)) == {8, 9, 10}
    assert document["gpus"][0]["processes_left_out"] == 7


def test_ended_processes_stay_for_the_length_of_the_ring() -> None:
    """Who caused the peak is worth knowing when it is over; then it is forgotten."""
    ended = after(tick(0, process(7, 4)), tick(40))

    assert lines(ended.document()) == {7: [4, None, None, None, None]}
    ended.add(tick(50))
    assert lines(ended.document()) == {}


def test_ten_thousand_processes_leave_no_trace() -> None:
    """EXP-03: the ring is bounded by processes too; who ended longest ago makes room, never one that runs."""
    history = after(most=4)
    for number in range(10_000):
        history.add(tick(number * 10.0, process(1, 1000), process(2 + number, 5)))
    document = history.document(top=64)

    assert len(lines(document)) == 4
    assert lines(document)[1] == [1000] * 5


def test_without_room_a_newcomer_waits() -> None:
    """More processes than there is room for cost nobody his line."""
    history = after(
        tick(0, process(1, 1), process(2, 2)), tick(10, process(1, 1), process(2, 2), process(3, 3)), most=2
    )

    assert set(lines(history.document())) == {1, 2}
    for seconds in (20, 30):
        history.add(tick(seconds, process(2, 2), process(3, 3)))
    assert set(lines(history.document())) == {2, 3}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_last_hour_of_a_full_node_takes_less_than_a_mebibyte() -> None:
    """EXP-01: 8 GPUs with 64 processes each, with every slot filled."""
    gpus = tuple(
        GpuReading(
            GpuIdentity(index, f"GPU-{index}"),
            GpuState.OK,
            memory=Memory(used_bytes=GIB),
            utilization=Utilization(gpu_ratio=0.5),
        )
        for index in range(8)
    )
    crowd = tuple(process(pid, GIB, uuid=f"GPU-{pid % 8}") for pid in range(512))
    full = replace(tick(0), gpus=gpus, processes=crowd)
    history = History()
    gc.collect()
    tracemalloc.start()
    try:
        for slot in range(361):
            history.add(replace(full, clock_seconds=slot * 10.0))
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(lines(history.document(top=64))) == 512
    assert taken < 2**20
