"""Families of the alerting half: what fires, and what became of the messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from gpuagent.core.identity import NO_INSTANCE
from gpuagent.core.metrics.family import Family, LabeledValue, MetricType, Value, single

ENDING = "ending"
"""State of an alert that fires only because of `keep_firing_for`, on every surface: its condition is not true now."""


class AlertCount(NamedTuple):
    """Number of instances of a rule in one state."""

    alertname: str
    alertstate: str
    severity: str
    number: int


class FiringAlert(NamedTuple):
    """What an alert that fires is about. `severity` is None where its label is none of critical, warning and info."""

    name: str
    severity: str | None
    about_growth: bool
    """Whether its rule reads what the leak detector says."""
    uuid: str = ""
    """UUID of the GPU; empty for the node."""
    pid: int = 0
    """0 for a GPU, or an instance, as a whole."""
    gpu_instance_id: int = NO_INSTANCE
    gpu: int | None = None
    """Index of the GPU; None for the node."""
    summary: str = ""
    silenced: bool = False
    unmeasured_seconds: float = 0.0
    """Seconds for which its subject could not be measured; 0 while it is."""
    began_at: float | None = None
    """Unix time at which its condition began to hold, also before a restart of the agent; None if that is not known."""
    is_ending: bool = False
    """Whether nothing of it is true now, and only its end is waited for: to be seen, and no trouble."""
    used_bytes: int | None = None
    """Memory of its GPU, or instance, that was in use when its rule was evaluated; None where that is not known."""
    grows_again: tuple[int, ...] = ()
    """Pids that its summary names as processes that were started again and grow."""
    incident_pids: tuple[int, ...] = ()
    """Pids of the processes that its incident is about; empty where it is about none."""
    incident_silenced: bool = False
    """Whether a silence names its incident, and so holds for what joins that later, however grave."""
    xid: int | None = None
    """Code of the Xid that it tells of; None for any other alert."""


class RuleFailures(NamedTuple):
    """How often a rule could not be evaluated."""

    group: str
    rule: str
    failures: int


class ReceiverCounts(NamedTuple):
    """Numbers of messages to one receiver."""

    receiver: str
    queued: int
    dead: int
    oldest_seconds: float | None
    sent: int
    failed: int
    dropped: int
    held_back: int = 0
    """Messages since the start that a digest reported, or will."""


class UndeliveredReason(StrEnum):
    """What keeps messages from a receiver."""

    FAILING = "failing"
    """Every attempt has failed for a minute or longer."""
    OFF = "off"
    """The receiver has answered that it wants nothing any more."""
    WAITING = "waiting"
    """A message has waited for a minute or longer."""
    DEAD = "dead"
    """Messages were given up."""


class Undelivered(NamedTuple):
    """Receiver to which messages are not delivered as they should be."""

    receiver: str
    why: UndeliveredReason
    reason: str
    """Reason in words, without an address or a secret; "" where there is none."""
    since_seconds: float | None = None
    """CLOCK_BOOTTIME; None where that is not known."""
    messages: int = 0


@dataclass(frozen=True, slots=True)
class AlertingFigures:
    """The alerting half at a moment."""

    rules: int
    evaluation_seconds: float | None
    alerts: tuple[AlertCount, ...] = ()
    failures: tuple[RuleFailures, ...] = ()
    receivers: tuple[ReceiverCounts, ...] = ()
    store_ok: bool = True
    store_problem: str = ""
    """Fault of the state file, or found in it; "" where there is none."""
    firing: tuple[FiringAlert, ...] = ()
    """Every alert that fires, and what it is about."""
    silenced_processes: frozenset[tuple[int, int]] = frozenset()
    """Index of the GPU and pid of each process that grows there, and whose leak nobody wants to hear of."""
    rows_set_aside: tuple[tuple[str, int], ...] = ()
    """Number of rows, by table, that could not be read since the start."""
    undelivered: tuple[Undelivered, ...] = ()


AlertingFamily = Family[AlertingFigures]


def _alerts(figures: AlertingFigures) -> Iterable[LabeledValue]:
    return ((tuple(count[:3]), count.number) for count in figures.alerts)


def _failures(figures: AlertingFigures) -> Iterable[LabeledValue]:
    return (((failed.group, failed.rule), failed.failures) for failed in figures.failures)


def _receivers(read: Callable[[ReceiverCounts], Value]) -> Callable[[AlertingFigures], Iterable[LabeledValue]]:
    return lambda figures: (((counts.receiver,), read(counts)) for counts in figures.receivers)


def _family(
    name: str, text: str, of: Callable[[AlertingFigures], Iterable[LabeledValue]], labels: tuple[str, ...] = (),
    kind: MetricType = MetricType.GAUGE,
) -> AlertingFamily:  # fmt: skip
    return Family(f"gpuagent_{name}", kind, text, "alerting", labels, of)


_RECEIVER = ("receiver",)

ALERTING_FAMILIES: tuple[AlertingFamily, ...] = (
    _family("alerts", "Alerts of this node by state: pending, firing, or ending, where `keep_firing_for` keeps what is "
            "not true any more.", _alerts,
            ("alertname", "alertstate", "severity")),
    _family("rules", "Rules in force, shipped ones included.", single(lambda figures: figures.rules)),
    _family("rule_evaluation_duration_seconds", "Duration of the last evaluation of rules.",
            single(lambda figures: figures.evaluation_seconds)),
    _family("rule_evaluation_failures_total", "Evaluations of the rule that failed.", _failures,
            ("rule_group", "rule"), MetricType.COUNTER),
    _family("notifications_sent_total", "Messages that the receiver took.",
            _receivers(lambda counts: counts.sent), _RECEIVER, MetricType.COUNTER),
    _family("notification_failures_total", "Attempts to send that failed.",
            _receivers(lambda counts: counts.failed), _RECEIVER, MetricType.COUNTER),
    _family("notifications_dropped_total", "Messages dropped because the outbox was full.",
            _receivers(lambda counts: counts.dropped), _RECEIVER, MetricType.COUNTER),
    _family("notifications_held_back_total", "Messages held back because the receiver had had enough for an hour.",
            _receivers(lambda counts: counts.held_back), _RECEIVER, MetricType.COUNTER),
    _family("notifications_queued", "Messages that wait to be sent.",
            _receivers(lambda counts: counts.queued), _RECEIVER),
    _family("notifications_dead", "Messages that could not be delivered, kept for a replay.",
            _receivers(lambda counts: counts.dead), _RECEIVER),
    _family("notification_oldest_undelivered_seconds", "Age of the oldest message that waits.",
            _receivers(lambda counts: counts.oldest_seconds), _RECEIVER),
    _family("receiver_undelivered", "1 while a receiver is not told what it should be: its attempts fail, or a message "
            "waits, for a minute or longer, it is switched off, or messages were given up.",
            lambda figures: (((one.receiver, str(one.why)), 1) for one in figures.undelivered), ("receiver", "why")),
    _family("store_healthy", "0 while the state of alerts cannot be kept on disk.",
            single(lambda figures: figures.store_ok)),
    _family("store_rows_set_aside_total", "Rows of the state that could not be read, by table.",
            lambda figures: (((table,), number) for table, number in figures.rows_set_aside), ("table",),
            MetricType.COUNTER),
)  # fmt: skip
