"""NVML from one initialization to its end, with a worker that works when the test says so."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest

from gpuagent.collector.session import NvmlSession
from gpuagent.collector.workers import ElasticThreadPool, Job, JobOutcome, Worker
from gpuagent.core.clock import ManualClock
from gpuagent.core.snapshot import NvmlState
from gpuagent.driver.nvml.driver import NvmlDriver
from gpuagent.driver.nvml.library import LIB_RM_VERSION_MISMATCH, NvmlFailure
from gpuagent_simulator.abi import Code
from gpuagent_simulator.faults import Fault, FaultKind
from gpuagent_simulator.node import SimulatedNode
from gpuagent_simulator.scenario import load_scenario
from tests.fakes.nvml import use


class HandWorker(Worker):
    """Does its job in `work()`, and is as long at it as the test says."""

    def __init__(self) -> None:
        super().__init__(ElasticThreadPool("hand", lambda: None))
        self.job: Job | None = None
        self.outcome: JobOutcome | None = None
        self.seconds = 0.0

    @property
    def busy(self) -> bool:
        return self.job is not None

    @property
    def busy_seconds(self) -> float:
        return self.seconds if self.busy and self.outcome is None else 0.0

    def start(self, job: Job) -> bool:
        self.job = job
        return True

    def work(self) -> None:
        """Do what is to be done, if anything."""
        if self.job is not None and self.outcome is None:
            try:
                self.outcome = JobOutcome(value=self.job())
            except NvmlFailure as error:
                self.outcome = JobOutcome(error=error)

    def take_result(self) -> JobOutcome | None:
        outcome, self.outcome = self.outcome, None
        if outcome is not None:
            self.job = None
        return outcome


class Desk:
    """A session, its worker, its clock and the node under it; `stuck` threads do not leave the library."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.node = SimulatedNode(load_scenario("healthy"), self.clock)
        self.worker = HandWorker()
        self.session = NvmlSession(NvmlDriver(), self.clock, self.worker)
        self.stuck = False

    def advance(self) -> None:
        """As the monitor does at each tick."""
        self.session.advance(leave=lambda: not self.stuck)

    def go(self) -> NvmlState:
        """Two ticks, between which the worker works."""
        self.advance()
        self.worker.work()
        self.advance()
        return self.session.state

    @property
    def open(self) -> bool:
        """Whether the library is initialized, as it sees it."""
        return self.node.library._session._references > 0


@pytest.fixture
def desk() -> Iterator[Desk]:
    """A node that is well, under pynvml."""
    made = Desk()
    with use(made.node.library):
        yield made
    made.node.close()


def test_the_first_initialization(desk: Desk) -> None:
    """The versions and the number of GPUs are known from then on."""
    assert desk.session.state is NvmlState.STARTING
    assert desk.go() is NvmlState.READY
    assert (desk.session.versions.driver, desk.session.versions.cuda) == ("580.95.05", "13.0")
    assert desk.session.gpu_count == 2


def test_a_driver_that_is_not_there_is_tried_again_less_and_less_often(desk: Desk) -> None:
    """GPU-06: after 1, 2, 4 seconds, and at once it works."""
    desk.node.inject(Fault(FaultKind.INIT_ERROR, code=Code.DRIVER_NOT_LOADED))
    begun = desk.clock.now()
    tries = []
    for _ in range(600):
        busy = desk.worker.busy
        desk.advance()
        if desk.worker.busy and not busy:
            tries.append(desk.clock.now() - begun)
        desk.worker.work()
        desk.clock.advance(0.5)

    gaps = [later - earlier for earlier, later in pairwise(tries)]
    assert gaps[:3] == sorted(gaps[:3])
    assert max(gaps) <= 62
    assert len(tries) < 12
    assert desk.session.reason.endswith("the NVIDIA driver is not loaded")
    desk.node.clear()
    desk.clock.advance(60)
    assert desk.go() is NvmlState.READY


