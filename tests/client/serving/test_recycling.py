"""Ending a worker for a fresh one: when, and that only one goes at a time."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from gpuagent_client.serving import Gate
from gpuagent_client.serving import recycling as module
from gpuagent_client.serving.recycling import Recycling, listening_here
from gpuagent_client.serving.releases import CacheReleases
from tests.client.apps.faketorch import GIB
from tests.client.serving.bench import FakeProcess


@pytest.fixture(autouse=True)
def nobody_else() -> Iterator[None]:
    """What a test has registered with the middleware of this process goes with it."""
    yield
    module._current.clear()


def worker() -> Any:
    """As much of gunicorn's worker as the hook touches."""
    return SimpleNamespace(alive=True)


def serve(recycling: Recycling, one: Any, times: int = 1) -> None:
    """Requests, as gunicorn tells of them."""
    for _ in range(times):
        recycling.post_request(one, None, {}, None)


def wait_for_look() -> None:
    """Until the thread that releases first has ended."""
    for thread in threading.enumerate():
        if thread.name == "gpuagent-recycle":
            thread.join()


def test_after_so_many_requests() -> None:
    """Not before."""
    recycling, one = Recycling(after_requests=3), worker()
    serve(recycling, one, 2)
    assert one.alive
    serve(recycling, one)

    assert not one.alive


def test_above_a_budget() -> None:
    """What tensors hold cannot be given back: only a fresh worker helps."""
    process = FakeProcess()
    process.fake.allocate(8 * GIB)
    recycling, one = Recycling(above_bytes=8 * GIB, process=process), worker()
    serve(recycling, one)
    assert one.alive
    process.fake.allocate(1)
    serve(recycling, one)

    assert not one.alive


def test_a_cache_is_given_back_first() -> None:
    """A fresh worker costs a model's loading; an emptied cache costs a moment."""
    process = FakeProcess()
    process.fake.allocate(9 * GIB)
    process.fake.free(3 * GIB)
    releases = CacheReleases(
        Gate(state=process.state), every=None, above_bytes=None, process=process, clock=process.clock
    )
    stopped: list[bool] = []
    recycling = Recycling(above_bytes=8 * GIB, process=process, stop=lambda: stopped.append(True))
    recycling.after_request(releases, in_loop=False)
    wait_for_look()

    assert process.fake.reserved == [6 * GIB]
    assert (stopped, recycling.ending) == ([], False)


def test_without_the_middleware_nothing_is_given_back() -> None:
    """Nobody then knows whether another thread is in the middle of a request: the worker goes, which harms none."""
    process = FakeProcess()
    process.fake.allocate(9 * GIB)
    process.fake.free(3 * GIB)
    recycling, one = Recycling(above_bytes=8 * GIB, process=process), worker()
    serve(recycling, one)

    assert not one.alive
    assert "empty_cache" not in process.fake.calls


def test_fragments_that_a_release_does_not_bring_back() -> None:
    """Segments that are partly in use stay reserved: then the worker goes."""
    process = FakeProcess()
    process.fake.allocate(9 * GIB)
    process.fake.free(3 * GIB)
    empty = process.fake.empty_cache

    def leave_fragments() -> None:
        empty()
        process.fake.reserved = [8 * GIB + 1]

    process.fake.modules["torch.cuda"].__dict__["empty_cache"] = leave_fragments
    releases = CacheReleases(
        Gate(state=process.state), every=None, above_bytes=None, process=process, clock=process.clock
    )
    stopped: list[bool] = []
    recycling = Recycling(above_bytes=8 * GIB, process=process, stop=lambda: stopped.append(True))
    recycling.after_request(releases, in_loop=False)
    wait_for_look()
    recycling.after_request(releases, in_loop=False)

    assert stopped == [True]


def test_one_worker_at_a_time() -> None:
    """The second waits for the end of the first process, however that comes."""
    recycling = Recycling(after_requests=1)
    reading, writing = os.pipe()
    go_reading, go_writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        one = worker()
        serve(recycling, one)
        os.write(writing, b"+" if not one.alive else b"-")
        os.read(go_reading, 1)
        os._exit(0)
    assert os.read(reading, 1) == b"+"
    second = worker()
    serve(recycling, second)
    assert second.alive
    os.write(go_writing, b"!")
    os.waitpid(pid, 0)
    serve(recycling, second)

    assert not second.alive
    for descriptor in (reading, writing, go_reading, go_writing):
        os.close(descriptor)


def test_it_ends_once() -> None:
    """Requests that are finished meanwhile do not ask again."""
    stopped: list[bool] = []
    recycling = Recycling(after_requests=1, stop=lambda: stopped.append(True))
    releases = CacheReleases(Gate(), every=None, above_bytes=None)
    for _ in range(3):
        recycling.after_request(releases, in_loop=False)

    assert stopped == [True]


