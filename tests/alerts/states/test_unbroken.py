"""For how long an alert has been true without a break: the clock that remedies go by, apart from the alert's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpuagent_alerts.promql.series import SeriesIndex
from gpuagent_alerts.promql.values import LabelSet
from gpuagent_alerts.states.engine import RuleEngine
from gpuagent_alerts.states.instance import State
from gpuagent_alerts.states.machine import AlertStates
from gpuagent_alerts.states.missing import Missing
from tests.alerts.states.rules import WALL, alert_rule, groups, row

OPTIONS = "for: 20s, keep_firing_for: 100s"
TRUE = SeriesIndex([("m", LabelSet({}), 1.0)])


def evaluate(states: AlertStates, seconds: float, *, true: bool = True, missing: bool = False) -> None:
    """Evaluate once."""
    rows = [row()] if true else []
    states.evaluate(seconds, rows, lambda _: missing, wall_seconds=WALL + seconds)


def held(states: AlertStates) -> float:
    """For how long the one instance has been true."""
    (instance,) = states.instances
    assert instance.state is State.FIRING
    return states.held_seconds(instance)


def firing(longest_gap_seconds: float = 15.0) -> AlertStates:
    """An alert that fires since second 20, true from second 0 to 30."""
    states = AlertStates(alert_rule(OPTIONS), longest_gap_seconds=longest_gap_seconds)
    for second in (0, 10, 20, 30):
        evaluate(states, second)
    return states


def test_without_a_break_it_is_as_old_as_the_alert() -> None:
    """An alert that was true all the time is a reason to act in the moment in which it fires."""
    states = AlertStates(alert_rule(OPTIONS))
    for second in (0, 10, 20):
        evaluate(states, second)
    assert held(states) == 20
    evaluate(states, 30)
    assert held(states) == 30


@pytest.mark.parametrize(
    "interrupt",
    [
        lambda states: evaluate(states, 40, true=False),
        lambda states: evaluate(states, 40, true=False, missing=True),
        lambda states: evaluate(states, 40, missing=True),
        lambda states: states.interrupt(),
    ],
    ids=["kept firing", "data missing", "true, with data missing", "an evaluation failed"],
)
def test_what_begins_it_anew(interrupt: Callable[[AlertStates], None]) -> None:
    """KILL-02: the alert goes on firing, and its time as a reason to act begins with the next true evaluation."""
    states = firing()
    interrupt(states)
    assert held(states) == 0
    evaluate(states, 45)
    assert held(states) == 0
    evaluate(states, 50)
    assert held(states) == 5


def test_a_gap_between_evaluations_begins_it_anew() -> None:
    """KILL-02: nobody knows what was so between two evaluations that are too far apart."""
    states = firing(longest_gap_seconds=15.0)
    evaluate(states, 45)
    assert held(states) == 45
    evaluate(states, 61)
    assert held(states) == 0


def test_a_restart_begins_it_anew() -> None:
    """KILL-02: the alert fires on after a restart, and what the last agent saw is no reason to act for this one."""
    before, states = firing(), AlertStates(alert_rule(OPTIONS))
    states.load(before.dump(), 1000)
    assert held(states) == 0
    evaluate(states, 1000)
    assert held(states) == 0
    evaluate(states, 1010)
    assert held(states) == 10


@pytest.mark.parametrize(("expression", "expected"), [("m", 10.0), ("m > 0", 0.0)])
def test_another_expression_begins_it_anew(expression: str, expected: float) -> None:
    """KILL-02: after a reload only the same expression has been true for as long as before."""
    engine = RuleEngine(groups("alert: A, expr: m"))
    for second in (0, 5):
        engine.evaluate(TRUE, second, WALL + second, Missing())
    engine.reload(groups(f"alert: A, expr: {expression}"), WALL)
    engine.evaluate(TRUE, 10, WALL + 10, Missing())
    (running,) = engine.rules()
    assert running.states is not None
    assert held(running.states) == expected


def test_what_series_mean_begins_it_anew() -> None:
    """KILL-02: a budget of the same name that matches others is exceeded since the reload, and not since before."""
    engine = RuleEngine(groups("alert: A, expr: m"))
    for second in (0, 5):
        engine.evaluate(TRUE, second, WALL + second, Missing())
    engine.interrupt()
    engine.evaluate(TRUE, 10, WALL + 10, Missing())
    (running,) = engine.rules()
    assert running.states is not None
    assert held(running.states) == 0


@pytest.mark.parametrize(("gap", "seconds", "expected"), [(0.0, 13.0, 0.0), (20.0, 13.0, 13.0), (20.0, 21.0, 0.0)])
def test_the_longest_gap(gap: float, seconds: float, expected: float) -> None:
    """A gap is 2.5 intervals of the group, or what GPUs are given that are read less often."""
    engine = RuleEngine(groups("alert: A, expr: m"), longest_gap_seconds=gap)
    for second in (0.0, seconds):
        engine.evaluate(TRUE, second, WALL + second, Missing())
    (running,) = engine.rules()
    assert running.states is not None
    assert held(running.states) == expected


def test_a_rule_that_fails_begins_it_anew() -> None:
    """KILL-02: an evaluation that came to no result proves nothing."""
    engine = RuleEngine(groups("alert: A, expr: m * on () m"))
    twice = SeriesIndex([("m", LabelSet({"gpu": name}), 1.0) for name in "01"])
    for second, index in ((0, TRUE), (5, TRUE), (10, twice), (15, TRUE), (20, TRUE)):
        engine.evaluate(index, second, WALL + second, Missing())
    (running,) = engine.rules()
    assert running.states is not None
    assert held(running.states) == 5
