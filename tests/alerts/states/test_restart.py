"""ALERT-08: a restart, or a reboot, takes nothing from an alert, and gives it nothing."""

from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent_alerts.states.instance import load_instance
from gpuagent_alerts.states.machine import AlertStates
from tests.alerts.states.rules import WALL, alert_rule, changes, only, row


def restarted(states: AlertStates, now: float) -> AlertStates:
    """Dumped, and loaded at another clock, as after a reboot, through JSON."""
    text = json.dumps(states.dump(), allow_nan=False)
    new = AlertStates(states.rule)
    assert new.load(json.loads(text), now) == 0
    return new


def test_a_firing_alert_goes_on() -> None:
    """ALERT-08: no second beginning, and its end is told."""
    states = AlertStates(alert_rule("for: 5s"))
    states.evaluate(0, [row()], wall_seconds=WALL)
    states.evaluate(5, [row()], wall_seconds=WALL + 5)
    states = restarted(states, 100_000)
    goes_on = states.evaluate(100_010, [row()], wall_seconds=WALL + 500)
    assert changes(goes_on) == [("continues", "")]
    assert only(goes_on).starts_at == WALL + 5
    assert changes(states.evaluate(100_015, [], wall_seconds=WALL + 505)) == [("ended", "")]


def test_an_alert_that_is_over_after_the_restart_ends() -> None:
    """ALERT-08: at the first evaluation."""
    states = AlertStates(alert_rule())
    states.evaluate(0, [row()], wall_seconds=WALL)
    states = restarted(states, 50)
    assert changes(states.evaluate(60, [], wall_seconds=WALL + 60)) == [("ended", "")]


def test_the_time_in_between_does_not_count() -> None:
    """ALERT-08: 4 s of `for` have passed before, whatever the clock has done since."""
    states = AlertStates(alert_rule("for: 10s"))
    states.evaluate(0, [row()], wall_seconds=WALL)
    states.evaluate(4, [row()], wall_seconds=WALL + 4)
    states = restarted(states, 1_000_000)
    assert states.evaluate(1_000_100, [row()], wall_seconds=WALL) == []
    assert states.evaluate(1_000_105, [row()], wall_seconds=WALL) == []
    assert changes(states.evaluate(1_000_106, [row()], wall_seconds=WALL)) == [("started", "")]


def test_the_same_for_keep_firing_for() -> None:
    """ALERT-08: and for an alert that is only kept."""
    states = AlertStates(alert_rule("keep_firing_for: 10s"))
    states.evaluate(0, [row()], wall_seconds=WALL)
    states.evaluate(1, [], wall_seconds=WALL + 1)
    states.evaluate(5, [], wall_seconds=WALL + 5)
    states = restarted(states, 70)
    assert changes(states.evaluate(90, [], wall_seconds=WALL + 90)) == [("continues", "")]
    assert changes(states.evaluate(96, [], wall_seconds=WALL + 96)) == [("ended", "")]


def test_a_second_restart_before_the_first_evaluation_loses_nothing() -> None:
    """The clocks stand still until there is data."""
    states = AlertStates(alert_rule("for: 10s"))
    states.evaluate(0, [row()], wall_seconds=WALL)
    states.evaluate(4, [row()], wall_seconds=WALL + 4)
    states = restarted(restarted(states, 1000), 20)
    states.evaluate(30, [row()], wall_seconds=WALL)
    assert states.dump()[0]["active_for"] == pytest.approx(4)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1.5])
def test_every_value_survives(value: float) -> None:
    """JSON has no NaN and no infinity."""
    states = AlertStates(alert_rule())
    states.evaluate(0, [row(value)], wall_seconds=WALL)
    (instance,) = restarted(states, 0).instances
    assert instance.value == value or (math.isnan(instance.value) and math.isnan(value))


def test_what_cannot_be_read_costs_itself_alone() -> None:
    """A dump that is damaged is counted, and the others are taken."""
    states = AlertStates(alert_rule())
    states.evaluate(0, [row(gpu="0"), row(gpu="1")], wall_seconds=WALL)
    good, bad = states.dump()
    new = AlertStates(states.rule)
    assert new.load([{**bad, "state": "odd"}, good, {}, {**bad, "active_for": -1}, {**bad, "labels": 5}], 0) == 4
    assert [instance.labels["gpu"] for instance in new.instances] == ["0"]


@given(st.dictionaries(st.sampled_from(["labels", "state", "value", "active_for", "starts_at"]), st.none() | st.text()))
def test_no_damage_raises_anything_else(damage: dict[str, object]) -> None:
    """What comes from a disk may be anything."""
    states = AlertStates(alert_rule())
    states.evaluate(0, [row()], wall_seconds=WALL)
    dump: dict[str, object] = {**states.dump()[0], **damage}
    try:
        load_instance(dump, 0)
    except ValueError:
        return
    assert dump


def test_restarts_at_any_moment_change_nothing() -> None:
    """ALERT-08: 100 seeded stories with restarts, beside the same ones with a clock that stood still instead."""
    rnd = random.Random(3)
    restarts = 0
    for _ in range(100):
        rule = alert_rule(f"for: {rnd.choice((0, 3, 10))}s, keep_firing_for: {rnd.choice((0, 3, 10))}s")
        steady, shaken = AlertStates(rule), AlertStates(rule)
        steady_clock = shaken_clock = 0.0
        for step in range(60):
            rows = [row(gpu=gpu) for gpu in "012" if rnd.random() < 0.7]
            if rnd.random() < 0.2:
                boot = rnd.uniform(0, 1000)
                shaken = restarted(shaken, boot)
                shaken_clock = boot + rnd.uniform(0, 100)
                restarts += 1
            else:
                steady_clock += 1
                shaken_clock += 1
            wall = WALL + step
            expected = steady.evaluate(steady_clock, rows, wall_seconds=wall)
            assert shaken.evaluate(shaken_clock, rows, wall_seconds=wall) == expected
    assert restarts > 500
