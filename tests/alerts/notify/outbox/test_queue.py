"""The outbox: order, back-off, dead letters, and what a restart or a set clock changes: nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuagent_alerts.notify.outbox.attempt import DELIVERED, DeliveryOutcome, Reason
from gpuagent_alerts.notify.outbox.entry import Occasion, dump_message, load_message, message_id
from gpuagent_alerts.notify.outbox.eviction import OutboxBounds
from tests.alerts.messages import alert, entry, message
from tests.alerts.notify.outbox.parts import Bench

DOWN = DeliveryOutcome(Reason.UNREACHABLE, "it refused the connection")
REFUSED = DeliveryOutcome(Reason.REFUSED, "it refused the message (400)")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """An outbox in a file; every wait is as long as it can be."""
    return Bench(path=tmp_path / "alerts.db")


def test_order_holds_within_a_group_and_groups_do_not_wait(bench: Bench) -> None:
    """The oldest of each group is due; what failed holds up its own group only."""
    bench.outbox.enqueue([entry(group=group, name=f"{group}{n}") for n in (1, 2) for group in ("a", "b")])
    first = bench.attempt(DOWN)

    assert (first, bench.take()) == (["a1"], ["b1"])
    bench.attempt(DELIVERED)
    assert bench.take() == ["b2"]
    bench.clock.advance(2.0)
    assert bench.take() == ["a1", "b2"]


def test_back_off_doubles_to_five_minutes(bench: Bench) -> None:
    """2, 4, 8 ... 256, 300, 300 seconds at most, when nothing else is asked for."""
    bench.outbox.enqueue([entry()])
    waits = []
    for _ in range(10):
        bench.attempt(DOWN)
        seconds = bench.outbox.seconds_until_due("hook")
        assert seconds is not None
        waits.append(seconds)
        bench.clock.advance(seconds)

    assert waits == [2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


def test_a_receiver_that_asks_for_time_gets_it_as_a_whole(bench: Bench) -> None:
    """After 429 nothing is sent to it before Retry-After is over, no group; other receivers go on."""
    bench.outbox.enqueue([entry(group="a"), entry(group="b"), entry(receiver="other")])
    bench.attempt(DeliveryOutcome(Reason.SLOW_DOWN, "429", 30.0))

    assert (bench.take(), len(bench.take("other"))) == ([], 1)
    assert bench.outbox.seconds_until_due("hook") == 30.0
    bench.clock.advance(30.0)
    assert len(bench.take()) == 2


def test_a_retry_after_has_a_bound(bench: Bench) -> None:
    """A receiver that asks for a year gets an hour."""
    bench.outbox.enqueue([entry()])
    bench.attempt(DeliveryOutcome(Reason.UNAVAILABLE, "503", 365 * 86400.0))

    assert bench.outbox.seconds_until_due("hook") == 3600.0


def test_what_is_refused_is_kept_and_can_be_replayed(bench: Bench) -> None:
    """A dead letter is visible with its reason, does not hold up its group, and goes again in its old place."""
    bench.outbox.enqueue([entry(name="one"), entry(name="two")])
    bench.attempt(REFUSED)
    (dead,) = bench.outbox.dead()
    later = bench.take()
    replayed = bench.outbox.replay("one")

    assert (dead.message.id, dead.attempts, dead.last_error) == ("one", 1, "it refused the message (400)")
    assert (later, replayed) == (["two"], 1)
    assert [m.id for m in bench.drain()] == ["one", "two"]
    assert bench.outbox.counters("hook").dead == 1


def test_a_dead_letter_from_the_past_is_not_replayed(bench: Bench) -> None:
    """When a newer message of its group got through, an old firing would open again what is over."""
    bench.outbox.enqueue([entry(name="firing"), entry(alert(ended=True), name="resolved")])
    bench.attempt(REFUSED)
    bench.attempt(DELIVERED)

    assert (bench.outbox.dead(), bench.outbox.replay()) == ([], 0)
    assert bench.states() == {"firing": "dropped", "resolved": "sent"}


def test_replaying_what_is_not_there_does_nothing(bench: Bench) -> None:
    """An id that is no dead letter's replays none."""
    bench.outbox.enqueue([entry(name="one")])

    assert (bench.outbox.replay("one"), bench.outbox.replay("two")) == (0, 0)


