"""Groups over time: when they are due, what rules see of each other, reloads and restarts."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from gpuagent_alerts.alert import Status
from gpuagent_alerts.promql.series import SeriesIndex
from gpuagent_alerts.rules.model import RuleGroup
from gpuagent_alerts.states.engine import InstanceRecord, RuleEngine
from gpuagent_alerts.states.group import GroupResult
from gpuagent_alerts.states.machine import MAX_INSTANCES
from gpuagent_alerts.states.missing import Missing
from tests.alerts.states.rules import WALL, changes, groups

Sample = tuple[str, Mapping[str, str], float]


def evaluate(engine: RuleEngine, seconds: float, *samples: Sample, missing: Missing | None = None) -> GroupResult:
    """One tick with these series."""
    return engine.evaluate(SeriesIndex(samples), seconds, WALL + seconds, missing or Missing())


def m(value: float, **labels: str) -> Sample:
    """A measured series."""
    return ("m", labels, value)


def told(result: GroupResult) -> list[tuple[str, str]]:
    """What happened to which alert."""
    return [(transition.change.value, transition.alert.name) for transition in result.transitions]


def test_a_group_is_due_at_its_interval() -> None:
    """Five seconds where none is given; a tick that comes a little early counts, one that was missed is not made up."""
    slow = groups("alert: Slow, expr: m > 0", name="slow")
    engine = RuleEngine([*groups("alert: Fast, expr: m > 0"), RuleGroup("slow", slow[0].rules, interval_seconds=20.0)])
    seen = {}
    for second in (0, 1, 4.4, 4.9, 6, 10, 10.1, 19, 20, 47, 48, 50, 60):
        was_due = engine.is_due(second)
        result = evaluate(engine, second, m(1))
        assert was_due == bool(result.transitions)
        if result.transitions:
            seen[second] = sorted(name for _, name in told(result))
    assert seen == {
        0: ["Fast", "Slow"], 4.9: ["Fast"], 10: ["Fast"], 19: ["Fast", "Slow"], 20: ["Fast"], 47: ["Fast", "Slow"],
        50: ["Fast"], 60: ["Fast", "Slow"],
    }  # fmt: skip


def test_a_recorded_series_is_seen_by_later_rules_at_once() -> None:
    """Of the same group, and of groups after it; a rule before it sees the last result."""
    engine = RuleEngine(
        [
            *groups("alert: Before, expr: r > 1", "record: r, expr: m * 2", "alert: After, expr: r > 1"),
            *groups("alert: Elsewhere, expr: r > 1", name="h"),
        ]
    )
    assert told(evaluate(engine, 0, m(1))) == [("started", "After"), ("started", "Elsewhere")]
    assert told(evaluate(engine, 5, m(1)))[0] == ("started", "Before")
    assert ("r", {}, 2.0) in engine.recorded(5)


def test_a_recorded_series_is_gone_when_its_rule_has_none() -> None:
    """At once, and not after the look-back."""
    engine = RuleEngine(groups("record: r, expr: m > 0", "alert: A, expr: r"))
    evaluate(engine, 0, m(1, gpu="0"), m(1, gpu="1"))
    assert [labels["gpu"] for name, labels, _ in engine.recorded(0) if name == "r"] == ["0", "1"]
    ended = evaluate(engine, 5, m(1, gpu="0"), m(0, gpu="1"))
    assert sorted(changes(list(ended.transitions))) == [("continues", "0"), ("ended", "1")]


def test_a_label_of_a_recording_rule_is_added() -> None:
    """And an empty one takes a label away."""
    engine = RuleEngine(groups("record: r, expr: m, labels: {site: x, gpu: ''}"))
    evaluate(engine, 0, m(3, gpu="0"))
    assert engine.recorded(0) == [("r", {"site": "x"}, 3.0)]


def test_a_measured_series_is_not_hidden_by_a_recorded_one() -> None:
    """Two series with the same name and labels cannot be: what was measured stays."""
    engine = RuleEngine(groups("record: m, expr: m * 10", "alert: A, expr: m > 5"))
    assert told(evaluate(engine, 0, m(1))) == []
    assert evaluate(engine, 5, m(1)).failures == ()


def test_alerts_are_series() -> None:
    """A rule may look at other alerts, as in Prometheus."""
    engine = RuleEngine(
        groups("alert: A, expr: m > 0", 'alert: B, expr: \'ALERTS{alertname="A", alertstate="firing"}\'')
    )
    assert told(evaluate(engine, 0, m(1))) == [("started", "A"), ("started", "B")]


def test_one_rule_that_fails_stops_no_other() -> None:
    """It is counted and named; its alerts stay as they are, and its series for as long as the look-back."""
    many = "m * on (x) group_left n"
    engine = RuleEngine(groups("record: r, expr: m", f"record: bad, expr: {many}", "alert: A, expr: r > 0"))
    result = evaluate(engine, 0, m(1, x="1"), ("n", {"x": "1", "y": "1"}, 1.0), ("n", {"x": "1", "y": "2"}, 1.0))
    assert told(result) == [("started", "A")]
    ((key, problem),) = result.failures
    assert (key.rule, bool(problem)) == ("bad", True)
    failing = next(running for running in engine.rules() if running.rule.name == "bad")
    assert (failing.evaluations, failing.failures, failing.last_error) == (1, 1, problem)
    assert evaluate(engine, 5, m(1, x="1")).failures == ()
    assert (failing.evaluations, failing.failures, failing.last_error) == (2, 1, "")


def test_a_failing_rule_keeps_its_alert() -> None:
    """ALERT-06: an error is no data either."""
    engine = RuleEngine(groups("alert: A, expr: m * on () m"))
    evaluate(engine, 0, m(1))
    result = evaluate(engine, 5, m(1, x="1"), m(1, x="2"))
    assert (told(result), len(result.failures)) == ([], 1)
    assert told(evaluate(engine, 10, m(1))) == [("continues", "A")]


def test_the_limit_of_a_group() -> None:
    """Of alerts all are gone, told as ended; a recording rule has no result."""
    engine = RuleEngine(groups("alert: A, expr: m > 0", "record: r, expr: m", limit=2))
    evaluate(engine, 0, m(1, gpu="0"))
    result = evaluate(engine, 5, *(m(1, gpu=str(gpu)) for gpu in range(3)))
    assert told(result) == [("ended", "A")]
    assert [problem for _, problem in result.failures] == [
        "exceeded limit of 2 with 3 alerts", "exceeded limit of 2 with 3 series",
    ]  # fmt: skip


def test_two_results_with_the_same_labels_fail_a_recording_rule() -> None:
    """As in Prometheus."""
    engine = RuleEngine(groups("record: r, expr: m, labels: {gpu: all}"))
    ((_, problem),) = evaluate(engine, 0, m(1, gpu="0"), m(1, gpu="1")).failures
    assert problem == "vector contains metrics with the same labelset after applying rule labels"


@pytest.mark.slow
def test_a_recording_rule_has_a_limit_of_its_own() -> None:
    """A hundred thousand results cost one failure: the last good result stays, other rules go on."""
    engine = RuleEngine(groups("record: r, expr: m", "alert: A, expr: vector(1)"))
    evaluate(engine, 0, m(1))
    result = evaluate(engine, 5, *(m(1, number=str(number)) for number in range(100_000)))
    assert [problem for _, problem in result.failures] == [
        f"the expression has more than {MAX_INSTANCES} results: narrow it, or aggregate"
    ]
    assert told(result) == [("continues", "A")]
    assert engine.recorded(5) == [("r", {}, 1.0)]


def test_a_number_is_one_row() -> None:
    """An expression that is a scalar always has a result."""
    engine = RuleEngine(groups("alert: Watchdog, expr: '1'", "record: r, expr: time()"))
    assert told(evaluate(engine, 0)) == [("started", "Watchdog")]
    assert ("r", {}, WALL) in engine.recorded(0)


def test_a_reload_hands_states_over_by_group_and_name() -> None:
    """Whatever the new expression is; the clock of `for` goes on."""
    engine = RuleEngine(groups("alert: A, expr: m > 0, for: 10s"))
    evaluate(engine, 0, m(1))
    assert engine.reload(groups("alert: New, expr: m > 9", "alert: A, expr: m >= 1, for: 10s"), WALL) == []
    assert told(evaluate(engine, 10, m(1))) == [("started", "A")]


def test_a_rule_that_is_removed_ends_its_alerts() -> None:
    """Who was told that it fires is told that it does not, once; so too if the group was renamed."""
    watching = "alert: Z, expr: 'ALERTS == 2'"
    engine = RuleEngine(groups("alert: A, expr: m > 0", "alert: B, expr: m > 0", "record: r, expr: m", watching))
    evaluate(engine, 0, m(1))
    assert {name for name, _, _ in engine.recorded(0)} == {"ALERTS", "ALERTS_FOR_STATE", "r"}
    ended = engine.reload(groups("alert: B, expr: m > 0"), WALL + 1)
    assert [(transition.change.value, transition.alert.name) for transition in ended] == [("ended", "A")]
    assert {name for name, _, _ in engine.recorded(1)} == {"ALERTS", "ALERTS_FOR_STATE"}
    renamed = engine.reload(groups("alert: B, expr: m > 0", name="other"), WALL + 2)
    assert [transition.alert.name for transition in renamed] == ["B"]
    assert engine.recorded(2) == []


def test_rules_of_one_name_keep_apart_over_a_reload() -> None:
    """By their labels first, whatever their order; what is left goes by its name."""
    high = "alert: A, expr: m > 10, labels: {severity: critical}"
    low = "alert: A, expr: m > 0, labels: {severity: warning}"
    engine = RuleEngine(groups(high, low))
    evaluate(engine, 0, m(1))
    assert engine.reload(groups(low, high), WALL) == []
    assert told(evaluate(engine, 5, m(1))) == [("continues", "A")]
    # The label has changed, and with it the alert: the old one ends, a new one begins.
    assert engine.reload(groups(low.replace("warning", "info")), WALL) == []
    assert sorted(told(evaluate(engine, 10, m(1)))) == [("ended", "A"), ("started", "A")]


def test_groups_of_one_name_in_two_files_are_two() -> None:
    """As in Prometheus, where the file is part of a group's name."""
    engine = RuleEngine([*groups("alert: A, expr: m > 0"), *groups("alert: A, expr: m > 5")])
    assert [runner.name for runner in engine.groups] == ["g", "g (2)"]
    assert told(evaluate(engine, 0, m(1))) == [("started", "A")]


