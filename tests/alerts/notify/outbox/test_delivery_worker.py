"""One receiver's lane, step by step, by a clock that stands still."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuagent_alerts.alert import Message
from gpuagent_alerts.notify.outbox.attempt import DELIVERED, DeliveryOutcome, DeliveryPace, MessageContext, Reason
from gpuagent_alerts.notify.outbox.delivery import DeliveryWorker
from tests.alerts.messages import alert, entry
from tests.alerts.notify.outbox.parts import Bench, ScriptedSender, lane
from tests.alerts.store.test_database import fill

REFUSED = DeliveryOutcome(Reason.REFUSED, "it refused the message (400)")
DOWN = DeliveryOutcome(Reason.UNREACHABLE, "it refused the connection")
SLACK = DeliveryPace(min_interval_seconds=1.0, batch=10)


def steps(made: DeliveryWorker, bench: Bench, count: int) -> list[float | None]:
    """So many steps; between them the time passes that the lane asks for."""
    waits = []
    for _ in range(count):
        seconds = asyncio.run(made.step())
        waits.append(seconds)
        bench.clock.advance(seconds or 0.0)
    return waits


class KilledSender(ScriptedSender):
    """The receiver takes the message, and the agent ends before it hears of that."""

    async def send(self, message: Message, context: MessageContext) -> DeliveryOutcome:
        await super().send(message, context)
        if len(self.sent) == 1:
            raise asyncio.CancelledError
        return DELIVERED


def ids(messages: Sequence[Message]) -> list[str]:
    """In the order in which they were sent."""
    return [message.id for message in messages]


def test_it_sends_what_is_due_and_says_when_to_come_again() -> None:
    """A message, then nothing: until it is woken."""
    bench, sender = Bench(), ScriptedSender()
    bench.outbox.enqueue([entry(name="one")])

    assert steps(lane(bench, sender), bench, 2) == [0.0, None]
    assert (ids(sender.sent), bench.states()) == (["one"], {"one": "sent"})
    assert sender.contexts[0] == MessageContext("node7", "http://node7:9837/", bench.clock.wall())


def test_a_failure_is_tried_again_under_the_same_id() -> None:
    """Every attempt has the id of the first; the wait is the outbox's."""
    bench, sender = Bench(), ScriptedSender([DOWN, DOWN])
    bench.outbox.enqueue([entry(name="one")])

    assert steps(lane(bench, sender), bench, 5) == [0.0, 2.0, 0.0, 4.0, 0.0]
    assert ids(sender.sent) == ["one"] * 3


def test_what_was_taken_and_not_recorded_is_sent_again_under_the_same_id(tmp_path: Path) -> None:
    """ALERT-08: an agent that is killed before it records a delivery repeats it, so that the receiver can tell."""
    bench, sender = Bench(path=tmp_path / "state"), KilledSender()
    bench.outbox.enqueue([entry(name="one")])
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(lane(bench, sender).step())
    bench.restart()

    assert bench.states() == {"one": "queued"}
    assert steps(lane(bench, sender), bench, 2) == [0.0, None]
    assert (ids(sender.sent), bench.states()) == (["one"] * 2, {"one": "sent"})


def test_since_when_it_fails() -> None:
    """ALERT-11: from the first of the failures in a row, until an attempt succeeds."""
    bench, sender = Bench(), ScriptedSender([DOWN, DOWN])
    bench.outbox.enqueue([entry(name="one")])
    made, began = lane(bench, sender), bench.clock.now()
    seen = []
    for _ in range(5):
        steps(made, bench, 1)
        seen.append(made.failing_since)

    assert seen == [began] * 4 + [None]