def test_an_initialization_that_hangs_is_told_and_waited_for(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    """GPU-06: no second one is begun, it is in the log once, and its late success counts."""
    desk.advance()
    job = desk.worker.job
    for seconds in (1.5, 2.5, 60.5):
        desk.worker.seconds = seconds
        desk.advance()

    assert desk.worker.job is job
    assert desk.session.reason.startswith("NVML has not answered for 60 s")
    assert len(caplog.records) == 1
    desk.worker.work()
    desk.advance()
    assert desk.session.state is NvmlState.READY


def test_the_end_of_a_session_begins_the_next_at_once(desk: Desk) -> None:
    """GPU-07: with another generation, so that no old handle is used; and the old session is closed first."""
    desk.go()
    generation = desk.session.generation
    desk.session.end("for this test")

    assert (desk.session.state, desk.session.reason) == (NvmlState.FAILED, "for this test")
    assert desk.go() is NvmlState.READY
    assert desk.session.generation > generation
    assert desk.node.library._session._references == 1


def test_every_initialization_is_given_back(desk: Desk) -> None:
    """GPU-10: NVML counts them: one that had to be left open while a thread was stuck is closed with the last."""
    desk.go()
    desk.stuck = True
    desk.session.end("with a stuck thread")
    assert desk.go() is NvmlState.READY
    desk.session.pause()
    desk.go()
    assert not desk.session.released
    desk.stuck = False
    desk.go()

    assert desk.session.released
    assert not desk.open


def test_a_pause_that_takes_long_stays_a_pause(desk: Desk) -> None:
    """GPU-10: leaving the driver may take seconds, and must not end in a new initialization."""
    desk.go()
    desk.session.pause()
    desk.advance()
    desk.worker.seconds = 3.0
    desk.advance()

    assert desk.session.state is NvmlState.PAUSED
    desk.worker.work()
    desk.advance()
    assert desk.session.released
    assert not desk.open


def test_resuming_while_the_driver_is_still_being_left(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    """GPU-10: is no failure: the next initialization follows at once."""
    desk.go()
    desk.session.pause()
    desk.advance()
    desk.session.resume()
    desk.worker.work()

    assert desk.go() is NvmlState.READY
    assert not caplog.records


def test_a_pause_during_the_initialization(desk: Desk) -> None:
    """GPU-10: what it has opened is closed again."""
    desk.advance()
    desk.session.pause()
    desk.worker.work()

    assert desk.go() is NvmlState.PAUSED
    desk.go()
    assert desk.session.released
    assert not desk.open


def test_another_number_of_gpus_ends_the_session(desk: Desk) -> None:
    """GPU-02: they are counted anew, and enumerated anew if there are fewer or more."""
    desk.go()
    desk.session.count()
    desk.worker.work()
    desk.advance()
    assert desk.session.state is NvmlState.READY

    desk.node.inject(Fault(FaultKind.VANISH, gpu=1))
    desk.session.count()
    desk.worker.work()
    desk.advance()
    assert desk.session.reason == "1 GPUs are enumerated instead of 2"
    assert desk.go() is NvmlState.READY
    assert desk.session.gpu_count == 1


def test_a_count_that_fails_for_other_reasons_ends_nothing(desk: Desk) -> None:
    """GPU-08: one odd answer is no reason to drop all handles."""
    desk.go()
    desk.node.inject(Fault(FaultKind.ERROR, calls=("nvmlDeviceGetCount_v2",), code=Code.UNKNOWN))
    desk.session.count()
    desk.worker.work()
    desk.advance()

    assert desk.session.state is NvmlState.READY


def test_a_count_that_finds_no_gpu_ends_the_session(desk: Desk) -> None:
    """GPU-07: said of the library it is said of all GPUs, unlike where one of them is asked."""
    desk.go()
    desk.node.inject(Fault(FaultKind.ERROR, calls=("nvmlDeviceGetCount_v2",), code=Code.GPU_NOT_FOUND))
    desk.session.count()
    desk.worker.work()
    desk.advance()

    assert desk.session.state is NvmlState.FAILED
    assert not NvmlFailure("nvmlDeviceGetMemoryInfo", Code.GPU_NOT_FOUND).ends_session


@pytest.mark.parametrize("when", ["initialization", "count", "collection"])
def test_a_version_mismatch_asks_for_a_new_process(desk: Desk, when: str) -> None:
    """GPU-07: wherever it shows; nothing but a new process can load the new library."""
    if when != "initialization":
        desk.go()
    assert not desk.session.needs_new_process
    if when == "collection":
        desk.session.failed_with(NvmlFailure("nvmlDeviceGetMemoryInfo", LIB_RM_VERSION_MISMATCH))
    else:
        desk.node.inject(Fault(FaultKind.VERSION_MISMATCH))
        desk.session.count()
        desk.go()

    assert desk.session.needs_new_process
    assert "driver and library versions differ" in desk.session.reason


def test_no_driver_is_no_reason_for_a_new_process(desk: Desk) -> None:
    """GPU-06: a driver that comes later is found by this process."""
    desk.node.inject(Fault(FaultKind.INIT_ERROR, code=Code.DRIVER_NOT_LOADED))
    desk.go()

    assert not desk.session.needs_new_process