def restarted(engine: RuleEngine, *rules: str) -> tuple[RuleEngine, list[str], int]:
    """Another process with these rules, after a reboot; with the names of what ended, and what was broken."""
    records = [
        InstanceRecord(*record[:3], json.loads(json.dumps(record.dump, allow_nan=False))) for record in engine.dump()
    ]
    new = RuleEngine(groups(*rules))
    loaded = new.load(records, 77_000, WALL + 100)
    return new, [transition.alert.name for transition in loaded.ended], loaded.broken


def test_a_restart_goes_on_with_every_instance() -> None:
    """ALERT-08: firing stays firing, pending has its time."""
    rules = ("alert: A, expr: m > 0", "alert: B, expr: m > 0, for: 12s", "record: r, expr: m")
    engine = RuleEngine(groups(*rules))
    evaluate(engine, 0, m(1, gpu="0"))
    evaluate(engine, 10, m(1, gpu="0"))
    new, ended, broken = restarted(engine, *rules)
    assert (ended, broken) == ([], 0)
    assert told(evaluate(new, 77_005, m(1, gpu="0"))) == [("continues", "A")]
    assert told(evaluate(new, 77_010, m(1, gpu="0"))) == [("continues", "A"), ("started", "B")]


def test_a_rule_that_went_away_meanwhile_ends_its_alerts() -> None:
    """ALERT-08: the file was changed while the agent was down; what was only pending is forgotten."""
    engine = RuleEngine(groups("alert: A, expr: m > 0", "alert: B, expr: m > 0, for: 1h"))
    evaluate(engine, 10, m(1))
    assert restarted(engine, "alert: C, expr: m > 0")[1:] == (["A"], 0)


