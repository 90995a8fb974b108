"""All lanes together, as tasks, with real time and real sockets where that matters."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import pytest

from gpuagent.core.clock import ScaledClock, SystemClock
from gpuagent.core.sections import SecretText
from gpuagent_alerts.alert import Message
from gpuagent_alerts.notify.outbox.attempt import DeliveryOutcome, MessageContext, Reason
from gpuagent_alerts.notify.outbox.delivery import Delivery, MessageOrigin
from gpuagent_alerts.notify.outbox.queue import Outbox
from gpuagent_alerts.notify.receivers.base import Receiver
from gpuagent_alerts.notify.receivers.http import HttpClient
from gpuagent_alerts.notify.receivers.webhook import Webhook
from gpuagent_alerts.secret import Secret
from gpuagent_alerts.store.database import Store
from tests.alerts.messages import alert, entry
from tests.alerts.notify.outbox.parts import PATIENCE_SECONDS, Bench, ScriptedSender, until
from tests.alerts.notify.receivers.sink import Received, Reply, sink

DOWN = DeliveryOutcome(Reason.UNREACHABLE, "it refused the connection")


class TellingSender(ScriptedSender):
    """Tells when it has sent enough."""

    def __init__(self, enough: int, outcomes: list[DeliveryOutcome] | None = None, **how: str) -> None:
        super().__init__(outcomes or [], **how)  # type: ignore[arg-type]
        self.enough = enough
        self.done = asyncio.Event()

    async def send(self, message: Message, context: MessageContext) -> DeliveryOutcome:
        outcome = await super().send(message, context)
        if len(self.sent) >= self.enough:
            self.done.set()
        return outcome


async def settled(bench: Bench, state: str = "sent") -> None:
    """Until every message is in a state: an attempt is noted a moment after it was made."""
    await until(lambda: set(bench.states().values()) == {state})


def deliver(bench: Bench) -> Delivery:
    """Delivery from this outbox."""
    return Delivery(bench.store, bench.outbox, bench.clock, MessageOrigin("node7"))


def test_what_is_queued_from_a_thread_is_sent_at_once() -> None:
    """A message wakes the task of its receiver: nobody polls, and nobody else wakes."""

    async def scene() -> None:
        bench = Bench()
        delivery, sender = deliver(bench), TellingSender(1)
        await delivery.use([sender])
        await asyncio.sleep(0)  # the task has begun to wait
        await asyncio.to_thread(bench.outbox.enqueue, [entry(name="one")])
        async with asyncio.timeout(PATIENCE_SECONDS):
            await sender.done.wait()
        await settled(bench)
        await delivery.stop()

        assert delivery.figures()["hook"].counters.sent == 1

    asyncio.run(scene())


def test_one_receiver_does_not_wait_for_another() -> None:
    """ALERT-07: one that never answers holds up its own messages only; stopping does not wait for it."""

    class Stuck(ScriptedSender):
        async def send(self, message: Message, context: MessageContext) -> DeliveryOutcome:
            await asyncio.Event().wait()
            raise AssertionError

    async def scene() -> None:
        bench = Bench()
        delivery, good = deliver(bench), TellingSender(3, name="good")
        await delivery.use([Stuck(name="stuck"), good])
        bench.outbox.enqueue([entry(receiver="stuck", name="waits")])
        bench.outbox.enqueue([entry(receiver="good", group=str(n), name=str(n)) for n in range(3)])
        async with asyncio.timeout(PATIENCE_SECONDS):
            await good.done.wait()
            await delivery.stop()

        assert bench.states()["waits"] == "queued"

    asyncio.run(scene())


def test_a_sender_that_raises_costs_nothing_but_its_attempt(caplog: pytest.LogCaptureFixture) -> None:
    """A mistake of ours is an outcome, its text is not logged, and the message is tried again."""

    class Broken:
        attempts = 0

        async def send(self, message: Message, context: MessageContext) -> DeliveryOutcome:
            self.attempts += 1
            raise RuntimeError("https://hooks.example/tops3cret")

    async def scene() -> None:
        bench = Bench(uniform=lambda: 0.0)
        kind, delivery = Broken(), deliver(bench)
        await delivery.use([Receiver("hook", kind)])
        bench.outbox.enqueue([entry(name="one")])
        await until(lambda: kind.attempts >= 3)
        await delivery.stop()

        assert bench.states() == {"one": "queued"}

    asyncio.run(scene())
    assert "RuntimeError" in caplog.text
    assert "tops3cret" not in caplog.text


def test_a_store_that_fails_does_not_end_a_worker(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever is raised inside, the worker goes on after a while; by a fast clock, at once."""

    class FailsTwice(Outbox):
        failures = 2

        def take_due(self, receiver: str, count: int = 1) -> list[object]:  # type: ignore[override]
            if self.failures:
                self.failures -= 1
                raise RuntimeError("tops3cret")
            return super().take_due(receiver, count)  # type: ignore[return-value]

    async def scene() -> None:
        clock, store = ScaledClock(1000.0), Store(None)
        outbox = FailsTwice(store, clock)
        delivery, sender = Delivery(store, outbox, clock, MessageOrigin("node7")), TellingSender(1)
        outbox.enqueue([entry()])
        await delivery.use([sender])
        async with asyncio.timeout(PATIENCE_SECONDS):
            await sender.done.wait()
        await delivery.stop()
        store.close()

    asyncio.run(scene())
    assert caplog.text.count("sending to hook failed: RuntimeError") == 2
    assert "tops3cret" not in caplog.text


