"""The thread for calls that may never return."""

from __future__ import annotations

import threading

import pytest

from gpuagent.monitor.worker import Worker

TIMEOUT = 20


class Bell:
    """What a worker rings after each job."""

    def __init__(self) -> None:
        self.rung = threading.Semaphore(0)

    def __call__(self) -> None:
        self.rung.release()

    def wait(self) -> None:
        """Until it rings."""
        assert self.rung.acquire(timeout=TIMEOUT)


def test_a_value_is_taken_once() -> None:
    """The outcome waits until it is taken, and the worker is busy until then."""
    bell = Bell()
    worker = Worker("w", bell)
    assert worker.start(lambda: 7)
    bell.wait()

    assert (worker.busy, worker.finished, worker.busy_seconds) == (True, True, 0.0)
    outcome = worker.take()
    assert outcome is not None
    assert (outcome.value, outcome.error) == (7, None)
    assert worker.take() is None
    assert not worker.busy
    worker.stop()


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(1), KeyboardInterrupt()])
def test_an_exception_is_an_outcome(error: BaseException) -> None:
    """Of any kind: the thread lives on and does the next job."""

    def job() -> None:
        raise error

    bell = Bell()
    worker = Worker("w", bell)
    worker.start(job)
    bell.wait()
    outcome = worker.take()
    assert outcome is not None
    assert outcome.error is error
    worker.start(lambda: 1)
    bell.wait()
    assert worker.finished
    worker.stop()


def test_a_stuck_job_is_not_joined_by_a_second() -> None:
    """GPU-04: while one runs none is begun, and no thread is added."""
    bell, let_go = Bell(), threading.Event()
    worker = Worker("w", bell)
    worker.start(lambda: let_go.wait(TIMEOUT))
    threads = threading.active_count()

    assert not worker.start(lambda: None)
    assert not worker.finished
    assert worker.take() is None
    assert worker.busy_seconds > 0
    assert threading.active_count() == threads
    let_go.set()
    bell.wait()
    worker.stop()


def test_stop_ends_the_thread() -> None:
    """After its present job."""
    before = set(threading.enumerate())
    bell = Bell()
    worker = Worker("w", bell)
    worker.start(lambda: None)
    bell.wait()
    (thread,) = set(threading.enumerate()) - before
    worker.stop()
    thread.join(TIMEOUT)

    assert not thread.is_alive()


def test_no_thread_before_the_first_job() -> None:
    """A node without GPUs costs none."""
    threads = threading.active_count()
    Worker("w", lambda: None)

    assert threading.active_count() == threads
