"""The gate: who is let in, who waits, who is told to come back, and who is alone."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from gpuagent_client.serving.limiter import ConcurrencyLimiter, QueueFull, Slot, StillBusy, set_current_slot
from tests.client.serving.bench import FakeProcess, in_loop, settle


def acquire_now(gate: ConcurrencyLimiter) -> Slot:
    """Ask for a place, and do not wait."""
    return gate.try_acquire(lambda: None)


def test_so_many_are_inside_and_so_many_wait() -> None:
    """The next one is refused at once, with the time at which it may find room."""
    process = FakeProcess()
    gate = ConcurrencyLimiter(2, 1, state=process.state)

    places = [acquire_now(gate) for _ in range(3)]
    with pytest.raises(QueueFull, match="as many requests wait as may wait") as rejection:
        acquire_now(gate)

    assert [slot.inside for slot in places] == [True, True, False]
    assert rejection.value.retry_after_seconds == 1
    assert gate.refused == 1


def test_who_waits_longest_is_next() -> None:
    """First come, first served, and each is woken once it is inside."""
    gate = ConcurrencyLimiter(1, 5)
    first = acquire_now(gate)
    woken: list[int] = []
    others = [gate.try_acquire(lambda number=number: woken.append(number)) for number in range(3)]  # type: ignore[misc]

    gate.release(first)
    gate.release(others[0])

    assert woken == [0, 1]
    assert [slot.inside for slot in others] == [True, True, False]


def test_leaving_twice_gives_one_place() -> None:
    """A stream may be closed by the server and by its own end."""
    gate = ConcurrencyLimiter(1, 5)
    first = acquire_now(gate)
    waiting = [acquire_now(gate), acquire_now(gate)]

    gate.release(first)
    gate.release(first)

    assert [slot.inside for slot in waiting] == [True, False]


def test_retry_after_follows_how_long_requests_take() -> None:
    """With four that wait for two places, and 6 s for each, the queue is served in 15 s."""
    process = FakeProcess()
    gate = ConcurrencyLimiter(2, 4, state=process.state, clock=process.clock)
    slot = acquire_now(gate)
    process.now += 6
    gate.release(slot)
    for _ in range(6):
        acquire_now(gate)

    with pytest.raises(QueueFull) as rejection:
        acquire_now(gate)

    assert rejection.value.retry_after_seconds == 15


def test_nobody_is_let_in_while_the_gpu_is_full() -> None:
    """The agent's word counts from the moment it comes, and to the end of it."""
    process = FakeProcess()
    gate = ConcurrencyLimiter(8, state=process.state)
    process.agent_says("critical")
    with pytest.raises(QueueFull, match="nearly used up") as rejection:
        acquire_now(gate)
    process.agent_says("warning")

    assert rejection.value.retry_after_seconds == 2
    assert acquire_now(gate).inside


def test_a_thread_that_waits_in_vain_is_told() -> None:
    """And its place in the queue is free again."""
    gate = ConcurrencyLimiter(1, 1, wait_seconds=0.01)
    first = acquire_now(gate)

    with pytest.raises(QueueFull, match=r"no room within 0\.01 s"):
        gate.acquire()
    second = acquire_now(gate)
    gate.release(first)

    assert second.inside


def test_threads_take_turns() -> None:
    """Eight threads through a gate for two: never more than two inside, and all come through."""
    gate = ConcurrencyLimiter(2, 8)
    most: list[int] = []
    inside: list[int] = []

    def work() -> None:
        for _ in range(50):
            with gate:
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert max(most) <= 2
    assert gate.served == 400
    assert not gate.busy


def test_alone_is_known_at_the_end() -> None:
    """A request that another came in on was not alone, whichever came first."""
    gate = ConcurrencyLimiter(2)
    first = acquire_now(gate)
    second = acquire_now(gate)

    assert not gate.release(first)
    assert not gate.release(second)
    assert gate.release(acquire_now(gate))


def test_a_request_inside_passes_again() -> None:
    """The app's own `with gate` in a route that the middleware guards must not wait for itself."""
    gate = ConcurrencyLimiter(1, 0)

    with gate:
        with gate:
            assert gate.busy
        assert gate.busy
    assert not gate.busy


