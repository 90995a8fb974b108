"""The states of an alert's instances, one evaluation after the other."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from gpuagent_alerts.alert import Status
from gpuagent_alerts.promql.values import Row
from gpuagent_alerts.states.instance import State
from gpuagent_alerts.states.machine import MAX_INSTANCES, AlertStates, RuleFailure, Transition
from tests.alerts.states.rules import WALL, alert_rule, changes, only, row


class Timeline:
    """Evaluations of one rule."""

    def __init__(self, options: str = "", limit: int = 0) -> None:
        self.states = AlertStates(alert_rule(options), limit)

    def at(self, seconds: float, *rows: Row) -> list[Transition]:
        return self.states.evaluate(seconds, rows, wall_seconds=WALL + seconds)

    def state(self) -> list[str]:
        return [instance.state.value for instance in self.states.instances]


def test_without_for_it_fires_at_once() -> None:
    """Pending to firing within one evaluation; told with the labels, the annotations, the value and its beginning."""
    line = Timeline("labels: {severity: page}, annotations: {text: 'GPU {{ $labels.gpu }}: {{ $value }}'}")
    alert = only(line.at(5, row(2.5, gpu="0")))
    assert alert.labels == {"alertname": "A", "gpu": "0", "severity": "page"}
    assert alert.annotations == {"text": "GPU 0: 2.5"}
    assert (alert.status, alert.starts_at, alert.ends_at, alert.value) == (Status.FIRING, WALL + 5, None, 2.5)


def test_for_has_to_pass_without_a_break() -> None:
    """One evaluation without the row, and the clock starts again."""
    line = Timeline("for: 10s")
    assert line.at(0, row()) == line.at(9, row()) == []
    assert line.at(9.5) == []
    assert line.states.instances == ()
    assert line.at(10, row()) == []
    assert changes(line.at(20, row())) == [("started", "")]


def test_starts_at_is_when_it_fired() -> None:
    """As Prometheus tells it: not when it began to be true."""
    line = Timeline("for: 10s")
    line.at(0, row())
    assert only(line.at(12, row())).starts_at == WALL + 12
    assert only(line.at(13, row())).starts_at == WALL + 12


def test_it_ends_with_the_first_evaluation_that_is_not_true() -> None:
    """Told once, as resolved, with the annotations and the value of when it was last true."""
    line = Timeline("annotations: {v: '{{ $value }}'}")
    line.at(0, row(7))
    ended = only(line.at(5))
    assert (ended.status, ended.starts_at, ended.ends_at) == (Status.RESOLVED, WALL, WALL + 5)
    assert (ended.value, ended.annotations) == (7.0, {"v": "7"})
    assert line.at(6) == []


def test_what_has_ended_is_remembered_for_fifteen_minutes() -> None:
    """So that it can be shown; then it is gone."""
    line = Timeline()
    line.at(0, row())
    line.at(5)
    line.at(905)
    assert line.state() == ["inactive"]
    line.at(905.1)
    assert line.state() == []


def test_it_can_fire_again_after_it_has_ended() -> None:
    """As a new alert, with a new beginning."""
    line = Timeline("for: 5s")
    line.at(0, row())
    line.at(5, row())
    line.at(10)
    assert line.at(11, row()) == []
    assert only(line.at(16, row())).starts_at == WALL + 16


def test_keep_firing_for_holds_it() -> None:
    """ALERT-04: a value that swings around its limit is one alert, which ends once."""
    line = Timeline("keep_firing_for: 30s")
    seen = [
        change for second in range(60) for change in changes(line.at(second, *([row()] if second % 2 == 0 else [])))
    ]
    assert seen == [("started", ""), *[("continues", "")] * 59]
    assert changes(line.at(88)) == [("continues", "")]
    assert changes(line.at(89)) == [("ended", "")]


def test_kept_means_the_last_true_value() -> None:
    """Value and annotations stay as they were."""
    line = Timeline("keep_firing_for: 30s, annotations: {v: '{{ $value }}'}")
    line.at(0, row(3))
    assert only(line.at(1)).annotations == {"v": "3"}


def test_instances_are_apart() -> None:
    """Each label set has its own state."""
    line = Timeline("for: 5s")
    line.at(0, row(gpu="0"))
    line.at(3, row(gpu="0"), row(gpu="1"))
    assert changes(line.at(5, row(gpu="0"), row(gpu="1"))) == [("started", "0")]
    assert changes(line.at(8, row(gpu="1"))) == [("ended", "0"), ("started", "1")]


def test_labels_of_the_rule_are_templates_and_win() -> None:
    """An empty one removes the label; alertname cannot be lost."""
    line = Timeline("labels: {gpu: '{{ $labels.uuid }}', uuid: '{{ $labels.none }}'}")
    assert only(line.at(0, row(gpu="0", uuid="x"))).labels == {"alertname": "A", "gpu": "x"}


def test_two_rows_with_the_same_labels_fail_the_rule() -> None:
    """All of it, and nothing changes: which of the two is meant cannot be known."""
    line = Timeline("labels: {gpu: all}")
    line.at(0, row(gpu="0"))
    with pytest.raises(RuleFailure, match="same labelset after applying alert labels"):
        line.at(5, row(gpu="0"), row(gpu="1"))
    assert line.state() == ["firing"]
    assert changes(line.at(10, row(gpu="0"))) == [("continues", "all")]


def test_beyond_the_limit_all_instances_are_gone() -> None:
    """As in Prometheus; what was told as firing is told as ended."""
    line = Timeline(limit=2)
    line.at(0, row(gpu="0"), row(gpu="1"))
    with pytest.raises(RuleFailure, match="exceeded limit of 2 with 3 alerts") as caught:
        line.at(5, row(gpu="0"), row(gpu="2"), row(gpu="1"))
    assert sorted(changes(list(caught.value.ended))) == [("ended", "0"), ("ended", "1")]
    assert line.states.instances == ()


@pytest.mark.slow
def test_a_hundred_thousand_results_are_refused_at_once() -> None:
    """Without a limit too, nobody pays for them: the first too many ends the evaluation."""
    line = Timeline()
    line.at(0, row(gpu="0"))
    taken = 0

    def rows() -> Iterable[Row]:
        nonlocal taken
        for taken in range(100_000):
            yield row(gpu=str(taken))

    with pytest.raises(RuleFailure, match=f"more than {MAX_INSTANCES} results"):
        line.states.evaluate(5, rows(), wall_seconds=WALL)
    assert taken == MAX_INSTANCES
    assert line.state() == ["firing"]


def test_a_longer_for_after_a_reload_makes_it_wait_again() -> None:
    """Who was told that it fires is told that it does not; it fires again when the new time is over."""
    old = Timeline()
    old.at(0, row())
    line = Timeline("for: 10s")
    line.states.take_over(old.states)
    assert changes(line.at(5, row())) == [("ended", "")]
    assert line.state() == ["pending"]
    assert changes(line.at(10, row())) == [("started", "")]


def test_dropped_alerts_end() -> None:
    """Of a rule that is no more: what fired is told, what was pending is not."""
    line = Timeline("for: 5s")
    line.at(0, row(gpu="0"))
    line.at(5, row(gpu="0"), row(gpu="1"))
    (ended,) = line.states.drop(WALL + 6)
    assert (ended.alert.labels["gpu"], ended.alert.status, ended.alert.ends_at) == ("0", Status.RESOLVED, WALL + 6)
    assert line.states.instances == ()


def test_the_series_of_an_alert() -> None:
    """ALERTS and ALERTS_FOR_STATE of what is pending or firing, as Prometheus writes them."""
    line = Timeline("for: 5s, labels: {a: b}")
    line.at(0, row(gpu="0"))
    labels = {"alertname": "A", "gpu": "0", "a": "b"}
    assert line.states.series(2, WALL + 2) == [
        ("ALERTS", {**labels, "alertstate": "pending"}, 1.0),
        ("ALERTS_FOR_STATE", labels, WALL),
    ]
    line.at(5)
    assert line.states.series(5, WALL + 5) == []


def test_the_reserved_annotation_is_told_to_nobody() -> None:
    """It is for the agent."""
    line = Timeline("annotations: {gpuagent_missing_data: keep, summary: x}")
    assert only(line.at(0, row())).annotations == {"summary": "x"}


def test_the_state_of_an_instance_has_prometheus_names() -> None:
    """They are seen in `alertstate`."""
    assert [state.value for state in State] == ["pending", "firing", "inactive"]
