"""Which of the driver's utilization samples are believed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.core.snapshot import ProcessUtilization
from gpuagent.driver.backend import IDLE, LONGEST_GAP_SECONDS
from gpuagent.driver.nvml.utilization import (
    HOLD_SECONDS,
    AcceptedSamples,
    Sample,
    SampleRing,
    collect_processes,
    worked_at,
)
from gpuagent_simulator.abi import Code
from gpuagent_simulator.faults import Fault, FaultKind
from tests.agent.driver.nvml.conftest import Bench, Open

WALL = 1_700_000_000.0
NOW = 1000.0
PID = 4242
HALF = ProcessUtilization(0.5, 0.0, 0.0, 0.0)
ONE_BUSY = "{model: h100, processes: [{name: a, memory: 1GiB, utilization: {sm: 60, memory: 30, decoder: 5}}]}"
OLD, NEW = "nvmlDeviceGetProcessUtilization", "nvmlDeviceGetProcessesUtilizationInfo"


def sample(seconds: float = 0.0, *percent: int, pid: int = PID) -> Sample:
    """A sample so many seconds after now; 50 % if nothing is said."""
    sm, memory, encoder, decoder = (*(percent or (50,)), 0, 0, 0, 0)[:4]
    return pid, int((WALL + seconds) * 1e6), sm, memory, encoder, decoder


def after(samples: Sequence[Sample], *, state: AcceptedSamples | None = None, wall: float = WALL) -> AcceptedSamples:
    """What is known after these samples, with one process listed."""
    state = state or AcceptedSamples()
    state.accept(samples, {PID}, wall, NOW)
    return state


@pytest.mark.parametrize(
    "rubbish",
    [
        sample(0, 37100),
        sample(0, 2**32 - 1, 2**32 - 1, 2**32 - 1, 2**32 - 1),
        sample(0, 50, 101),
        sample(60, 55),
        sample(-600, 99),
        sample(0, 50, pid=0),
        sample(0, 50, pid=PID + 1),
    ],
    ids=["37100 %", "all ones", "one engine", "future", "stale", "pid 0", "unlisted"],
)
def test_rubbish_is_refused(rubbish: Sample) -> None:
    """NUM-03: alone, and beside a good sample, in whatever order."""
    assert after([rubbish]).of([PID], NOW) == {}
    assert after([sample(-1), rubbish]).of([PID], NOW)[PID] == HALF
    assert after([rubbish, sample(-1)]).of([PID], NOW)[PID] == HALF


@given(st.permutations([sample(-3, 10), sample(-2, 20), sample(-1, 30), sample(-0.5, 50)]))
def test_the_newest_wins(samples: list[Sample]) -> None:
    """NUM-07: in whatever order they lie in the ring; and the newest stamp is asked for next, however it came."""
    state = after(samples)

    assert state.of([PID], NOW)[PID] == HALF
    assert state.last_stamp == sample(-0.5)[1]


def test_a_sample_is_taken_once() -> None:
    """NUM-07: one that was there at the last read says nothing of now."""
    state = after([sample(-1)])
    state.accept([sample(-1)], {PID}, WALL + 5, NOW + 5)

    assert state.of([PID], NOW + 5) == {}


def test_a_value_is_held_for_as_long_as_the_driver_may_be_silent() -> None:
    """NUM-06: samples come about once a second, so that a poll may meet none; after that nothing is known."""
    state = after([sample(-1)])

    assert state.of([PID], NOW + HOLD_SECONDS - 0.1)[PID] == HALF
    assert state.of([PID], NOW + HOLD_SECONDS) == {}


def test_a_clock_that_was_set_back() -> None:
    """NUM-03: stamps go back with it, and are believed."""
    state = after([sample(0)])
    after([sample(-3600, 30)], state=state, wall=WALL - 3600)

    assert state.of([PID], NOW)[PID].sm_ratio == 0.3
    assert state.last_stamp == sample(-3600)[1]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, PID, PID + 1, 2**32 - 1]),
            st.integers(0, 2**64 - 1) | st.integers(int((WALL - 20) * 1e6), int((WALL + 20) * 1e6)),
            *[st.integers(0, 120) | st.just(2**32 - 1)] * 4,
        ),
        max_size=80,
    )
)
def test_whatever_the_ring_holds(samples: list[Sample]) -> None:
    """NUM-03: only listed pids are kept, and only what can be true."""
    state = after(samples)

    assert set(state.newest) <= {PID}
    assert all(0 <= value <= 1 for found in state.of([PID], NOW).values() for value in found)


def test_processes_that_go_are_forgotten() -> None:
    """EXP-03: nothing is kept of a pid that is no longer listed."""
    state = after([sample()])
    state.accept([], set(), WALL, NOW)

    assert state.newest == {}


# ---- over the driver's calls ------------------------------------------------------------------------------------


def utilization(bench: Bench, seconds: float = 1.0, *, at_rest: bool = False) -> ProcessUtilization | None:
    """What the first process of the GPU is told to do; None if that is not known."""
    bench.clock.advance(seconds)
    pid = 4_194_305
    found = collect_processes(bench.device, {pid}, busy=not at_rest, at_rest=at_rest)
    return None if found is None else found.get(pid)


def test_a_busy_process(open_gpu: Open) -> None:
    """NUM-07: the ratios of its newest sample."""
    assert utilization(open_gpu(ONE_BUSY)) == ProcessUtilization(0.6, 0.3, 0.0, 0.05)


def test_no_sample_is_not_zero(open_gpu: Open) -> None:
    """NUM-06: NOT_FOUND is no failure, and says nothing of a process while the GPU as a whole is at work."""
    bench = open_gpu("{model: h100, processes: [{name: a, memory: 1GiB}]}")

    assert utilization(bench) is None
    assert bench.device.failures == []


def test_a_whole_gpu_at_rest_is_zero_for_its_processes(open_gpu: Open) -> None:
    """NUM-06: 0 % of the whole GPU in two readings in a row, without a gap; the first poll is not enough."""
    bench = open_gpu("{model: h100, processes: [{name: a, memory: 1GiB}]}")

    assert [utilization(bench, at_rest=rest) for rest in (True, True, False, True, True)] == [
        None, IDLE, None, None, IDLE,
    ]  # fmt: skip
    assert utilization(bench, LONGEST_GAP_SECONDS + 1, at_rest=True) is None


def test_a_gpu_at_rest_without_samples_to_give(open_gpu: Open) -> None:
    """GPU-09: 0 % of the whole GPU is an observation of its processes also where neither call is there."""
    bench = open_gpu(ONE_BUSY, Fault(FaultKind.MISSING, calls=(OLD, NEW)))

    assert [utilization(bench, at_rest=True) for _ in range(2)] == [None, IDLE]


def test_its_own_sample_counts_more_than_the_whole_gpu(open_gpu: Open) -> None:
    """KILL-04: a process that was sampled at work is not idle, whatever the GPU says."""
    bench = open_gpu(ONE_BUSY)

    assert [utilization(bench, at_rest=True) for _ in range(2)] == [ProcessUtilization(0.6, 0.3, 0.0, 0.05)] * 2


def test_the_driver_s_garbage(open_gpu: Open) -> None:
    """NUM-03: the good sample among it is found."""
    bench = open_gpu(ONE_BUSY)
    bench.fail(FaultKind.GARBAGE_SAMPLES)

    assert utilization(bench) == ProcessUtilization(0.6, 0.3, 0.0, 0.05)


def test_the_wall_clock_is_set_back_by_an_hour(open_gpu: Open) -> None:
    """NUM-03: a driver that stamps by it has something to tell again in two reads, not in an hour."""
    bench = open_gpu(ONE_BUSY)
    utilization(bench)
    bench.clock._wall -= 3600
    utilization(bench, HOLD_SECONDS)

    assert utilization(bench) == ProcessUtilization(0.6, 0.3, 0.0, 0.05)


def test_not_supported_under_mig_is_unknown(open_gpu: Open) -> None:
    """NUM-06: no utilization is not zero utilization, and no failure."""
    gpu = "{model: h100, mig: [{gpu_instance: 1, profile: 1g.10gb, memory: 10GiB}], processes: [{name: a, memory: 1}]}"
    bench = open_gpu(gpu)

    assert utilization(bench) is None
    assert bench.device.failures == []


def test_the_newer_call_where_the_older_one_is_missing(open_gpu: Open) -> None:
    """GPU-09: a driver without the old call is asked by the new one, whose fields lie otherwise."""
    bench = open_gpu(ONE_BUSY, Fault(FaultKind.MISSING, calls=(OLD,)))

    assert utilization(bench) == ProcessUtilization(0.6, 0.3, 0.0, 0.05)


def test_the_newer_call_where_the_older_one_stays_empty(open_gpu: Open) -> None:
    """NUM-06: on a busy GPU whose old call never tells anything the new one is tried, and kept if it does."""
    bench = open_gpu(ONE_BUSY)
    bench.fail(FaultKind.ERROR, calls=(OLD,), code=Code.NOT_FOUND)
    told = [utilization(bench) for _ in range(15)]

    assert told[0] is None
    assert told[-1] == ProcessUtilization(0.6, 0.3, 0.0, 0.05)
    assert bench.device.state(AcceptedSamples).ring.prefer_new


def test_both_calls_missing(open_gpu: Open) -> None:
    """GPU-09: the GPU does not tell, which is no failure."""
    bench = open_gpu(ONE_BUSY, Fault(FaultKind.MISSING, calls=(OLD, NEW)))

    assert utilization(bench) is None
    assert bench.device.failures == []


@pytest.mark.parametrize("missing", [(), (OLD,)], ids=["old call", "new call"])
def test_more_samples_than_the_buffer_holds(open_gpu: Open, missing: tuple[str, ...]) -> None:
    """NUM-09: the buffer grows, and every process has its sample."""
    gpu = "{model: h100, processes: [{name: 'a{n}', memory: 1MiB, count: 700, utilization: {sm: 1}}]}"
    bench = open_gpu(gpu, *([Fault(FaultKind.MISSING, calls=missing)] if missing else []))
    ring = SampleRing()
    samples = ring.read(bench.device, 0, busy=True)

    assert samples is not None
    assert len(samples) == 700
    assert ring.capacity >= 700


@given(
    st.lists(
        st.tuples(st.floats(-60, 30), st.sampled_from([0, 0, 1, 90, 37100])),
        min_size=1,
        max_size=8,
        unique_by=lambda s: s[0],
    )
)
def test_work_since_the_last_reading_is_not_undone_by_a_later_sample(told: list[tuple[float, int]]) -> None:
    """KILL-08: whoever was at work in any sample since the last reading has worked, whatever the others say."""
    state = after([sample(seconds, percent) for seconds, percent in told])

    assert state.worked_at == ({PID: NOW} if any(percent for _, percent in told) else {})


def test_work_is_told_with_the_reading(open_gpu: Open) -> None:
    """KILL-08: by the clock of the reading that took the sample in, and for nobody who is not listed."""
    bench = open_gpu(ONE_BUSY)
    utilization(bench)

    assert worked_at(bench.device) == {4_194_305: bench.clock.now()}
    collect_processes(bench.device, set())
    assert worked_at(bench.device) == {}


def test_readings_far_apart_of_a_gpu_at_rest(open_gpu: Open) -> None:
    """KILL-08: where GPUs are read seldom, two readings of a whole GPU say 0 only beside a ring that tells of work."""
    seldom = 2 * LONGEST_GAP_SECONDS
    bench = open_gpu("{model: h100, processes: [{name: a, memory: 1GiB}]}")
    bench.device.longest_gap_seconds = 2.5 * LONGEST_GAP_SECONDS
    assert [utilization(bench, seldom, at_rest=True) for _ in range(3)] == [None, IDLE, IDLE]

    without = open_gpu(ONE_BUSY, Fault(FaultKind.MISSING, calls=(OLD, NEW)))
    without.device.longest_gap_seconds = 2.5 * LONGEST_GAP_SECONDS

    assert [utilization(without, seldom, at_rest=True) for _ in range(3)] == [None, None, None]


def test_the_same_figures_are_the_same_object() -> None:
    """EXP-08: a new sample that says what the last one said is seen to at a glance."""
    state = after([sample(-2)])
    before = state.of([PID], NOW)[PID]

    assert after([sample(-1)], state=state).of([PID], NOW)[PID] is before
