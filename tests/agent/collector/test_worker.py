"""One thing done by calls that may never return."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from gpuagent.collector.workers import ElasticThreadPool, Worker
from tests.agent.collector.bell import TIMEOUT, Bell


@pytest.fixture
def bell() -> Bell:
    """What the pool rings."""
    return Bell()


@pytest.fixture
def worker(bell: Bell) -> Iterator[Worker]:
    """With a pool of its own."""
    pool = ElasticThreadPool("worker", bell)
    yield Worker(pool)
    pool.stop()


def test_a_value_is_taken_once(worker: Worker, bell: Bell) -> None:
    """The outcome waits until it is taken, and the worker is busy until then."""
    assert worker.start(lambda: 7)
    bell.wait()

    assert (worker.busy, worker.finished, worker.busy_seconds) == (True, True, 0.0)
    outcome = worker.take_result()
    assert outcome is not None
    assert (outcome.value, outcome.error) == (7, None)
    assert worker.take_result() is None
    assert not worker.busy


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(1), KeyboardInterrupt()])
def test_an_exception_is_an_outcome(worker: Worker, bell: Bell, error: BaseException) -> None:
    """Of any kind: the thread lives on and does the next job."""

    def job() -> None:
        raise error

    worker.start(job)
    bell.wait()
    outcome = worker.take_result()
    assert outcome is not None
    assert outcome.error is error
    worker.start(lambda: 1)
    bell.wait()
    assert worker.finished


def test_a_stuck_job_is_not_joined_by_a_second(worker: Worker, bell: Bell) -> None:
    """GPU-04: while one runs none is begun, and no thread is added."""
    let_go = threading.Event()
    worker.start(lambda: let_go.wait(TIMEOUT))
    threads = threading.active_count()

    assert not worker.start(lambda: None)
    assert not worker.finished
    assert worker.take_result() is None
    assert worker.busy_seconds > 0
    assert threading.active_count() == threads
    let_go.set()
    bell.wait()
