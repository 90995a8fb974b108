"""The process lists: merged, grown, shuffled, refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.core.identity import NO_INSTANCE
from gpuagent.core.snapshot import GpuProcess
from gpuagent.driver.nvml import mig
from gpuagent.driver.nvml.device import NO_INSTANCE_U32, NOT_AVAILABLE_U64
from gpuagent.driver.nvml.processes import Entry, ProcessList, _merge, collect
from gpuagent_simulator.abi import Code
from gpuagent_simulator.faults import Fault, FaultKind
from tests.agent.driver.nvml.conftest import Bench, Open
from tests.tables import table

FIRST = 4_194_305
GIB = 2**30
TWO = "{model: h100, processes: [{name: a, memory: 1GiB, kind: CG}, {name: b, memory: 2GiB}]}"
MIG = """{model: h100,
  mig: [{gpu_instance: 1, profile: 1g.10gb, memory: 10GiB}, {gpu_instance: 2, profile: 1g.10gb, memory: 10GiB}],
  processes: [{name: a, memory: 1GiB, gpu_instance: 1}, {name: b, memory: 2GiB, gpu_instance: 2}]}"""
COMPUTE = "nvmlDeviceGetComputeRunningProcesses_v3"
MPS = "nvmlDeviceGetMPSComputeRunningProcesses*"
EVERY_LIST = "nvmlDeviceGet*RunningProcesses_v*"


def read(bench: Bench, *, slow: bool = True) -> ProcessList:
    """The processes of a GPU, with its MIG instances if it has any."""
    bench.device.clear_failures()
    return collect(bench.device, slow=slow, mig_handles=mig.collect(bench.device).handles)


def pids(found: ProcessList) -> list[int]:
    """In the driver's order."""
    return [process.pid for process in found.processes]


def test_a_process_in_two_lists_is_one(open_gpu: Open) -> None:
    """NUM-08: its memory counts once, its kinds add up."""
    found = read(open_gpu(TWO))

    assert found.processes == (GpuProcess(FIRST, GIB, "CG"), GpuProcess(FIRST + 1, 2 * GIB, "C"))
    assert (found.known, found.trusted) == (True, True)


entries = st.tuples(
    st.integers(1, 3),
    st.integers(0, 100) | st.just(NOT_AVAILABLE_U64),
    st.sampled_from([0, 1, NO_INSTANCE_U32]),
    st.sampled_from([0, NO_INSTANCE_U32]),
)


@given(st.lists(st.tuples(entries, st.sampled_from("CGM"))))
def test_merging_counts_each_process_once_per_gpu_instance(listed: list[tuple[Entry, str]]) -> None:
    """NUM-08: the largest amount that any list tells, none if none tells it, and every kind once."""
    merged: dict[tuple[int, int], GpuProcess] = {}
    for entry, kind in listed:
        _merge(merged, entry, kind)

    for (pid, instance), process in merged.items():
        own = [
            (entry[1], kind)
            for entry, kind in listed
            if (entry[0], NO_INSTANCE if entry[2] == NO_INSTANCE_U32 else entry[2]) == (pid, instance)
        ]
        known = [used for used, _ in own if used != NOT_AVAILABLE_U64]
        assert process.used_bytes == (max(known) if known else None)
        assert sorted(process.kinds) == sorted({kind for _, kind in own})


def test_a_list_that_grows_between_two_calls(open_gpu: Open) -> None:
    """NUM-09: asked again with a larger buffer until it fits, however often it grows."""
    bench = open_gpu("{model: h100, processes: [{name: 'a{n}', memory: 1MiB, count: 200}]}")
    bench.fail(FaultKind.PROCESS_LIST_GROWS, by=100)
    found = read(bench)

    assert found.known
    assert len(found.processes) > 200
    assert bench.device.failures == []


def test_memory_that_is_not_available(open_gpu: Open) -> None:
    """NUM-01: 2^64-1 is no amount."""
    bench = open_gpu(TWO)
    bench.fail(FaultKind.UNAVAILABLE_MEMORY)

    assert {process.used_bytes for process in read(bench).processes} == {None}


FIVE = "{model: h100, processes: [{name: 'a{n}', memory: 1GiB, count: 5}]}"


