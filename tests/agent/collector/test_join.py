"""Whose process each entry is, and where the memory went."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuagent.collector.join import Joiner, join_processes, reconcile
from gpuagent.core.hardware import Memory
from gpuagent.core.identity import ProcessId
from gpuagent.core.snapshot import (
    GpuIdentity,
    GpuProcess,
    GpuReading,
    GpuState,
    ProcessInfo,
    ProcessReading,
    ProcessState,
    ProcessUtilization,
)
from gpuagent.driver.backend import Collected

BUSY = ProcessUtilization(0.5, 0.2, 0.0, 0.0)


def collected(*processes: GpuProcess, utilizations: dict[int, ProcessUtilization] | None = None) -> Collected:
    """What one GPU has answered."""
    return Collected(GpuReading(GpuIdentity(0, "GPU-0"), GpuState.OK), processes, utilizations)


def info(pid: int) -> ProcessInfo:
    """What /proc knows of a pid."""
    return ProcessInfo(ProcessId("boot", pid, 1), "python3", 1000, "alice")


def of_state(state: ProcessState, used_bytes: int | None) -> ProcessReading:
    """A process that holds memory."""
    return ProcessReading(0, "GPU-0", 1, state, None, used_bytes, "C", None)


def test_live_and_dead() -> None:
    """PROC-01: a pid that /proc does not know is dead, and keeps its memory."""
    entries = collected(GpuProcess(10, 5, "C"), GpuProcess(11, 7, "C"), utilizations={10: BUSY})
    live, dead = join_processes(entries, {10: info(10), 11: None}, host_pid_namespace=True)

    assert (live.state, live.info, live.used_bytes, live.utilization) == (ProcessState.LIVE, info(10), 5, BUSY)
    assert (dead.state, dead.info, dead.used_bytes, dead.utilization) == (ProcessState.DEAD, None, 7, None)


def test_another_namespace() -> None:
    """PROC-05: a process here that has the same number as the driver's is not taken for it."""
    (process,) = join_processes(collected(GpuProcess(10, 5, "C")), {10: info(10)}, host_pid_namespace=False)

    assert (process.state, process.info) == (ProcessState.UNRESOLVED, None)


def test_unknown_memory_is_not_reconciled() -> None:
    """NUM-05: a GPU without memory of its own has no sum to check."""
    assert reconcile(None, []) is None
    assert reconcile(Memory(), []) is None


states = st.sampled_from(list(ProcessState))
sizes = st.one_of(st.none(), st.integers(0, 2**47))


@given(used=st.integers(0, 2**47), processes=st.lists(st.tuples(states, sizes), max_size=20))
def test_the_parts_are_the_whole(used: int, processes: list[tuple[ProcessState, int | None]]) -> None:
    """NUM-11: used = live + dead + unattributed whenever the processes fit into it; no part is ever below zero."""
    parts = reconcile(Memory(used_bytes=used), [of_state(*process) for process in processes])

    assert parts is not None
    listed = sum(size or 0 for _, size in processes)
    assert parts.processes_bytes + parts.dead_processes_bytes == listed
    assert parts.dead_processes_bytes == sum(size or 0 for state, size in processes if state is ProcessState.DEAD)
    assert parts.unattributed_bytes >= 0
    if listed <= used:
        assert parts.processes_bytes + parts.dead_processes_bytes + parts.unattributed_bytes == used
    else:
        assert parts.unattributed_bytes == 0


def test_what_has_not_changed_is_the_same_object() -> None:
    """EXP-08: whoever reads each tick need not compare 512 processes: one has changed, the rest are as they were."""
    joiner, infos = Joiner(host_pid_namespace=True), {10: info(10), 11: info(11)}
    first = joiner.join(collected(GpuProcess(10, 5, "C"), GpuProcess(11, 7, "C"), utilizations={10: BUSY}), infos)
    same = joiner.join(collected(*first.collected.processes, utilizations={10: BUSY}), infos)
    later = joiner.join(collected(GpuProcess(10, 5, "C"), GpuProcess(11, 8, "C"), utilizations={10: BUSY}), infos)

    assert first.readings == join_processes(first.collected, infos, host_pid_namespace=True)
    assert [new is old for new, old in zip(same.readings, first.readings, strict=True)] == [True, True]
    assert [new is old for new, old in zip(later.readings, first.readings, strict=True)] == [True, False]
    assert later.readings == join_processes(later.collected, infos, host_pid_namespace=True)


gone = st.none()
looks = st.tuples(
    st.lists(st.sampled_from([GpuProcess(10, 5, "C"), GpuProcess(11, 7, "C"), GpuProcess(10, 6, "G")]), max_size=3),
    st.dictionaries(st.sampled_from([10, 11]), gone | st.sampled_from([info(10), info(11)])),
    st.none() | st.dictionaries(st.sampled_from([10, 11]), st.just(BUSY)),
    st.none() | st.integers(0, 40),
    st.integers(0, 1),
)


@given(ticks=st.lists(looks, max_size=6), host_pid_namespace=st.booleans())
def test_it_never_tells_of_an_earlier_tick(
    ticks: list[
        tuple[list[GpuProcess], dict[int, ProcessInfo | None], dict[int, ProcessUtilization] | None, int | None, int]
    ],
    host_pid_namespace: bool,
) -> None:
    """EXP-05: whatever came before, the readings and the sums are those of this tick."""
    joiner = Joiner(host_pid_namespace=host_pid_namespace)
    for processes, infos, utilizations, used, index in ticks:
        memory = None if used is None else Memory(used_bytes=used)
        reading = GpuReading(GpuIdentity(index, "GPU-0"), GpuState.OK, memory=memory)
        now = Collected(reading, tuple(processes), utilizations)
        joined = joiner.join(now, infos)

        assert joined.readings == join_processes(now, infos, host_pid_namespace=host_pid_namespace)
        assert joined.reconciliation == reconcile(memory, joined.readings)
