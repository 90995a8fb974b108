"""Giving the cache back between requests: for a reason, seldom, and never while one is being served."""

from __future__ import annotations

import pytest

from gpuagent_client.serving import Gate, WsgiMiddleware
from gpuagent_client.serving.releases import CacheReleases
from tests.client.apps.faketorch import GIB
from tests.client.serving.bench import FakeProcess
from tests.client.serving.test_wsgi import Server


def with_cache(cached_bytes: int = 3 * GIB) -> FakeProcess:
    """A process with 1 GiB in tensors and so much cached."""
    process = FakeProcess()
    process.fake.allocate(GIB + cached_bytes)
    process.fake.free(cached_bytes)
    return process


def releases_of(
    process: FakeProcess, gate: Gate, *, every: int | None = None, above: int | None = None
) -> CacheReleases:
    """With the process's clock."""
    return CacheReleases(gate, every=every, above_bytes=above, process=process, clock=process.clock)


def test_it_is_off_unless_asked_for() -> None:
    """Emptying the cache costs; who does not want it does not pay."""
    process = with_cache()
    releases = releases_of(process, Gate(state=process.state))

    assert not any(releases.due(100 * GIB) for _ in range(1000))


def test_after_so_many_requests() -> None:
    """And then after so many more."""
    process = with_cache()
    releases = releases_of(process, Gate(state=process.state), every=3)
    assert [releases.due(GIB) for _ in range(3)] == [False, False, True]
    assert releases.release() == 3 * GIB
    process.now += 100

    assert [releases.due(GIB) for _ in range(3)] == [False, False, True]


def test_above_a_mark() -> None:
    """What is cached counts, not what tensors hold."""
    process = with_cache()
    releases = releases_of(process, Gate(state=process.state), above=2 * GIB)

    assert [releases.due(2 * GIB), releases.due(2 * GIB + 1)] == [False, True]


def test_when_the_gpu_is_nearly_used_up() -> None:
    """The neighbors need it."""
    process = with_cache()
    releases = releases_of(process, Gate(state=process.state), every=1000)
    assert not releases.due(GIB)
    process.agent_says("critical")

    assert releases.due(GIB)


def test_once_a_minute_with_what_the_agent_asks_for() -> None:
    """Two reasons are no reason to do it twice."""
    process = with_cache()
    releases = releases_of(process, Gate(state=process.state), every=1)
    assert releases.release() == 3 * GIB
    process.now += 59

    assert not releases.due(GIB)
    assert releases.release() == 0
    process.now += 2
    assert releases.due(GIB)
    assert process.fake.calls.count("empty_cache") == 1


def test_never_while_a_request_is_inside() -> None:
    """Neither begun, nor waited for."""
    process = with_cache()
    gate = Gate(2, state=process.state)
    releases = releases_of(process, gate, every=1)
    gate.try_acquire(lambda: None)

    assert not releases.due(GIB)
    assert releases.release() == 0
    assert "empty_cache" not in process.fake.calls


def test_without_cuda_nothing_is_called() -> None:
    """A release could be asked for before the model is there."""
    process = FakeProcess()
    process.fake.up = False
    releases = releases_of(process, Gate(state=process.state), every=1)

    assert releases.release() == 0
    assert process.fake.calls == []


def test_a_release_that_fails_is_told_and_forgotten() -> None:
    """An app does not fail because its cache stays."""
    process = with_cache()
    releases = releases_of(process, Gate(state=process.state), every=1)

    def broken() -> None:
        raise ZeroDivisionError

    process.fake.modules["torch.cuda"].__dict__["empty_cache"] = broken

    assert releases.release() == 0
    assert not process.state.busy()


def test_a_middleware_does_it_by_itself() -> None:
    """After the request, not in it."""
    process = with_cache()
    gate = Gate(state=process.state)
    inside: list[int] = []

    def app(environ: object, start_response: object) -> list[bytes]:
        inside.append(process.fake.reserved[0])
        return [b"ok"]

    Server(WsgiMiddleware(app, gate, release_above_bytes=GIB, process=process)).get()

    assert inside == [4 * GIB]
    assert process.fake.reserved == [GIB]


@pytest.mark.parametrize(("every", "above"), [(0, None), (None, -1)])
def test_marks_must_make_sense(every: int | None, above: int | None) -> None:
    """At the start, not at the first request."""
    with pytest.raises(ValueError, match="release_every must be at least 1"):
        CacheReleases(Gate(), every=every, above_bytes=above)
