"""Ending a worker for a fresh one: when, and that only one goes at a time."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from gpuagent_client.serving import Gate
from gpuagent_client.serving.recycling import Recycling
from gpuagent_client.serving.releases import Releases
from tests.client.apps.faketorch import GIB
from tests.client.serving.bench import FakeProcess


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
    releases = Releases(Gate(told=process.told), every=None, above_bytes=None, process=process, clock=process.clock)
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
    releases = Releases(Gate(told=process.told), every=None, above_bytes=None, process=process, clock=process.clock)
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
    releases = Releases(Gate(), every=None, above_bytes=None)
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


@pytest.mark.parametrize("arguments", [{}, {"above_bytes": 0}, {"after_requests": -1}])
def test_a_reason_is_needed(arguments: dict[str, int]) -> None:
    """Gunicorn then does not start, and says why."""
    with pytest.raises(ValueError, match=r"above_bytes"):
        Recycling(**arguments)  # type: ignore[arg-type]
