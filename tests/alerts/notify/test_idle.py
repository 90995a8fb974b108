"""When there may be something to tell, and when nobody need even look."""

from __future__ import annotations

import pytest

from gpuagent_alerts.alert import Alert
from gpuagent_alerts.notify.routes import Recipient, Routes
from tests.alerts.messages import alert
from tests.alerts.notify.parts import Desk, route

ONE = alert(gpu="0")
AM = Recipient("am", one_by_one=True, everything=True, repeat_seconds=60.0, resolved_for_seconds=300.0)


def due(desk: Desk, *firing: Alert, seconds: float = 0.0) -> bool:
    """After so long, with these firing."""
    desk.clock.advance(seconds)
    return desk.notifier.is_due({each.fingerprint: each.holds for each in firing})


def settled(desk: Desk, *firing: Alert) -> None:
    """They have been told, and nothing more is to be told of them now."""
    desk.tick(*firing)
    desk.tick(*firing, seconds=0.0)
    assert not due(desk, *firing)


def test_nobody_looks_while_nothing_changes() -> None:
    """A node with nothing new, firing alerts or none, costs neither a thread nor a transaction."""
    desk = Desk()
    assert due(desk)  # what a dead agent has told is to be looked at
    settled(desk)
    assert not due(desk, seconds=30 * 86400.0)
    settled(desk, ONE)
    assert not due(desk, ONE, seconds=3600.0)


def test_who_fires() -> None:
    """One more or one less. What was told a moment ago is looked at once more: it may have been too much at once."""
    desk = Desk()
    desk.tick(ONE)
    assert due(desk, ONE)
    settled(desk, ONE)

    assert due(desk)
    assert due(desk, ONE, alert(gpu="1"))
    assert not due(desk, ONE)


def test_a_repeat_is_due_to_the_second() -> None:
    """The time of the next repeat is known in advance, and not missed."""
    desk = Desk()
    settled(desk, ONE)

    assert not due(desk, ONE, seconds=4 * 3600.0 - 1.0)
    assert due(desk, ONE, seconds=1.0)


def test_an_end_that_is_told_again() -> None:
    """An Alertmanager hears of an end for five minutes; then it is forgotten, and nobody looks any more."""
    desk = Desk(recipients=[AM])
    settled(desk, ONE)
    settled(desk)

    assert due(desk, seconds=60.0)
    for _ in range(5):
        desk.tick(seconds=60.0)
    settled(desk)
    assert not due(desk, seconds=3600.0)


def test_an_acknowledged_alert() -> None:
    """Its repeats are due and not told: it is looked at again when the acknowledgement goes, and not all the time."""
    desk = Desk()
    settled(desk, ONE)
    desk.acks.add(ONE, comment="", creator="alice")
    assert due(desk, ONE)
    assert desk.tick(ONE, seconds=5 * 3600.0) == []
    assert not due(desk, ONE, seconds=3600.0)

    desk.acks.remove(ONE.fingerprint)
    assert due(desk, ONE)
    assert desk.tick(ONE) == ["hook: +GpuLost/0"]


def test_a_silence_begins_and_ends() -> None:
    """A silence acts at once, and what it hid is told when it ends, by itself or by hand."""
    desk = Desk()
    settled(desk)
    for by_hand in (False, True):
        name = desk.silence('gpu="0"', seconds=600.0)
        assert due(desk)
        settled_silently(desk)
        assert not due(desk, ONE, seconds=590.0)
        if by_hand:
            desk.silences.expire(name)
        else:
            desk.clock.advance(5.0)
        assert due(desk, ONE)
        assert desk.tick(ONE) == ["hook: +GpuLost/0"]
        settled(desk)


def settled_silently(desk: Desk) -> None:
    """The alert fires and is silenced."""
    assert desk.tick(ONE) == []
    assert not due(desk, ONE)


@pytest.mark.parametrize("seconds", [-86400.0, 86400.0])
def test_the_clock_is_set(seconds: float) -> None:
    """Somebody sets the wall clock: the repeat is due when its time has passed, not when a clock says so."""
    desk = Desk()
    settled(desk, ONE)
    desk.clock.step(seconds)
    assert due(desk, ONE)
    assert desk.tick(ONE) == []

    assert not due(desk, ONE, seconds=3 * 3600.0)
    assert due(desk, ONE, seconds=3600.0)


def test_other_routes() -> None:
    """A reload is followed at the next evaluation, also one to the same routes."""
    desk = Desk(recipients=[Recipient("hook"), Recipient("pager")])
    settled(desk, ONE)
    desk.notifier.routes = Routes([route("pager")], [Recipient("hook"), Recipient("pager")])

    assert due(desk, ONE)