def test_a_reload_keeps_what_waits_and_buries_what_is_for_nobody() -> None:
    """A receiver that changes goes on with its queue; what is for one that is no more is a dead letter."""

    async def scene() -> None:
        bench = Bench()
        delivery = deliver(bench)
        await delivery.use([ScriptedSender([DOWN] * 99), ScriptedSender([DOWN] * 99, name="other")])
        bench.outbox.enqueue([entry(name="one"), entry(receiver="other", name="two")])
        # Noted, not only answered: the time until the next attempt counts from there.
        await until(lambda: list(bench.store.execute("SELECT min(attempts) FROM outbox")) == [(1,)])
        again = TellingSender(1)
        bench.clock.advance(400.0)
        await delivery.use([again])
        await until(lambda: bench.states() == {"one": "sent", "two": "dead"})
        await delivery.stop()

    asyncio.run(scene())


def test_a_reload_lets_an_unchanged_receiver_go_on() -> None:
    """A message on its way during a reload is sent once: the attempt is not broken off."""

    class Slow(ScriptedSender):
        def __init__(self) -> None:
            super().__init__()
            self.asked, self.may_end = asyncio.Event(), asyncio.Event()

        async def send(self, message: Message, context: MessageContext) -> DeliveryOutcome:
            self.asked.set()
            await self.may_end.wait()
            return await super().send(message, context)

    async def scene() -> None:
        bench = Bench()
        delivery, slow = deliver(bench), Slow()
        await delivery.use([slow])
        bench.outbox.enqueue([entry(name="one")])
        async with asyncio.timeout(PATIENCE_SECONDS):
            await slow.asked.wait()
        await delivery.use([slow, ScriptedSender(name="new")])
        slow.may_end.set()
        await settled(bench)
        await delivery.stop()

        assert [message.id for message in slow.sent] == ["one"]

    asyncio.run(scene())


def test_equal_receivers_are_known_as_such() -> None:
    """A configuration that is read again makes new objects: with the same address and key they are equal."""
    http = HttpClient()

    def receiver(url: str, key: str = "k1") -> Receiver:
        address = Secret("URL", SecretText(url))
        return Receiver("hook", Webhook(http, address, Secret("key", SecretText(key))), address=address)

    assert receiver("http://a") == receiver("http://a")
    assert receiver("http://a") != receiver("http://b")
    assert receiver("http://a") != receiver("http://a", "k2")
    assert receiver("http://a").address_hash() != receiver("http://b").address_hash()
    assert "http://a" not in receiver("http://a").address_hash()


def test_a_receiver_stays_off_over_reload_and_restart(tmp_path: Path) -> None:
    """410 means that nobody may be asked again until somebody has seen to it: a test, or another address."""

    async def scene() -> None:
        bench = Bench(path=tmp_path / "alerts.db")
        delivery, sender = deliver(bench), ScriptedSender([DeliveryOutcome(Reason.GONE, "it wants nothing (410)")])
        await delivery.use([sender])
        bench.outbox.enqueue([entry(name="one")])
        await until(delivery.off)
        await delivery.use([sender])
        assert str(delivery.off()["hook"].outcome) == "it wants nothing (410)"
        await delivery.stop()

        bench.restart()
        bench.clock.advance(3600.0)
        delivery, same, other = deliver(bench), TellingSender(1), TellingSender(1)
        await delivery.use([same])
        assert delivery.off()["hook"].since == bench.clock.wall() - 3600.0
        other.address = "a2"
        await delivery.use([other])
        await settled(bench)
        await delivery.stop()

        assert (delivery.off(), len(sender.sent), same.sent) == ({}, 1, [])

    asyncio.run(scene())