def test_a_repeat_gives_way_to_what_is_newer(bench: Bench) -> None:
    """A repeat that was not sent is merged into the next message of its group, and counted."""
    bench.outbox.enqueue([entry(name="firing")])
    bench.outbox.enqueue([entry(name="again", occasion=Occasion.REPEAT)])
    bench.outbox.enqueue([entry(name="and again", occasion=Occasion.REPEAT), entry(group="b", name="other")])
    bench.outbox.enqueue([entry(alert(ended=True), name="resolved")])

    assert [m.id for m in bench.drain()] == ["firing", "other", "resolved"]
    assert bench.outbox.counters("hook").merged == 2


def test_a_repeat_of_a_repeat_keeps_its_back_off(bench: Bench) -> None:
    """ALERT-07: a receiver that is down is not tried more often because there is always a fresh repeat."""
    bench.outbox.enqueue([entry(name="one", occasion=Occasion.REPEAT)])
    for _ in range(3):
        bench.clock.advance(bench.outbox.seconds_until_due("hook") or 0.0)
        bench.attempt(DOWN)
    bench.outbox.enqueue([entry(name="two", occasion=Occasion.REPEAT)])

    assert (bench.take(), bench.outbox.seconds_until_due("hook")) == ([], 8.0)


def test_a_restart_goes_on_where_it_was(bench: Bench) -> None:
    """ALERT-08: what waits still waits, in order, as long as it would have, with its attempts and its ids."""
    bench.outbox.enqueue([entry(group=g, name=f"{g}{n}") for g in ("a", "b") for n in (1, 2)])
    bench.attempt(DOWN)
    bench.attempt(DELIVERED)
    bench.restart()

    assert (bench.take(), bench.outbox.seconds_until_due("hook")) == (["b2"], 0.0)
    bench.clock.advance(2.0)
    assert [m.id for m in bench.drain()] == ["a1", "a2", "b2"]


@pytest.mark.parametrize("seconds", [-40 * 86400.0, -5.0, 5.0, 40 * 86400.0])
def test_setting_the_clock_changes_no_wait(bench: Bench, seconds: float) -> None:
    """A wall clock that is set moves what waits along: neither sooner nor later, nor is anything too old at once."""
    bench.outbox.enqueue([entry()])
    for _ in range(4):
        bench.clock.advance(bench.outbox.seconds_until_due("hook") or 0.0)
        bench.attempt(DOWN)
    bench.clock.step(seconds)
    bench.outbox.expire("hook", 86400.0)

    assert (bench.take(), bench.outbox.seconds_until_due("hook")) == ([], 16.0)


def test_a_clock_that_was_set_back_meanwhile_makes_no_wait_longer(bench: Bench) -> None:
    """After a restart with a clock of last month, a message waits for its back-off, not for a month."""
    bench.outbox.enqueue([entry()])
    bench.attempt(DOWN)
    bench.store.close()
    bench.clock.step(-30 * 86400.0)
    bench.clock.advance(1.0)
    bench.open()

    assert bench.outbox.seconds_until_due("hook") == 2.0


def test_what_is_too_old_is_given_up(bench: Bench) -> None:
    """After the time that its receiver's kind gives it, a message is a dead letter with both reasons."""
    bench.outbox.enqueue([entry(name="old")])
    bench.attempt(DOWN)
    bench.clock.advance(86401.0)
    bench.outbox.enqueue([entry(name="new")])
    bench.outbox.expire("hook", 86400.0)
    (dead,) = bench.outbox.dead("hook")

    assert (dead.message.id, dead.last_error) == ("old", "not delivered within 24 h: it refused the connection")
    assert bench.take() == ["new"]
    assert bench.outbox.replay("old") == 1
    bench.outbox.expire("hook", 86400.0)
    assert bench.outbox.dead() == []


