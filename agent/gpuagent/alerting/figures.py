"""The alerting half in figures, for the series."""

from __future__ import annotations

from collections.abc import Mapping

from gpuagent.core.metrics.alerting import AlertCount, AlertingFigures, ReceiverCounts, RuleFailures
from gpuagent_alerts.outbox.counters import Figures
from gpuagent_alerts.outbox.delivery import Delivery
from gpuagent_alerts.states.engine import RuleEngine
from gpuagent_alerts.states.instance import State
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.problem import StoreFailure


def count_alerts(
    engine: RuleEngine,
    store: Store,
    receivers: tuple[ReceiverCounts, ...],
    evaluation_seconds: float | None,
) -> AlertingFigures:
    """Return what fires and is pending, what failed, and whether the state is kept."""
    states: dict[tuple[str, str, str], int] = {}
    for running in engine.rules():
        for instance in running.states.instances if running.states is not None else ():
            if instance.state is not State.INACTIVE:
                key = (running.rule.name, str(instance.state), instance.labels.get("severity", ""))
                states[key] = states.get(key, 0) + 1
    return AlertingFigures(
        rules=sum(1 for _ in engine.rules()),
        evaluation_seconds=evaluation_seconds,
        alerts=tuple(AlertCount(*key, number) for key, number in sorted(states.items())),
        failures=tuple(
            RuleFailures(running.key.group, running.key.rule, running.failures)
            for running in engine.rules()
            if running.failures
        ),
        receivers=receivers,
        store_ok=store.problem is None or not store.problem.in_memory,
        store_problem=store.problem_text,
        rows_set_aside=tuple(sorted(store.set_aside_rows.items())),
    )


def count_messages(delivery: Delivery) -> tuple[ReceiverCounts, ...]:
    """Return what became of messages until now, for each receiver. It asks the store: call it in a thread."""
    try:
        figures: Mapping[str, Figures] = delivery.figures()
    except StoreFailure:
        figures = {}
    return tuple(
        ReceiverCounts(
            name, one.queued, one.dead, one.oldest_undelivered_seconds,
            one.counters.sent, one.counters.failed, one.counters.dropped,
            one.counters.held,
        )
        for name, one in sorted(figures.items())
    )  # fmt: skip
