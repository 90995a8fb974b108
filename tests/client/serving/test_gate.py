"""The gate: who is let in, who waits, who is told to come back, and who is alone."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from gpuagent_client.serving.gate import Full, Gate, Place, StillBusy, became_current
from tests.client.serving.bench import FakeProcess, in_loop, settle


def knock(gate: Gate) -> Place:
    """Ask for a place, and do not wait."""
    return gate.knock(lambda: None)


def test_so_many_are_inside_and_so_many_wait() -> None:
    """The next one is refused at once, with the time at which it may find room."""
    process = FakeProcess()
    gate = Gate(2, 1, told=process.told)

    places = [knock(gate) for _ in range(3)]
    with pytest.raises(Full, match="as many requests wait as may wait") as refusal:
        knock(gate)

    assert [place.inside for place in places] == [True, True, False]
    assert refusal.value.retry_after_seconds == 1
    assert gate.refused == 1


def test_who_waits_longest_is_next() -> None:
    """First come, first served, and each is woken once it is inside."""
    gate = Gate(1, 5)
    first = knock(gate)
    woken: list[int] = []
    others = [gate.knock(lambda number=number: woken.append(number)) for number in range(3)]  # type: ignore[misc]

    gate.leave(first)
    gate.leave(others[0])

    assert woken == [0, 1]
    assert [place.inside for place in others] == [True, True, False]


def test_leaving_twice_gives_one_place() -> None:
    """A stream may be closed by the server and by its own end."""
    gate = Gate(1, 5)
    first = knock(gate)
    waiting = [knock(gate), knock(gate)]

    gate.leave(first)
    gate.leave(first)

    assert [place.inside for place in waiting] == [True, False]


def test_retry_after_follows_how_long_requests_take() -> None:
    """With four that wait for two places, and 6 s for each, the queue is served in 15 s."""
    process = FakeProcess()
    gate = Gate(2, 4, told=process.told, clock=process.clock)
    place = knock(gate)
    process.now += 6
    gate.leave(place)
    for _ in range(6):
        knock(gate)

    with pytest.raises(Full) as refusal:
        knock(gate)

    assert refusal.value.retry_after_seconds == 15


def test_nobody_is_let_in_while_the_gpu_is_full() -> None:
    """The agent's word counts from the moment it comes, and to the end of it."""
    process = FakeProcess()
    gate = Gate(8, told=process.told)
    process.agent_says("critical")
    with pytest.raises(Full, match="nearly used up") as refusal:
        knock(gate)
    process.agent_says("warning")

    assert refusal.value.retry_after_seconds == 2
    assert knock(gate).inside


def test_a_thread_that_waits_in_vain_is_told() -> None:
    """And its place in the queue is free again."""
    gate = Gate(1, 1, wait_seconds=0.01)
    first = knock(gate)

    with pytest.raises(Full, match=r"no room within 0\.01 s"):
        gate.enter()
    second = knock(gate)
    gate.leave(first)

    assert second.inside


def test_threads_take_turns() -> None:
    """Eight threads through a gate for two: never more than two inside, and all come through."""
    gate = Gate(2, 8)
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
    gate = Gate(2)
    first = knock(gate)
    second = knock(gate)

    assert not gate.leave(first)
    assert not gate.leave(second)
    assert gate.leave(knock(gate))


def test_a_request_inside_passes_again() -> None:
    """The app's own `with gate` in a route that the middleware guards must not wait for itself."""
    gate = Gate(1, 0)

    with gate:
        with gate:
            assert gate.busy
        assert gate.busy
    assert not gate.busy


def test_alone_waits_for_the_others_and_keeps_them_out() -> None:
    """Whoever comes meanwhile waits, and is let in afterwards."""
    gate = Gate(2, 2)
    first = knock(gate)
    begun, finish = threading.Event(), threading.Event()

    def alone() -> None:
        with gate.alone(30):
            begun.set()
            finish.wait(30)

    thread = threading.Thread(target=alone)
    thread.start()
    while gate._claims == 0:  # the thread has said that it wants to be alone
        pass
    late = knock(gate)
    assert not late.inside
    gate.leave(first)
    assert begun.wait(30)
    assert not late.inside
    finish.set()
    thread.join()

    assert late.inside


def test_alone_gives_up() -> None:
    """The text says how many were in the way, and the gate is open again."""
    gate = Gate(2)
    knock(gate)

    with pytest.raises(StillBusy, match="1 other requests were in the GPU section"), gate.alone(0.01):
        raise AssertionError("it was let in")
    assert knock(gate).inside


def test_two_requests_that_both_want_to_be_alone_come_one_after_the_other() -> None:
    """Each is inside, and neither waits for the other's end: that would be for ever."""
    gate = Gate(2)
    both_inside = threading.Barrier(2, timeout=30)
    order: list[str] = []

    def request(name: str) -> None:
        with gate:
            both_inside.wait()
            with gate.alone(30):
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
    gate = Gate(1, 0)
    knock(gate)
    with gate._lock:
        pid = os.fork()
        if pid == 0:
            os._exit(0 if knock(gate).inside else 1)
    _, status = os.waitpid(pid, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    with pytest.raises(Full):
        knock(gate)


def test_in_an_event_loop() -> None:
    """`async with`, a wait in the loop, and a thread that lets the next one in."""

    async def scene() -> None:
        gate = Gate(1, 1)
        first = knock(gate)
        order: list[str] = []

        async def work() -> None:
            async with gate:
                order.append("inside")

        task = asyncio.create_task(work())
        await settle()
        assert order == []
        await asyncio.to_thread(gate.leave, first)
        await task
        assert order == ["inside"]
        assert not gate.busy

    in_loop(scene())


def test_a_cancelled_wait_gives_its_place_up() -> None:
    """Whether it was in the queue, or was let in at that very moment."""

    async def scene() -> None:
        gate = Gate(1, 1)

        async def work() -> None:
            async with gate:
                pass

        for leave_first in (False, True):
            first = knock(gate)
            task = asyncio.create_task(work())
            await settle()
            if leave_first:
                gate.leave(first)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            gate.leave(first)
            assert not gate.busy
        assert knock(gate).inside

    in_loop(scene())


def test_the_client_knows_whether_requests_are_served() -> None:
    """A release that the agent asks for waits for them; a census counts them."""
    process = FakeProcess()
    gate = Gate(1, told=process.told)
    before = process.told.requests_served() or 0
    place = knock(gate)
    assert process.told.busy()
    gate.leave(place)

    assert not process.told.busy()
    assert process.told.requests_served() == before + 1


def test_a_place_of_an_ended_request_holds_nothing() -> None:
    """Tasks that a request started inherit its context, and may live on."""
    gate = Gate(1)
    place = knock(gate)
    became_current(place)
    assert gate.holds_current()
    gate.leave(place)

    assert not gate.holds_current()


@pytest.mark.parametrize("arguments", [(0,), (1, -1), (1, 0, -1.0)])
def test_sizes_must_make_sense(arguments: tuple[int, ...]) -> None:
    """A gate that lets nobody in is a mistake."""
    with pytest.raises(ValueError, match="at least"):
        Gate(*arguments)
