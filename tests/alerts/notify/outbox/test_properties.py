"""What holds of the outbox whatever happens to it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpuagent_alerts.alert import Alert, Message, Status
from gpuagent_alerts.notify.outbox.attempt import (
    CAP_SECONDS,
    DELIVERED,
    MAX_RETRY_AFTER_SECONDS,
    DeliveryOutcome,
    Reason,
    wait_seconds,
)
from gpuagent_alerts.notify.outbox.entry import Occasion
from gpuagent_alerts.notify.outbox.eviction import OutboxBounds
from tests.alerts.messages import alert, entry
from tests.alerts.notify.outbox.parts import Bench, SteppingClock

OUTCOMES = st.sampled_from(
    [
        DELIVERED,
        DeliveryOutcome(Reason.UNREACHABLE),
        DeliveryOutcome(Reason.UNAVAILABLE, "", 20.0),
        DeliveryOutcome(Reason.SLOW_DOWN, "", 3.0),
        DeliveryOutcome(Reason.SLOW_DOWN),
    ]
)


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True), st.sampled_from(Reason))
def test_back_off_stays_in_its_bounds(attempts: int, chance: float, reason: Reason) -> None:
    """Never negative, never above the cap, and below what the attempts so far allow."""
    wait = wait_seconds(attempts, DeliveryOutcome(reason), lambda: chance)

    assert 0 <= wait <= min(CAP_SECONDS, 2.0 ** min(attempts, 100))


@given(st.floats(0, 1), st.floats(-1e18, 1e18))
def test_what_is_asked_for_is_bounded(chance: float, asked: float) -> None:
    """Whatever a receiver asks for, it is between nothing and an hour."""
    wait = wait_seconds(1, DeliveryOutcome(Reason.UNAVAILABLE, "", asked), lambda: chance)

    assert 0 <= wait <= MAX_RETRY_AFTER_SECONDS
    assert wait == asked or not 0 <= asked <= MAX_RETRY_AFTER_SECONDS


class OrderMachine(RuleBasedStateMachine):
    """Messages come, attempts fail and succeed, time passes, clocks jump, the process restarts."""

    @initialize()
    def begin(self) -> None:
        self.bench = Bench(uniform=lambda: 0.7)
        self.queued: defaultdict[str, list[str]] = defaultdict(list)
        self.delivered: defaultdict[str, list[str]] = defaultdict(list)
        self.count = 0

    @rule(groups=st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True))
    def enqueue(self, groups: list[str]) -> None:
        entries = []
        for group in groups:
            self.count += 1
            entries.append(entry(group=group, name=f"{self.count:04}"))
            self.queued[group].append(f"{self.count:04}")
        self.bench.outbox.enqueue(entries)

    @rule(outcome=OUTCOMES, count=st.integers(1, 3))
    def attempt(self, outcome: DeliveryOutcome, count: int) -> None:
        taken = self.bench.outbox.take_due("hook", count)
        assert len({one.message.group for one in taken}) == len(taken)
        self.bench.outbox.record_outcome(taken, outcome)
        if outcome.ok:
            for one in taken:
                self.delivered[one.message.group].append(one.message.id)
        elif outcome.pause and taken:
            assert self.bench.take() == []

    @rule(seconds=st.floats(0, 400))
    def pass_time(self, seconds: float) -> None:
        self.bench.clock.advance(seconds)

    @rule(seconds=st.floats(-1e6, 1e6))
    def set_clock(self, seconds: float) -> None:
        self.bench.clock.step(seconds)

    @precondition(lambda self: self.count)
    @rule()
    def no_wait_is_too_long(self) -> None:
        seconds = self.bench.outbox.seconds_until_due("hook")
        assert seconds is None or 0 <= seconds <= CAP_SECONDS

    @invariant()
    def in_order_and_once(self) -> None:
        for group, ids in self.delivered.items():
            assert ids == self.queued[group][: len(ids)]

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            for one in self.bench.drain():
                self.delivered[one.group].append(one.id)
            self.bench.store.close()
            assert self.delivered == {group: ids for group, ids in self.queued.items() if ids}


TestOrder = OrderMachine.TestCase
TestOrder.settings = settings(max_examples=40, stateful_step_count=25)


def story(flips: list[tuple[int, bool]]) -> list[list[Alert]]:
    """Messages of one group that follow each other: every one has all that fires, and what just ended."""
    firing: set[int] = set()
    messages = []
    for number, repeat in flips:
        ended = set() if repeat else firing & {number}
        if not repeat:
            firing ^= {number}
        alerts = [alert(gpu=str(n)) for n in sorted(firing)] + [alert(gpu=str(n), ended=True) for n in sorted(ended)]
        if alerts:
            messages.append(alerts)
    return messages


class Teller:
    """Puts messages of one group in as routing does: what was lost is news again, and its end is not told."""

    def __init__(self, bench: Bench, group: str) -> None:
        self.bench = bench
        self.group = group
        self.known: set[str] = set()
        self.count = 0

    def tell(self, alerts: list[Alert], tellers: dict[str, Teller]) -> None:
        alerts = [one for one in alerts if one.status is Status.FIRING or one.fingerprint in self.known]
        if not alerts:
            return
        firing = {one.fingerprint for one in alerts if one.status is Status.FIRING}
        news = tuple(firing - self.known)
        ended = len(firing) < len(alerts)
        occasion = Occasion.RESOLVED if ended else Occasion.FIRING if news else Occasion.REPEAT
        self.known = firing
        self.count += 1
        put = replace(entry(*alerts, group=self.group, occasion=occasion), news=news)
        for loss in self.bench.outbox.enqueue([put]):
            tellers[loss.group].known -= set(loss.untold)


@pytest.mark.slow
@settings(max_examples=150)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.booleans()), max_size=25),
    st.integers(1, 6),
    st.integers(0, 5),
)
def test_no_end_arrives_without_its_beginning(steps: list[tuple[str, int, bool]], rows: int, sent_first: int) -> None:
    """However little room there is: an end is delivered only after its beginning, and the bounds hold always."""
    bench = Bench(clock=SteppingClock(), bounds=OutboxBounds(rows=rows))
    tellers = {group: Teller(bench, group) for group in "ab"}
    stories = {group: story([(n, r) for g, n, r in steps if g == group]) for group in tellers}
    arrived: list[Message] = []
    for group, teller in tellers.items():
        for place, alerts in enumerate(stories[group]):
            teller.tell(alerts, tellers)
            if place < sent_first:
                taken = bench.outbox.take_due("hook", 1)
                bench.outbox.record_outcome(taken, DELIVERED)
                arrived += [one.message for one in taken]
            ((queued,),) = bench.store.execute("SELECT count(*) FROM outbox WHERE state = 'queued'")
            assert queued <= rows
    arrived += bench.drain()
    heard: set[tuple[str, str]] = set()
    for message in arrived:
        for one in message.alerts:
            if one.status is Status.FIRING:
                heard.add((message.group, one.fingerprint))
            else:
                assert (message.group, one.fingerprint) in heard
    counters = bench.outbox.counters("hook")
    assert len(arrived) + counters.dropped + counters.merged == sum(teller.count for teller in tellers.values())
    bench.store.close()


def test_repeats_are_given_up_first() -> None:
    """ALERT-07: when there is no room, what says nothing new goes first, the oldest of it before the newer."""
    bench = Bench(bounds=OutboxBounds(rows=3))
    for number, occasion in enumerate((Occasion.FIRING, Occasion.REPEAT, Occasion.REPEAT, Occasion.FIRING)):
        bench.outbox.enqueue([entry(group=str(number), name=f"m{number}", occasion=occasion)])

    assert bench.states() == {"m0": "queued", "m1": "dropped", "m2": "queued", "m3": "queued"}
    assert bench.outbox.counters("hook").dropped == 1


def test_an_end_is_given_up_last() -> None:
    """A receiver that never hears of an end takes the alert for firing for ever: a beginning goes before it."""
    bench = Bench(bounds=OutboxBounds(rows=2))
    bench.outbox.enqueue([entry(alert(ended=True), group="a", name="end")])
    bench.outbox.enqueue([entry(group="b", name="begin1"), entry(group="c", name="begin2")])

    assert bench.states() == {"end": "queued", "begin1": "dropped", "begin2": "queued"}


def test_size_is_bounded_too() -> None:
    """Few large messages count as much as many small ones."""
    bench = Bench(bounds=OutboxBounds(size_bytes=20_000))
    for number in range(40):
        bench.outbox.enqueue([entry(alert(command="x" * 1000), group=str(number))])
    ((size,),) = bench.store.execute("SELECT sum(bytes) FROM outbox WHERE state = 'queued'")

    assert 15_000 < size <= 20_000


def test_what_is_on_its_way_is_not_given_up() -> None:
    """A message whose answer is awaited may have arrived: dropping it would lose its end as well."""
    bench = Bench(bounds=OutboxBounds(rows=1))
    bench.outbox.enqueue([entry(name="flying")])
    taken = bench.outbox.take_due("hook", 1)
    bench.outbox.enqueue([entry(alert(ended=True), name="end")])
    bench.outbox.record_outcome(taken, DELIVERED)

    assert bench.states() == {"flying": "sent", "end": "dropped"}