@pytest.mark.parametrize("entry_bytes", [16, 32])
def test_entries_of_another_length(open_gpu: Open, entry_bytes: int) -> None:
    """NUM-10: how long they are is measured; the processes are shown as they are, and never acted on."""
    bench = open_gpu(FIVE)
    bench.fail(FaultKind.PROCESS_STRIDE, entry_bytes=entry_bytes)
    found = read(bench)

    assert [(process.pid, process.used_bytes) for process in found.processes] == [(FIRST + n, GIB) for n in range(5)]
    assert (found.known, found.trusted, found.implausible) == (True, False, False)


def test_entries_that_change_their_length(open_gpu: Open) -> None:
    """NUM-10: a list that cannot be true is not believed; version 2 tells the truth, and nothing is acted on."""
    bench = open_gpu(FIVE)
    read(bench)
    bench.fail(FaultKind.PROCESS_STRIDE)
    found = read(bench)

    assert [(process.pid, process.used_bytes) for process in found.processes] == [(FIRST + n, GIB) for n in range(5)]
    assert (found.known, found.trusted) == (True, False)


def test_entries_that_change_their_length_without_a_way_out(open_gpu: Open) -> None:
    """NUM-10: where there is no version 2 the list is withheld, and the collector says so."""
    bench = open_gpu(FIVE)
    read(bench)
    bench.fail(FaultKind.PROCESS_STRIDE)
    bench.fail(FaultKind.MISSING, calls=("nvmlDeviceGet*RunningProcesses_v2",))
    found = read(bench)

    assert (found.processes, found.known, found.trusted) == ((), False, False)
    assert "cannot be true" in str(bench.device.failures[0])


@table(
    "driver, trusted",
    [
        ("535.43.02", False),
        ("535.86.10", False),
        ("535.98", False),
        ("535.104.05", True),
        ("535.129.03", True),
        ("525.147.05", True),
        ("580.95.05", True),
        ("", True),
    ],
)
def test_drivers_known_to_shuffle(open_gpu: Open, driver: str, trusted: bool) -> None:
    """NUM-10: 535.43 to 535.98 are shown but never acted on, even where the list looks right."""
    bench = open_gpu(TWO)
    bench.device.driver_version = driver

    assert read(bench).trusted is trusted


def test_a_driver_before_version_3(open_gpu: Open) -> None:
    """GPU-09: version 2 of the list has the same processes."""
    bench = open_gpu(TWO, Fault(FaultKind.MISSING, calls=("nvmlDeviceGet*RunningProcesses_v3",)))

    assert pids(read(bench)) == [FIRST, FIRST + 1]
    assert bench.device.failures == []


def test_no_list_at_all(open_gpu: Open) -> None:
    """PROC-11: without permission nothing is known, which is not the same as nobody there; it is no failure."""
    bench = open_gpu(TWO)
    bench.fail(FaultKind.ERROR, calls=(EVERY_LIST,), code=Code.NO_PERMISSION)
    found = read(bench)

    assert (found.processes, found.known) == ((), False)
    assert bench.device.failures == []
    assert ("nvmlDeviceGetComputeRunningProcesses", "no permission") in bench.device.unsupported()


def test_a_list_that_fails(open_gpu: Open) -> None:
    """EXP-05: the others are shown, but a process that is not in them may still be there."""
    bench = open_gpu(TWO)
    bench.fail(FaultKind.ERROR, calls=(COMPUTE,), code=Code.UNKNOWN)
    found = read(bench)

    assert pids(found) == [FIRST]  # it is in the graphics list, too
    assert not found.known
    assert len(bench.device.failures) == 1


def test_mig_instances_are_asked_where_the_whole_gpu_refuses(open_gpu: Open) -> None:
    """PROC-11: without the mig-monitor capability each instance has its own list."""
    bench = open_gpu(MIG)
    found = read_without_whole_gpu(bench)

    assert [(process.pid, process.gpu_instance_id) for process in found.processes] == [(FIRST, 1), (FIRST + 1, 2)]
    assert found.known


def read_without_whole_gpu(bench: Bench) -> ProcessList:
    """What is found when the GPU itself has refused its lists, and its instances do not."""
    bench.fail(FaultKind.ERROR, calls=(EVERY_LIST,), code=Code.NO_PERMISSION)
    collect(bench.device, slow=True, mig_handles=())
    bench.node.clear()
    return read(bench)


