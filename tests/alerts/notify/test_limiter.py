"""A cap on messages: what is held back, what never is, and that none of it is lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuagent_alerts.alert import Alert, Briefing
from gpuagent_alerts.notify.routes import Recipient
from tests.alerts.messages import alert
from tests.alerts.notify.parts import Desk, route

CAPPED = Recipient("hook", max_messages_per_hour=3)
PAGER = Recipient("hook", max_messages_per_hour=3, digests=False)


def own(number: int, severity: str = "warning", *, ended: bool = False) -> Alert:
    """An alert with a cause of its own."""
    made = alert("Mine", gpu=str(number), ended=ended)
    return replace(made, labels={**made.labels, "severity": severity})


def test_the_hour_ends_with_a_digest() -> None:
    """Of ten that come at once two are told by themselves, the third message tells of the others."""
    desk = Desk(recipients=[CAPPED])
    ten = [own(number) for number in range(10)]

    told = desk.tick(*ten)
    assert [len(message.split()) - 1 for message in told] == [1, 1, 8]
    assert desk.tick(*ten) == []
    assert desk.outbox.counters("hook").held == 8


@pytest.mark.parametrize("restart", [False, True])
def test_what_is_held_back_is_told_when_there_is_room(tmp_path: Path, restart: bool) -> None:
    """An hour later one message has all of it, what has ended meanwhile too; a new process knows of it."""
    desk = Desk(recipients=[CAPPED], path=tmp_path / "state")
    for number in range(3):
        desk.tick(*(own(each) for each in range(number + 1)))
    assert desk.tick(*(own(each) for each in range(6))) == []
    if restart:
        desk.restart()
    assert desk.tick(*(own(each) for each in range(5)), own(5, ended=True)) == []
    (held,) = desk.notifier.held_back()
    assert (held.messages, held.alerts) == (4, ("Mine",))

    fire = [own(each) for each in range(5)]
    assert desk.tick(*fire, seconds=3000.0) == []
    assert desk.tick(*fire, seconds=600.0) == ["hook: +Mine/3 +Mine/4 -Mine/5"]
    assert desk.notifier.held_back() == []


def test_nobody_looks_until_there_is_room() -> None:
    """What is held back is due when the oldest message of the hour is an hour old, and no sooner."""
    desk = Desk(recipients=[CAPPED])
    six = [own(each) for each in range(6)]
    names = {each.fingerprint: True for each in six}
    for number in range(1, 4):
        desk.tick(*six[:number])
    desk.tick(*six)
    desk.tick(*six)

    desk.clock.advance(3500.0)
    assert not desk.notifier.is_due(names)
    desk.clock.advance(100.0)
    assert desk.notifier.is_due(names)


def test_what_is_critical_waits_for_no_warning() -> None:
    """It is told at once, whatever else is held back; so is a warning that becomes critical, with what it knows."""
    desk = Desk(recipients=[CAPPED])
    warnings = [own(number) for number in range(5)]
    for number in range(1, 4):
        desk.tick(*warnings[:number])
    desk.tick(*warnings)

    assert desk.tick(*warnings, own(7, "critical")) == ["hook: +Mine/7"]
    assert desk.tick(*warnings, own(7, "critical"), own(4, "critical")) == ["hook: +Mine/4 +Mine/4"]
    (held,) = desk.notifier.held_back()
    assert held.messages == 1


def test_a_pager_gets_no_digest() -> None:
    """Each of its messages is the state of one incident: they follow one by one as there is room, in order."""
    desk = Desk(recipients=[PAGER])
    five = [own(number) for number in range(5)]

    assert desk.tick(*five) == ["hook: +Mine/0", "hook: +Mine/1", "hook: +Mine/2"]
    assert desk.tick(*five, seconds=3600.0) == ["hook: +Mine/3", "hook: +Mine/4"]


def test_a_cap_that_is_lifted_lets_all_go() -> None:
    """After a reload without a cap what was held back is sent."""
    desk = Desk(recipients=[CAPPED])
    many = [own(number) for number in range(5)]
    for number in range(1, 4):
        desk.tick(*many[:number])
    assert desk.tick(*many) == []
    desk.recipients = [Recipient("hook")]
    desk.begin()

    assert desk.tick(*many) == ["hook: +Mine/3", "hook: +Mine/4"]


def test_a_digest_has_a_line_for_each_incident() -> None:
    """Beginning and end of one are one line, as the last message has it, with how many it stands for."""
    desk = Desk(recipients=[CAPPED])
    desk.notifier.brief = lambda incident, _: Briefing(f"{incident.news} {incident.labels['gpu']}")
    for number in range(3):
        desk.tick(*(own(each) for each in range(number + 1)))
    desk.tick(*(own(each) for each in range(6)))
    desk.tick(*(own(each) for each in range(5)), own(5, ended=True))
    desk.tick(*(own(each) for each in range(5)), seconds=3600.0)

    (digest,) = [one.digest for one in desk.messages if one.digest]
    assert [(one.headline, one.messages, one.is_over) for one in digest] == [
        ("began 3", 1, False), ("began 4", 1, False), ("ended 5", 2, True),
    ]  # fmt: skip


@pytest.mark.parametrize("restart", [False, True])
def test_reminders_take_no_room_from_anything_else(tmp_path: Path, restart: bool) -> None:
    """However many went out: a beginning and an end find the room that they would have had without them."""
    desk = Desk(recipients=[CAPPED], routes=[route("hook", repeat=60.0)], path=tmp_path / "state")
    assert desk.tick(own(0)) == ["hook: +Mine/0"]
    reminders = [told for _ in range(10) for told in desk.tick(own(0), seconds=60.0)]
    assert reminders == ["hook: +Mine/0"] * 2, "the rest of the cap"
    if restart:
        desk.restart()

    assert desk.tick(own(0), own(1)) == ["hook: +Mine/1"]
    assert desk.tick(own(0, ended=True), own(1)) == ["hook: -Mine/0"]
    assert desk.notifier.held_back() == []


@pytest.mark.parametrize("recipient", [CAPPED, PAGER], ids=["digest", "pager"])
def test_an_end_is_never_held_back_from_who_was_told_of_the_beginning(recipient: Recipient) -> None:
    """A page that was cured must not stay open; an end of what is still held back comes after its beginning."""
    desk = Desk(recipients=[recipient])
    alerts = [own(number) for number in range(5)]
    for number in range(1, 4):
        desk.tick(*alerts[:number])
    assert desk.tick(*alerts) == []

    assert desk.tick(own(0, ended=True), *alerts[1:]) == ["hook: -Mine/0"]
    assert desk.tick(own(1, ended=True), *alerts[2:4], own(4, ended=True)) == ["hook: -Mine/1"]
    later = desk.tick(*alerts[2:4], seconds=3600.0)
    told = [word for message in later for word in message.split()[1:]]
    assert told.index("-Mine/4") > told.index("+Mine/3")
    assert "+Mine/4" not in told[told.index("-Mine/4") :]


def test_what_is_held_back_for_too_long_is_given_up() -> None:
    """A receiver that gets no digests may never catch up: what is as old as a message may get is a dead letter."""
    desk = Desk(recipients=[PAGER])
    for number in range(1, 9):
        desk.tick(*(own(each) for each in range(number)))
    (held,) = desk.notifier.held_back()
    desk.clock.advance(7 * 86_400.0)
    desk.outbox.expire("hook", 6 * 86_400.0)

    assert desk.notifier.held_back() == []
    assert desk.outbox.counters("hook").dead == held.messages
