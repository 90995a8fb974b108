"""Memory figures that contradict each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.core.hardware import Memory, MigInstance
from gpuagent.core.identity import NO_INSTANCE
from gpuagent.core.snapshot import GpuProcess, GpuState
from gpuagent.core.wording import WITHHELD
from gpuagent.driver.backend import Collected
from gpuagent.driver.nvml.memory import POSSIBLE, SLACK_BYTES, check_figures
from gpuagent_simulator.abi import Code
from gpuagent_simulator.faults import FaultKind
from tests.agent.driver.nvml.conftest import Bench, Open
from tests.fakes.rig import failing

GIB = 2**30


def holds(pid: int, gib: float | None, gpu_instance: int = NO_INSTANCE) -> GpuProcess:
    """A process of the driver's list."""
    return GpuProcess(pid, None if gib is None else int(gib * GIB), "C", gpu_instance)


def device(total: float | None, used: float | None) -> Memory:
    """Device memory in GiB."""
    return Memory(*(None if each is None else int(each * GIB) for each in (total, used)))


def instance(number: int, total: float, used: float = 0.0) -> MigInstance:
    """A MIG device that is the whole of its GPU instance."""
    return MigInstance(f"MIG-{number}", number, 0, "", device(total, used))


@pytest.mark.parametrize(
    ("memory", "processes", "word"),
    [
        (device(80, 70), [holds(1, 200)], "process 1 holds 200"),
        (device(80, 80), [holds(1, 70), holds(2, 70)], "together"),
        (device(80, 0), [holds(1, 30)], "the whole GPU 0"),
        (device(80, 10), [holds(1, 5), holds(2, 10.1)], "process 2 holds"),
    ],
    ids=["more than the GPU has", "together more than the GPU has", "beside 0 used", "more than is used"],
)
def test_impossible(memory: Memory, processes: list[GpuProcess], word: str) -> None:
    """NUM-12: each of these is impossible, and the reason names what is."""
    verdict, _ = check_figures(memory, processes)

    assert word in verdict.impossible
    assert verdict.doubtful == ""


@pytest.mark.parametrize(
    ("processes", "instances", "word"),
    [
        ([holds(1, 11, 1)], [instance(1, 10)], "process 1 holds 11"),
        ([holds(1, 6, 1), holds(2, 6, 1)], [instance(1, 10)], "GPU instance 1"),
        ([holds(1, 6, 1), holds(2, 6, 2)], [instance(1, 10, 6), instance(2, 10, 6)], ""),
    ],
)
def test_a_gpu_instance_has_a_total_of_its_own(
    processes: list[GpuProcess], instances: list[MigInstance], word: str
) -> None:
    """PROC-09: what fits the GPU and not its MIG instance is impossible; the parent may leave out its instances."""
    verdict, _ = check_figures(device(80, 0), processes, instances)

    assert (word in verdict.impossible) if word else verdict is POSSIBLE


def test_a_sum_that_shared_memory_could_explain_is_doubtful() -> None:
    """NUM-12: each process fits, their sum exceeds what is used and not what there is: CUDA IPC may count twice."""
    verdict, _ = check_figures(device(80, 40), [holds(1, 30), holds(2, 30)])

    assert verdict.impossible == ""
    assert "together hold 60" in verdict.doubtful


def test_rounding_is_no_contradiction() -> None:
    """A page of 2 MiB for each process is rounding."""
    memory = Memory(total_bytes=80 * GIB, used_bytes=2 * GIB)
    fits = [GpuProcess(pid, GIB + SLACK_BYTES, "C") for pid in (1, 2)]

    assert check_figures(memory, fits)[0] is POSSIBLE
    assert check_figures(memory, [fits[0]._replace(used_bytes=2 * GIB + SLACK_BYTES + 1)])[0].impossible


@pytest.mark.parametrize(
    ("again", "possible"), [(device(80, 31), True), (device(80, 2), False), (None, False), (Memory(), False)]
)
def test_a_process_that_allocated_in_between(again: Memory | None, possible: bool) -> None:
    """The memory is read before the list: only a list that contradicts a second reading as well is impossible."""
    verdict, memory = check_figures(device(80, 1), [holds(1, 30)], read_again=lambda: again)

    assert (verdict is POSSIBLE) == possible
    assert memory == (again if possible else device(80, 1))


def test_unknown_figures_contradict_nothing() -> None:
    """NUM-05: a GPU without memory of its own, a process whose memory is not told, a memory that was not read."""
    for memory in (None, Memory(), device(None, None)):
        assert check_figures(memory, [holds(1, 200)])[0] is POSSIBLE
    assert check_figures(device(80, 0), [holds(1, None)])[0] is POSSIBLE


sizes = st.none() | st.integers(0, 2**39)
lists = st.lists(
    st.tuples(st.integers(1, 9), sizes, st.sampled_from([NO_INSTANCE, 1, 2])), max_size=6,
    unique_by=lambda each: (each[0], each[2]),
)  # fmt: skip