def test_rules_of_one_name_keep_apart_over_a_restart() -> None:
    """ALERT-08: as over a reload."""
    high = "alert: A, expr: m > 10, labels: {severity: critical}"
    low = "alert: A, expr: m > 0, labels: {severity: warning}"
    engine = RuleEngine(groups(high, low))
    evaluate(engine, 10, m(1))
    new, ended, _ = restarted(engine, low, high)
    assert ended == []
    assert told(evaluate(new, 77_000, m(1))) == [("continues", "A")]


def test_what_cannot_be_read_is_counted() -> None:
    """A damaged row costs itself alone."""
    engine = RuleEngine(groups("alert: A, expr: m > 0"))
    loaded = engine.load([InstanceRecord("g", "A", "x", {"labels": 1}), InstanceRecord("g", "Z", "x", {})], 0, WALL)
    assert loaded == ((), 1)


@pytest.mark.parametrize("step", [-7200.0, 7200.0])
def test_a_wall_clock_that_is_set_moves_what_is_told(step: float) -> None:
    """An alert has been pending, firing and kept for as long as before, whatever the wall clock says now."""
    engine = RuleEngine(groups("alert: A, expr: m > 0, for: 10s, keep_firing_for: 1m"))
    for second in (0, 10, 20):
        engine.evaluate(SeriesIndex([m(1)]), second, WALL + second, Missing())
    engine.evaluate(SeriesIndex([]), 30, WALL + 30, Missing())
    engine.evaluate(SeriesIndex([]), 40, WALL + step + 40, Missing())
    ((instance,),) = [running.states.instances for running in engine.rules() if running.states is not None]
    told = instance.as_alert(Status.FIRING)
    times = told.true_from, told.starts_at, told.true_until, told.kept_until
    assert times == tuple(WALL + step + seconds for seconds in (0, 10, 30, 90))


@pytest.mark.parametrize("wall", [0.0, WALL * 3])
def test_the_wall_clock_counts_for_nothing(wall: float) -> None:
    """It may jump to where it likes: holds go by the other one."""
    engine = RuleEngine(groups("alert: A, expr: m > 0, for: 10s"))
    for second in (0, 5):
        engine.evaluate(SeriesIndex([m(1)]), second, WALL + second, Missing())
    assert engine.evaluate(SeriesIndex([m(1)]), 9, wall, Missing()).transitions == ()
    (started,) = engine.evaluate(SeriesIndex([m(1)]), 10, wall, Missing()).transitions
    assert started.alert.starts_at == wall