def test_without_cuda_no_worker_is_above_its_budget() -> None:
    """Nor is CUDA started to find out."""
    process = FakeProcess()
    process.fake.up = False
    recycling, one = Recycling(above_bytes=1, process=process), worker()
    serve(recycling, one)

    assert one.alive
    assert process.fake.calls == []


def test_a_notice_of_the_agent_ends_the_worker() -> None:
    """Only where the app wants it so; at once, where no event loop has to be asked first."""
    process = FakeProcess()
    stopped: list[bool] = []
    deaf = Recycling(above_bytes=GIB, process=process)
    deaf.post_worker_init(SimpleNamespace(sockets=[]))
    assert process.state.drain is None
    recycling = Recycling(on_notice=True, process=process, stop=lambda: stopped.append(True))
    recycling.post_worker_init(SimpleNamespace(sockets=[]))
    assert process.state.drain is not None

    assert process.state.drain("too much")
    assert process.state.drain("still too much")
    assert stopped == [True]


def test_a_notice_is_kept_until_it_is_this_workers_turn() -> None:
    """While another is ending, requests go on being served here; the first one after that lets this worker go."""
    process = FakeProcess()
    stopped: list[bool] = []
    recycling = Recycling(on_notice=True, process=process, stop=lambda: stopped.append(True))
    releases = CacheReleases(
        Gate(state=process.state), every=None, above_bytes=None, process=process, clock=process.clock
    )
    reading, writing = os.pipe()
    go_reading, go_writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        recycling._recycling_lock.acquire()
        os.write(writing, b"+")
        os.read(go_reading, 1)
        os._exit(0)
    assert os.read(reading, 1) == b"+"
    assert recycling.drain("too much")
    recycling.after_request(releases, in_loop=False)
    assert stopped == []
    os.write(go_writing, b"!")
    os.waitpid(pid, 0)
    recycling.after_request(releases, in_loop=False)

    assert stopped == [True]
    for descriptor in (reading, writing, go_reading, go_writing):
        os.close(descriptor)


def test_in_an_event_loop_the_loop_ends_it() -> None:
    """The notice comes in a thread of the client's, and what accepts connections belongs to the loop."""
    process = FakeProcess()
    ended_in: list[int] = []
    recycling = Recycling(on_notice=True, process=process, stop=lambda: ended_in.append(threading.get_ident()))
    releases = CacheReleases(
        Gate(state=process.state), every=None, above_bytes=None, process=process, clock=process.clock
    )

    async def serve_and_be_told() -> None:
        recycling.after_request(releases, in_loop=True)
        await asyncio.to_thread(recycling.drain, "too much")
        await asyncio.sleep(0)

    asyncio.run(serve_and_be_told())

    assert ended_in == [threading.get_ident()]
    assert recycling.drain("again")


def test_sockets_that_listen_are_found_and_left_as_they_are() -> None:
    """Where no server hands its sockets out: by asking the kernel about each, and closing none."""
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as idle:
        found = {one.fileno(): one.getsockname() for one in listening_here()}

        assert found[listening.fileno()] == listening.getsockname()
        assert idle.fileno() not in found
        assert os.fstat(listening.fileno())
        assert os.fstat(idle.fileno())


def test_workers_that_were_not_forked_take_turns_by_their_socket() -> None:
    """What they have in common is the socket on which they listen."""
    process = FakeProcess()
    stopped: list[bool] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        recycling = Recycling(on_notice=True, process=process, stop=lambda: stopped.append(True))
        recycling.begin_in_app()
        reading, writing = os.pipe()
        go_reading, go_writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            for one in listening_here():
                fcntl.lockf(one.fileno(), fcntl.LOCK_EX)
            os.write(writing, b"+")
            os.read(go_reading, 1)
            os._exit(0)
        assert os.read(reading, 1) == b"+"
        assert process.state.drain is not None
        assert process.state.drain("too much")
        assert stopped == []
        os.write(go_writing, b"!")
        os.waitpid(pid, 0)
        recycling.after_request(
            CacheReleases(Gate(state=process.state), every=None, above_bytes=None, process=process), in_loop=False
        )

        assert stopped == [True]
        assert listening.fileno() in {one.fileno() for one in listening_here()}
    for descriptor in (reading, writing, go_reading, go_writing):
        os.close(descriptor)


@pytest.mark.parametrize("arguments", [{}, {"above_bytes": 0}, {"after_requests": -1}])
def test_a_reason_is_needed(arguments: dict[str, int]) -> None:
    """Gunicorn then does not start, and says why."""
    with pytest.raises(ValueError, match=r"above_bytes"):
        Recycling(**arguments)  # type: ignore[arg-type]