def test_alone_waits_for_the_others_and_keeps_them_out() -> None:
    """Whoever comes meanwhile waits, and is let in afterwards."""
    gate = ConcurrencyLimiter(2, 2)
    first = acquire_now(gate)
    begun, finish = threading.Event(), threading.Event()

    def wait_for_exclusive() -> None:
        with gate.exclusive(30):
            begun.set()
            finish.wait(30)

    thread = threading.Thread(target=wait_for_exclusive)
    thread.start()
    while gate._exclusive_waiting == 0:  # the thread has said that it wants to be alone
        pass
    late = acquire_now(gate)
    assert not late.inside
    gate.release(first)
    assert begun.wait(30)
    assert not late.inside
    finish.set()
    thread.join()

    assert late.inside


def test_alone_gives_up() -> None:
    """The text says how many were in the way, and the gate is open again."""
    gate = ConcurrencyLimiter(2)
    acquire_now(gate)

    with pytest.raises(StillBusy, match="1 other requests were in the GPU section"), gate.exclusive(0.01):
        raise AssertionError("it was let in")
    assert acquire_now(gate).inside


def test_two_requests_that_both_want_to_be_alone_come_one_after_the_other() -> None:
    """Each is inside, and neither waits for the other's end: that would be for ever."""
    gate = ConcurrencyLimiter(2)
    both_inside = threading.Barrier(2, timeout=30)
    order: list[str] = []

    def request(name: str) -> None:
        with gate:
            both_inside.wait()
            with gate.exclusive(30):
                order.append(name)
                order.append(name)

    threads = [threading.Thread(target=request, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert order in (["a", "a", "b", "b"], ["b", "b", "a", "a"])


def test_a_forked_child_begins_with_an_empty_gate() -> None:
    """The requests of the parent are not its own, and their locks would never be let go."""
    gate = ConcurrencyLimiter(1, 0)
    acquire_now(gate)
    with gate._lock:
        pid = os.fork()
        if pid == 0:
            os._exit(0 if acquire_now(gate).inside else 1)
    _, status = os.waitpid(pid, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    with pytest.raises(QueueFull):
        acquire_now(gate)


def test_in_an_event_loop() -> None:
    """`async with`, a wait in the loop, and a thread that lets the next one in."""

    async def scene() -> None:
        gate = ConcurrencyLimiter(1, 1)
        first = acquire_now(gate)
        order: list[str] = []

        async def work() -> None:
            async with gate:
                order.append("inside")

        task = asyncio.create_task(work())
        await settle()
        assert order == []
        await asyncio.to_thread(gate.release, first)
        await task
        assert order == ["inside"]
        assert not gate.busy

    in_loop(scene())


def test_a_cancelled_wait_gives_its_place_up() -> None:
    """Whether it was in the queue, or was let in at that very moment."""

    async def scene() -> None:
        gate = ConcurrencyLimiter(1, 1)

        async def work() -> None:
            async with gate:
                pass

        for leave_first in (False, True):
            first = acquire_now(gate)
            task = asyncio.create_task(work())
            await settle()
            if leave_first:
                gate.release(first)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            gate.release(first)
            assert not gate.busy
        assert acquire_now(gate).inside

    in_loop(scene())


def test_the_client_knows_whether_requests_are_served() -> None:
    """A release that the agent asks for waits for them; a census counts them."""
    process = FakeProcess()
    gate = ConcurrencyLimiter(1, state=process.state)
    before = process.state.requests_served() or 0
    slot = acquire_now(gate)
    assert process.state.busy()
    gate.release(slot)

    assert not process.state.busy()
    assert process.state.requests_served() == before + 1


def test_a_place_of_an_ended_request_holds_nothing() -> None:
    """Tasks that a request started inherit its context, and may live on."""
    gate = ConcurrencyLimiter(1)
    slot = acquire_now(gate)
    set_current_slot(slot)
    assert gate.holds_current_slot()
    gate.release(slot)

    assert not gate.holds_current_slot()


@pytest.mark.parametrize("arguments", [(0,), (1, -1), (1, 0, -1.0)])
def test_sizes_must_make_sense(arguments: tuple[int, ...]) -> None:
    """A gate that lets nobody in is a mistake."""
    with pytest.raises(ValueError, match="at least"):
        ConcurrencyLimiter(*arguments)