def test_a_file_with_another_address_counts_at_a_reload() -> None:
    """The configuration is the same then, and the receiver too: what its file holds is not."""

    async def scene() -> None:
        bench = Bench(uniform=lambda: 0.0)
        delivery, sender = deliver(bench), ScriptedSender([DeliveryOutcome(Reason.GONE, "410")])
        await delivery.use([sender])
        bench.outbox.enqueue([entry(name="one")])
        await until(delivery.off)
        sender.address = "a2"
        await delivery.use([sender])
        await settled(bench)
        await delivery.stop()

    asyncio.run(scene())


def test_switching_on_sends_what_has_waited() -> None:
    """After a test that the receiver passed, its queue goes on without a restart."""

    async def scene() -> None:
        bench = Bench(uniform=lambda: 0.0)
        sender = ScriptedSender([DeliveryOutcome(Reason.GONE, "410")])
        delivery = deliver(bench)
        await delivery.use([sender])
        bench.outbox.enqueue([entry(name="one")])
        await until(delivery.off)
        delivery.switch_on("hook")
        await settled(bench)
        await delivery.stop()

    asyncio.run(scene())


def test_housekeeping_gives_up_what_is_too_old(tmp_path: Path) -> None:
    """By the age that the kind of receiver allows."""

    async def scene() -> None:
        bench = Bench(path=tmp_path / "alerts.db")
        delivery = deliver(bench)
        await delivery.use([ScriptedSender([DOWN] * 99)])
        bench.outbox.enqueue([entry(name="one")])
        bench.clock.advance(90_000.0)
        await delivery.housekeeping()
        await delivery.stop()

        assert bench.states() == {"one": "dead"}

    asyncio.run(scene())


@pytest.mark.parametrize("drop", ["before", "after"])
def test_over_the_wire_nothing_is_lost(drop: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """ALERT-07: a receiver that answers 500, 429, drops and recovers gets everything, in order, with the same ids."""
    caplog.set_level(logging.DEBUG)
    answers = [Reply(500), Reply(429, {"Retry-After": "0"}), Reply(drop=drop), Reply(503), Reply(), Reply(drop=drop)]

    def behave(_: Received) -> Reply:
        return answers.pop(0) if answers else Reply()

    async def scene(url: str) -> None:
        store, clock = Store(tmp_path / "alerts.db"), SystemClock()
        outbox = Outbox(store, clock, uniform=lambda: 0.0)
        delivery, http = Delivery(store, outbox, clock, MessageOrigin("node7")), HttpClient()
        await delivery.use([Receiver("hook", Webhook(http, Secret("URL", url + "/tops3cret")))])
        for number in range(5):
            outbox.enqueue([entry(alert(number=str(number)), group=str(number % 2), name=f"m{number}")])
        await until(lambda: delivery.figures()["hook"].counters.sent == 5)
        await delivery.stop()
        await http.close()
        store.close()

    with sink(behave) as receiver:
        asyncio.run(scene(receiver.url))
        got = [request.headers["webhook-id"] for request in receiver.processed]
    first = list(dict.fromkeys(got))

    assert set(first) == {f"m{n}" for n in range(5)}
    for parity in (0, 1):
        assert [name for name in first if int(name[1]) % 2 == parity] == [f"m{n}" for n in range(parity, 5, 2)]
    assert "tops3cret" not in caplog.text


def test_a_slow_receiver_does_not_delay_the_loop() -> None:
    """ALERT-07: polling goes on while a receiver drags its answer out and the disk syncs."""

    async def scene(url: str) -> int:
        bench = Bench()
        delivery, http = deliver(bench), HttpClient(deadline_seconds=1.0)
        await delivery.use([Receiver("hook", Webhook(http, Secret("URL", url)))])
        bench.outbox.enqueue([entry(group=str(n)) for n in range(10)])
        ticks, end = 0, time.monotonic() + 1.0
        while time.monotonic() < end:
            await asyncio.sleep(0.01)
            ticks += 1
        await delivery.stop()
        await http.close()
        return ticks

    with sink(lambda _: Reply(trickle_seconds=0.3)) as receiver:
        assert asyncio.run(scene(receiver.url)) > 20
