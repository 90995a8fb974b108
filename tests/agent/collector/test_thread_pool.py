"""The threads for calls that may never return."""

from __future__ import annotations

import threading
from collections.abc import Callable

from gpuagent.collector.workers import ElasticThreadPool
from tests.agent.collector.bell import TIMEOUT, Bell


class Call:
    """A call into the driver that comes back when it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self._let_go = threading.Event()
        self.thread: threading.Thread | None = None

    def __call__(self) -> None:
        self.thread = threading.current_thread()
        self.begun.set()
        self._let_go.wait(TIMEOUT)

    def let_go(self) -> None:
        """It comes back."""
        self._let_go.set()

    def has_begun(self) -> bool:
        """Sooner or later."""
        return self.begun.wait(TIMEOUT)


def pool_threads(before: set[threading.Thread]) -> set[threading.Thread]:
    """Those that there are more than before."""
    return set(threading.enumerate()) - before


def noting(names: list[str], name: str) -> Callable[[], None]:
    """A task that says that it was done."""
    return lambda: names.append(name)


def test_no_thread_before_the_first_task() -> None:
    """A node without GPUs costs none."""
    before = set(threading.enumerate())
    ElasticThreadPool("c", lambda: None)

    assert not pool_threads(before)


def test_one_thread_does_all_in_order_and_rings_once() -> None:
    """Who waits for eight GPUs is woken when the last is done, not eight times."""
    before, bell, done = set(threading.enumerate()), Bell(), list[str]()
    pool, first = ElasticThreadPool("c", bell), Call()
    pool.submit(first)
    for name in "abc":
        pool.submit(noting(done, name))
    assert bell.is_silent
    first.let_go()
    bell.wait()

    assert done == ["a", "b", "c"]
    assert bell.is_silent
    assert pool_threads(before) == {first.thread}
    pool.stop()


def test_reinforcements_do_what_waits_behind_a_stuck_call() -> None:
    """GPU-04: a call that does not come back keeps no other GPU from being read, however many are stuck."""
    bell, done = Bell(), list[str]()
    pool, stuck = ElasticThreadPool("c", bell), [Call() for _ in range(3)]
    for call in stuck:
        pool.submit(call)
    pool.submit(noting(done, "well"))
    assert stuck[0].has_begun()
    pool.add_threads()
    bell.wait()

    assert done == ["well"]
    assert all(call.has_begun() for call in stuck)
    for call in stuck:
        call.let_go()
        bell.wait()
    pool.stop()


def test_a_late_answer_rings() -> None:
    """A GPU that was stuck and has come back is heard of, although others have been done since."""
    bell, done = Bell(), list[str]()
    pool, stuck = ElasticThreadPool("c", bell), Call()
    pool.submit(stuck)
    pool.submit(noting(done, "other"))
    assert stuck.has_begun()
    pool.add_threads()
    bell.wait()
    assert bell.is_silent
    stuck.let_go()
    bell.wait()
    pool.stop()


def test_reinforcements_leave_when_one_is_enough() -> None:
    """GPU-04: a GPU that was slow once does not cost threads for ever."""
    before, bell = set(threading.enumerate()), Bell()
    pool, calls = ElasticThreadPool("c", bell), [Call() for _ in range(4)]
    for call in calls:
        pool.submit(call)
    pool.add_threads()
    assert all(call.has_begun() for call in calls)
    for call in calls:
        call.let_go()
        bell.wait()
    threads = {call.thread for call in calls}
    assert len(threads) == 4
    left = pool_threads(before)
    while len(left) > 1:  # each ends after its task, or with the next one
        pool.submit(bell)
        bell.wait()
        left = pool_threads(before)

    assert left <= threads
    pool.stop()


def test_stop_ends_the_threads() -> None:
    """After their present task."""
    before, bell, call = set(threading.enumerate()), Bell(), Call()
    pool = ElasticThreadPool("c", bell)
    pool.submit(call)
    call.let_go()
    bell.wait()
    (thread,) = pool_threads(before)
    pool.stop()
    thread.join(TIMEOUT)

    assert not thread.is_alive()