def test_what_is_for_nobody_is_given_up(bench: Bench) -> None:
    """Messages to a receiver that was taken out of the configuration do not wait for ever."""
    bench.outbox.enqueue([entry(name="one"), entry(receiver="gone", name="two")])
    bench.outbox.retain(["hook"])

    assert [dead.message.id for dead in bench.outbox.dead()] == ["two"]
    assert bench.states()["one"] == "queued"


def test_a_receiver_that_wants_nothing_keeps_its_messages(bench: Bench) -> None:
    """410 buries no message: somebody may put the receiver right."""
    bench.outbox.enqueue([entry(name="one")])
    bench.attempt(DeliveryOutcome(Reason.GONE, "410"))

    assert bench.states() == {"one": "queued"}


def test_history_is_bounded(tmp_path: Path) -> None:
    """What was sent is forgotten in the end; dead letters too, and that is counted."""
    bench = Bench(path=tmp_path / "alerts.db", bounds=OutboxBounds(history=3, dead=2))
    bench.outbox.enqueue([entry(group=str(n), name=f"sent{n}") for n in range(5)])
    bench.attempt(DELIVERED, count=5)
    bench.outbox.enqueue([entry(group=str(n), name=f"dead{n}") for n in range(5, 10)])
    bench.attempt(REFUSED, count=5)
    bench.outbox.prune()

    assert bench.states() == {"sent2": "sent", "sent3": "sent", "sent4": "sent", "dead8": "dead", "dead9": "dead"}
    assert bench.outbox.counters("hook").dropped == 3


def test_the_figures_tell_what_waits(bench: Bench) -> None:
    """Queued, dead, the age of the oldest that waits, and the counters, by receiver."""
    bench.outbox.enqueue([entry(group="a"), entry(group="b"), entry(group="c"), entry(receiver="slack")])
    bench.clock.advance(60.0)
    bench.attempt(REFUSED)
    bench.attempt(DELIVERED)
    bench.attempt(DOWN)
    figures = bench.outbox.figures()
    hook, slack = figures["hook"], figures["slack"]

    assert (hook.queued, hook.dead, hook.oldest_undelivered_seconds) == (1, 1, 60.0)
    assert (hook.counters.sent, hook.counters.failed, hook.counters.dead) == (1, 2, 1)
    assert (slack.queued, slack.oldest_undelivered_seconds, slack.counters.sent) == (1, 60.0, 0)


def test_a_transaction_that_fails_counts_nothing_and_wakes_nobody(bench: Bench) -> None:
    """What was not kept did not happen."""
    woken: list[object] = []
    bench.outbox.on_queued = woken.append

    def fail() -> None:
        with bench.store.transaction():
            bench.outbox.enqueue([entry(name="one", occasion=Occasion.REPEAT)])
            bench.outbox.enqueue([entry(name="two", occasion=Occasion.REPEAT)])
            raise KeyError

    with pytest.raises(KeyError):
        fail()

    assert (bench.states(), woken, bench.outbox.counters("hook").merged) == ({}, [], 0)
    bench.outbox.enqueue([entry()])
    assert woken == [{"hook"}]


def test_a_message_comes_back_as_it_was() -> None:
    """Values that JSON does not know, and half a surrogate pair in a name, survive the store."""
    for value in (float("inf"), float("-inf"), 0.1):
        odd = alert(process="\ud800\x00é😀", ended=True)
        sent = message(type(odd)(odd.labels, odd.annotations, odd.status, odd.starts_at, odd.ends_at, value))
        text = dump_message(sent)

        assert text.isascii()
        assert load_message(text, message_id=sent.id, receiver=sent.receiver, group=sent.group) == sent
    assert load_message(dump_message(message(odd)), message_id="", receiver="", group="").alerts[0].value == 1.0


def test_ids_are_unique_and_in_order() -> None:
    """A ULID: time first, then chance, in 26 characters."""
    ids = [message_id(1_700_000_000 + n) for n in range(100)]

    assert ids == sorted(ids)
    assert len({message_id(1_700_000_000.0) for _ in range(1000)}) == 1000
    assert message_id(0.0, lambda _: 0) == "gpa_" + "0" * 26
    assert message_id(1e300, lambda bits: 2**bits - 1) == "gpa_7" + "Z" * 25
