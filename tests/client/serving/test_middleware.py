"""What the agent hears of the requests, and when."""

from __future__ import annotations

from gpuagent_client.serving.limiter import ConcurrencyLimiter
from gpuagent_client.serving.middleware import REPORT_EVERY_SECONDS, RequestTracker
from tests.client.serving.bench import MIB, FakeProcess


def test_the_agent_hears_of_requests_once_a_minute() -> None:
    """How many were served and refused, and which route needs most: in one event, of flat fields."""
    process = FakeProcess()
    gate = ConcurrencyLimiter(1, 0, state=process.state)
    watch = RequestTracker(
        gate=gate,
        paths=None,
        header=False,
        release_every=None,
        release_above_bytes=None,
        on_request=None,
        process=process,
        clock=process.clock,
    )
    for _ in range(3):
        visit = watch.begin(gate.try_acquire(lambda: None))
        process.fake.allocate(7000 * MIB)
        process.fake.free(7000 * MIB)
        process.now += REPORT_EVERY_SECONDS / 2
        watch.end(visit, str, "GET /test-of-the-watch", in_loop=False)
    (event,) = process.state.events

    assert event.name == "serving"
    assert (event.fields["served"], event.fields["refused"]) == (2, 0)
    assert event.fields["route"] == "GET /test-of-the-watch"
    assert event.fields["p95_bytes"] == 7000 * MIB