def test_slack_gets_one_message_a_second_with_what_waits() -> None:
    """What waits in several groups goes together, in order, with every id; then a second passes."""
    bench, sender = Bench(), ScriptedSender(pace=SLACK)
    bench.outbox.enqueue([entry(alert(gpu=str(n)), group=str(n), name=f"m{n:02}") for n in range(12)])
    bench.outbox.enqueue([entry(alert(gpu="0", ended=True), group="0", name="end")])
    waits = steps(lane(bench, sender), bench, 4)

    assert waits == [0.0, 1.0, 0.0, 1.0]
    assert [message.id.split() for message in sender.sent] == [
        [f"m{n:02}" for n in range(10)],
        ["m10", "m11", "end"],
    ]
    assert [one.labels["gpu"] for one in sender.sent[1].alerts] == ["10", "11", "0"]
    assert set(bench.states().values()) == {"sent"}


def test_a_batch_that_is_refused_goes_one_by_one() -> None:
    """One bad message must not bury the good ones beside it: Alertmanager answers 400 to all of them."""
    bench = Bench()
    sender = ScriptedSender([REFUSED, DELIVERED, REFUSED, DELIVERED], pace=DeliveryPace(batch=10))
    bench.outbox.enqueue([entry(group=name, name=name) for name in "abc"])
    made = lane(bench, sender)
    steps(made, bench, 5)
    bench.outbox.enqueue([entry(group=name, name=name) for name in "de"])
    steps(made, bench, 1)

    assert ids(sender.sent) == ["a b c", "a", "b", "c", "d e"]
    assert bench.states() == {"a": "sent", "b": "dead", "c": "sent", "d": "sent", "e": "sent"}


def test_a_batch_has_a_sensible_size() -> None:
    """Messages with many alerts are not put together without end."""
    bench, sender = Bench(), ScriptedSender(pace=DeliveryPace(batch=10))
    many = [alert(gpu=str(n)) for n in range(60)]
    bench.outbox.enqueue([entry(*many, group=name, name=name) for name in "abc"])
    steps(lane(bench, sender), bench, 3)

    assert ids(sender.sent) == ["a", "b", "c"]


def test_too_many_requests_stop_what_comes_later_too() -> None:
    """ALERT-07: a message that is queued during the pause waits as well."""
    bench, sender = Bench(), ScriptedSender([DeliveryOutcome(Reason.SLOW_DOWN, "429", 30.0)])
    bench.outbox.enqueue([entry(group="a", name="one")])
    made = lane(bench, sender)
    asyncio.run(made.step())
    bench.outbox.enqueue([entry(group="b", name="two")])

    assert asyncio.run(made.step()) == 30.0
    bench.clock.advance(30.0)
    steps(made, bench, 2)
    assert ids(sender.sent) == ["one", "one", "two"]


def test_a_receiver_that_is_gone_is_left_alone() -> None:
    """410: nothing more is sent, nothing is lost, and why is there to be seen."""
    bench, sender = Bench(), ScriptedSender([DeliveryOutcome(Reason.GONE, "it wants nothing any more (410)")])
    bench.outbox.enqueue([entry(group=name, name=name) for name in "ab"])
    made = lane(bench, sender)

    assert steps(made, bench, 3) == [0.0, None, None]
    assert (ids(sender.sent), bench.states()) == (["a"], {"a": "queued", "b": "queued"})
    assert made.off is not None
    assert str(made.off.outcome) == "it wants nothing any more (410)"


def test_a_full_disk_does_not_repeat_what_was_delivered() -> None:
    """The note of a delivery that cannot be written is written again, in memory then."""
    bench, sender = Bench(), ScriptedSender()
    bench.outbox.enqueue([entry(name="one")])
    fill(bench.store, 0)
    steps(lane(bench, sender), bench, 2)

    assert ids(sender.sent) == ["one"]


def test_it_logs_the_first_failure_and_the_recovery(caplog: pytest.LogCaptureFixture) -> None:
    """A receiver that is down for a day costs two lines of log."""
    caplog.set_level(logging.INFO)
    bench, sender = Bench(), ScriptedSender([DOWN] * 5)
    bench.outbox.enqueue([entry()])
    steps(lane(bench, sender), bench, 12)

    assert [record.message for record in caplog.records] == [
        "cannot deliver to hook: it refused the connection",
        "delivering to hook works again",
    ]