def test_a_mig_instance_that_refuses(open_gpu: Open) -> None:
    """PROC-11: not even one instance's list: what is known is not all, and that is no failure."""
    bench = open_gpu(MIG)
    bench.fail(FaultKind.ERROR, calls=(EVERY_LIST,), code=Code.NO_PERMISSION)
    found = read(bench)

    assert (found.processes, found.known) == ((), False)
    assert bench.device.failures == []


def test_a_mig_instance_that_fails(open_gpu: Open) -> None:
    """EXP-05: a failure of an instance's list is told, and nobody is taken for gone."""
    bench = open_gpu(MIG)
    read_without_whole_gpu(bench)
    bench.fail(FaultKind.ERROR, calls=(EVERY_LIST,), code=Code.UNKNOWN)
    found = read(bench)

    assert not found.known
    assert {failure.code for failure in bench.device.failures} == {Code.UNKNOWN}


def test_lists_that_are_empty_are_asked_less_often(open_gpu: Open) -> None:
    """A graphics process that comes is found at the next slow collection."""
    bench = open_gpu(
        """{model: h100, processes: [{name: a, memory: 1GiB}, {name: g, memory: 1GiB, kind: G, from: 5s}]}"""
    )
    assert pids(read(bench)) == pids(read(bench)) == [FIRST]
    bench.clock.advance(6)

    assert pids(read(bench, slow=False)) == [FIRST]
    assert pids(read(bench, slow=True)) == [FIRST, FIRST + 1]
    assert pids(read(bench, slow=False)) == [FIRST, FIRST + 1]


def kinds(found: ProcessList) -> dict[int, str]:
    """The kinds of each process, by its number."""
    return {process.pid: process.kinds for process in found.processes}


def test_a_new_number_is_looked_up_in_every_list(open_gpu: Open) -> None:
    """PROC-08: a client of MPS is known for one from its first reading on, at the fast rate, however quiet the list."""
    bench = open_gpu(
        """{model: h100, processes: [{name: a, memory: 1GiB}, {name: m, memory: 1GiB, kind: CM, from: 5s},
        {name: n, memory: 1GiB, kind: CM, from: 10s}]}"""
    )
    for _ in range(3):
        assert kinds(read(bench, slow=False)) == {FIRST: "C"}
    bench.clock.advance(6)
    assert kinds(read(bench, slow=False)) == {FIRST: "C", FIRST + 1: "CM"}
    bench.clock.advance(6)
    assert kinds(read(bench, slow=False)) == {FIRST: "C", FIRST + 1: "CM", FIRST + 2: "CM"}


def test_a_client_that_enters_the_mps_list_late_is_still_found(open_gpu: Open) -> None:
    """PROC-08: the lists are read one after the other: a number that is new is looked up at the next reading again."""
    bench = open_gpu("{model: h100, processes: [{name: a, memory: 1GiB, kind: CM}]}")
    bench.fail(FaultKind.ERROR, calls=(MPS,), code=Code.NOT_FOUND)
    late = read(bench, slow=False)
    bench.node.clear()

    assert (kinds(late), late.known) == ({FIRST: "C"}, False)
    assert kinds(read(bench, slow=False)) == {FIRST: "CM"}


@pytest.mark.parametrize(
    ("code", "known"),
    [(Code.NO_PERMISSION, False), (Code.ARGUMENT_VERSION_MISMATCH, False), (Code.NOT_SUPPORTED, True)],
)
def test_an_mps_list_that_may_not_be_read(open_gpu: Open, code: Code, known: bool) -> None:
    """PROC-08: a refusal is no empty list: only a GPU that has no such list has no clients of MPS."""
    bench = open_gpu(TWO)
    bench.fail(FaultKind.ERROR, calls=(MPS,), code=code)

    for slow in (True, False, True):
        found = read(bench, slow=slow)
        assert (found.known, found.kinds_known) == (True, known)


def test_a_list_that_has_not_changed_is_the_same_object(open_gpu: Open) -> None:
    """EXP-08: at the fast rate and at the slow one, and so is each process that is as it was."""
    grows = "{shape: ramp, start: 1GiB, rate: 1MiB}"
    bench = open_gpu(f"{{model: h100, processes: [{{name: a, memory: 1GiB}}, {{name: b, memory: {grows}}}]}}")
    first = read(bench)

    assert read(bench, slow=False).processes is first.processes
    assert read(bench).processes is first.processes
    bench.clock.advance(1)
    later = read(bench, slow=False)
    assert [new is old for new, old in zip(later.processes, first.processes, strict=True)] == [True, False]
