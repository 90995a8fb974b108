"""ALERT-06: missing data neither begins, nor ends, nor ages an alert."""

from __future__ import annotations

from collections.abc import Collection

from gpuagent_alerts.states.machine import AlertStates
from tests.alerts.states.rules import WALL, alert_rule, changes, row

GPU0 = {"0"}


def evaluate(
    states: AlertStates, seconds: float, true: Collection[str], missing: Collection[str] = ()
) -> list[tuple[str, str]]:
    """An evaluation in which these GPUs are true, and those have no data."""
    rows = [row(gpu=gpu) for gpu in sorted(true)]
    transitions = states.evaluate(seconds, rows, lambda labels: labels["gpu"] in missing, wall_seconds=WALL + seconds)
    return changes(transitions)


def test_a_firing_alert_stays() -> None:
    """ALERT-06: however long nothing is measured; when it is, and is not true, it ends."""
    states = AlertStates(alert_rule())
    evaluate(states, 0, GPU0)
    assert evaluate(states, 5, set(), GPU0) == [("continues", "0")]
    assert evaluate(states, 5000, set(), GPU0) == [("continues", "0")]
    assert evaluate(states, 5005, set()) == [("ended", "0")]


def test_the_time_does_not_count_for_for() -> None:
    """ALERT-06: a pending alert waits for the rest once there is data again."""
    states = AlertStates(alert_rule("for: 10s"))
    evaluate(states, 0, GPU0)
    evaluate(states, 4, GPU0)
    for second in range(5, 100):
        assert evaluate(states, second, set(), GPU0) == []
    # 4 s before it, and the step out of it is measured time again.
    assert evaluate(states, 104, GPU0) == []
    assert evaluate(states, 105, GPU0) == [("started", "0")]


def test_the_time_does_not_count_for_keep_firing_for() -> None:
    """ALERT-06: what is kept is kept for as long as data says that it is not true."""
    states = AlertStates(alert_rule("keep_firing_for: 10s"))
    evaluate(states, 0, GPU0)
    evaluate(states, 1, set())
    evaluate(states, 5, set())
    assert evaluate(states, 1000, set(), GPU0) == [("continues", "0")]
    assert evaluate(states, 1005, set()) == [("continues", "0")]
    assert evaluate(states, 1006, set()) == [("ended", "0")]


def test_nothing_begins() -> None:
    """ALERT-06: a row that is there because half of the expression's data is missing is none."""
    states = AlertStates(alert_rule())
    assert evaluate(states, 0, GPU0, GPU0) == []
    assert states.instances == ()
    assert evaluate(states, 5, GPU0) == [("started", "0")]


def test_nothing_goes_on_from_pending_to_firing() -> None:
    """ALERT-06: the same for what was pending before."""
    states = AlertStates(alert_rule("for: 5s"))
    evaluate(states, 0, GPU0)
    assert evaluate(states, 5, GPU0, GPU0) == []
    assert evaluate(states, 10, GPU0) == [("started", "0")]


def test_other_instances_go_on() -> None:
    """One GPU's failure is no other's."""
    states = AlertStates(alert_rule())
    evaluate(states, 0, {"0", "1"})
    assert evaluate(states, 5, set(), GPU0) == [("continues", "0"), ("ended", "1")]


def test_what_has_ended_does_not_come_back() -> None:
    """ALERT-06: an alert that is over stays over without data, and is forgotten in time."""
    states = AlertStates(alert_rule())
    evaluate(states, 0, GPU0)
    evaluate(states, 5, set())
    assert evaluate(states, 10, GPU0, GPU0) == []
    evaluate(states, 2000, set(), GPU0)
    assert states.instances == ()


def test_a_rule_can_ask_to_be_as_in_prometheus() -> None:
    """`gpuagent_missing_data: resolve`: what is not there is not true."""
    states = AlertStates(alert_rule("annotations: {gpuagent_missing_data: resolve}"))
    evaluate(states, 0, GPU0)
    assert evaluate(states, 5, set(), GPU0) == [("ended", "0")]
    assert evaluate(states, 10, GPU0, GPU0) == [("started", "0")]


def test_what_is_true_is_proven() -> None:
    """What was loaded and is not known to go on stays; once it is seen true it is as any other, and ends as one."""
    states = AlertStates(alert_rule("keep_firing_for: 10s"))
    rows = [row(gpu="0")]

    def at(seconds: float, *, is_true: bool) -> list[tuple[str, str]]:
        return changes(
            states.evaluate(
                seconds, rows if is_true else [], wall_seconds=WALL + seconds, is_unproven=lambda labels: True
            )
        )

    states.evaluate(0, rows, wall_seconds=WALL)
    assert at(5, is_true=False) == [("continues", "0")]
    (instance,) = states.instances
    assert (instance.frozen, instance.true_clock) == (True, None)
    assert at(10, is_true=True) == [("continues", "0")]
    (instance,) = states.instances
    assert (instance.frozen, instance.true_clock) == (False, 10)


def test_a_time_without_evaluations_counts_for_no_more_than_an_evaluation_that_is_late() -> None:
    """ALERT-06: a suspend or a disk that hangs makes no alert fire, and ends none that is kept."""
    pending = AlertStates(alert_rule("for: 5m"), longest_gap_seconds=15.0)
    evaluate(pending, 0, GPU0)
    evaluate(pending, 5, GPU0)
    assert evaluate(pending, 605, GPU0) == []
    assert [evaluate(pending, 605 + 5 * step, GPU0) for step in range(1, 57)][-2:] == [[], [("started", "0")]]

    kept = AlertStates(alert_rule("keep_firing_for: 3m"), longest_gap_seconds=15.0)
    evaluate(kept, 0, GPU0)
    evaluate(kept, 5, set())
    assert evaluate(kept, 605, set()) == [("continues", "0")]
    assert evaluate(kept, 610, GPU0 - GPU0, GPU0) == [("continues", "0")]
    assert [evaluate(kept, 610 + 5 * step, set()) for step in range(1, 40)].count([("ended", "0")]) == 1


def test_what_is_always_evaluated_late_fires_all_the_same() -> None:
    """ALERT-06: a node that is too slow for its interval takes longer, and not for ever."""
    states = AlertStates(alert_rule("for: 1m"), longest_gap_seconds=15.0)
    told = [evaluate(states, 20 * step, GPU0) for step in range(6)]
    assert told.index([("started", "0")]) == 4