@given(
    total=sizes,
    used=sizes,
    again=sizes,
    processes=lists,
    instances=st.dictionaries(st.integers(1, 2), st.integers(0, 2**39)),
)
def test_no_impossible_combination_passes(
    total: int | None,
    used: int | None,
    again: int | None,
    processes: list[tuple[int, int | None, int]],
    instances: dict[int, int],
) -> None:
    """NUM-12: for any figures, what passes fits in every way: each and all into the total, each into what is used."""
    rows = [GpuProcess(pid, held, "C", gpu_instance) for pid, held, gpu_instance in processes]
    mig = [MigInstance("", number, 0, "", Memory(total_bytes=size)) for number, size in instances.items()]
    verdict, _ = check_figures(
        Memory(total_bytes=total, used_bytes=used), rows, mig, lambda: Memory(total_bytes=total, used_bytes=again)
    )
    held = [row.used_bytes or 0 for row in rows]
    most = max((each for each in (used, again) if each is not None), default=None) if used is not None else None
    fits = total is None or sum(held) <= total + len(held) * SLACK_BYTES
    fits = fits and (total is None or all(each <= total + SLACK_BYTES for each in held))
    fits = fits and all(
        sum(row.used_bytes or 0 for row in rows if row.gpu_instance_id == number)
        <= size + SLACK_BYTES * sum(row.gpu_instance_id == number for row in rows)
        for number, size in instances.items()
    )
    fits = fits and all(
        (row.used_bytes or 0) <= instances[row.gpu_instance_id] + SLACK_BYTES
        for row in rows
        if row.gpu_instance_id in instances
    )
    each_fits = most is None or all(each <= most + SLACK_BYTES for each in held)

    if not fits or not each_fits:
        assert verdict.impossible
    elif most is not None and sum(held) > most + len(held) * SLACK_BYTES:
        assert verdict.contradiction
    elif verdict.impossible:  # the two readings of the memory differ, and neither list fits the larger one's total
        raise AssertionError(verdict)


# ---- over the driver's calls ------------------------------------------------------------------------------------

TWO = "{model: h100, processes: [{name: a, memory: 1GiB}, {name: b, memory: 2GiB}]}"


def inflate(bench: Bench, size: int) -> None:
    """Have the driver list every process with so much."""
    bench.fail(FaultKind.IMPOSSIBLE_MEMORY, size=size)


@pytest.mark.parametrize("size", [200 * GIB, 70 * GIB, 30 * GIB], ids=["one", "together", "more than used"])
def test_an_impossible_list_is_withheld(open_gpu: Open, size: int) -> None:
    """NUM-12: no process is given with it, the run of the collector says why, and the device memory stands."""
    bench = open_gpu(TWO)
    inflate(bench, size)
    found = bench.collect()

    assert found.processes == ()
    assert found.utilizations is None
    assert "impossible" in found.contradiction
    assert not found.reading.processes_known
    assert WITHHELD in failing(found.reading)["processes"]
    assert (found.reading.state, found.reading.memory and found.reading.memory.used_bytes) == (GpuState.OK, 3 * GIB)


def test_a_doubtful_list_is_given(open_gpu: Open) -> None:
    """NUM-12: 2 + 2 GiB beside 3 GiB used: shown as it is, with the doubt."""
    bench = open_gpu(TWO)
    inflate(bench, 2 * GIB)
    found = bench.collect()

    assert [process.used_bytes for process in found.processes] == [2 * GIB, 2 * GIB]
    assert found.reading.processes_known
    assert "in doubt" in found.contradiction


def test_impossible_device_memory_takes_the_processes_along(open_gpu: Open) -> None:
    """NUM-12: a GPU that says nonsense of its own memory is not believed about its processes."""
    bench = open_gpu(TWO)
    bench.fail(FaultKind.GARBAGE_VALUES, calls=("nvmlDeviceGetMemoryInfo*",))
    found: Collected = bench.collect()

    assert (found.reading.state, found.reading.memory, found.processes) == (GpuState.FAILED, None, ())
    assert "impossible" in found.contradiction


def test_a_call_that_fails_is_no_contradiction(open_gpu: Open) -> None:
    """A memory that could not be read says nothing about the processes."""
    bench = open_gpu(TWO)
    bench.fail(FaultKind.ERROR, calls=("nvmlDeviceGetMemoryInfo*",), code=Code.UNKNOWN)
    found = bench.collect()

    assert (found.contradiction, len(found.processes)) == ("", 2)


def test_an_impossible_list_of_one_form(open_gpu: Open) -> None:
    """NUM-10: a driver that shuffles the newer list alone is shown by the older one, and in doubt."""
    bench = open_gpu(TWO)
    bench.collect()
    bench.fail(FaultKind.PROCESS_STRIDE)
    found = bench.collect()

    assert "in doubt" in found.contradiction
    assert [process.used_bytes for process in found.processes] == [GIB, 2 * GIB]


def test_possible_figures_are_checked_once(open_gpu: Open) -> None:
    """EXP-08: the same list beside the same memory is not held against it again, and stays the same object."""
    bench = open_gpu(TWO)
    first, second = bench.collect(), bench.collect()

    assert first.processes is second.processes
    assert bench.collector._checked is not None
