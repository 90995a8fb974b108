"""Receivers that are not told are seen wherever a person looks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuagent.cli.check import judge
from gpuagent.config.models import Config
from gpuagent.core.clock import ManualClock
from gpuagent.core.metrics.alerting import AlertingFigures, ReceiverCounts, Undelivered, UndeliveredReason
from gpuagent.core.metrics.series import series
from gpuagent.core.xids import Severity
from gpuagent.service.receivers import find_undelivered
from gpuagent.service.view import View
from gpuagent_alerts.notify.outbox.attempt import DeliveryOutcome, Reason
from gpuagent_alerts.notify.outbox.delivery import DeliveryWorker
from gpuagent_exporters.status.problems import find_problems
from tests.fakes.snapshots import full_snapshot

NOW = 1000.0
REFUSED = DeliveryOutcome(Reason.UNREACHABLE, "connection refused")


def lane(*, failing_since: float | None = None, off: object = None) -> DeliveryWorker:
    """A lane whose attempts have failed since then."""
    last = REFUSED if failing_since is not None else None
    return cast("DeliveryWorker", SimpleNamespace(failing_since=failing_since, off=off, last=last))


def counts(*, queued: int = 0, dead: int = 0, oldest: float | None = None) -> ReceiverCounts:
    """What became of the messages to `ops`."""
    return ReceiverCounts("ops", queued, dead, oldest, 0, 0, 0)


@pytest.mark.parametrize(
    ("one", "of", "expected"),
    [
        (counts(), lane(), []),
        (counts(queued=1, oldest=59.0), lane(failing_since=NOW - 59), []),
        (counts(queued=1, oldest=60.0), lane(), [(UndeliveredReason.WAITING, "", NOW - 60, 1)]),
        (
            counts(queued=2, oldest=70.0),
            lane(failing_since=NOW - 10),
            [(UndeliveredReason.WAITING, "connection refused", NOW - 70, 2)],
        ),
        (
            counts(queued=2),
            lane(failing_since=NOW - 60),
            [(UndeliveredReason.FAILING, "connection refused", NOW - 60, 2)],
        ),
        (counts(), lane(off=SimpleNamespace(outcome="HTTP 410")), [(UndeliveredReason.OFF, "HTTP 410", None, 0)]),
        (counts(dead=3), None, [(UndeliveredReason.DEAD, "", None, 3)]),
    ],
    ids=["nothing", "59 s", "waits", "waits and fails", "fails", "off", "dead"],
)
def test_what_is_a_problem(one: ReceiverCounts, of: DeliveryWorker | None, expected: list[Any]) -> None:
    """ALERT-11: a minute of failures or of waiting, a switched off receiver, a dead letter; each with its reason."""
    found = find_undelivered([one], {"ops": of} if of else {}, (), NOW)
    assert [tuple(each)[1:] for each in found] == expected


def test_a_heartbeat_that_fails_is_told() -> None:
    """ALERT-11: the dead man's switch is a receiver like the others."""
    beat = cast("Any", SimpleNamespace(name="pulse", failing_since=NOW - 61, last=REFUSED))
    assert find_undelivered((), {}, [beat], NOW) == (
        Undelivered("pulse", UndeliveredReason.FAILING, "connection refused", NOW - 61),
    )  # fmt: skip


FIGURES = AlertingFigures(
    rules=1, evaluation_seconds=None,
    undelivered=(
        Undelivered("ops", UndeliveredReason.FAILING, "connection refused", NOW - 125, 2),
        Undelivered("hook", UndeliveredReason.DEAD, "", None, 1),
    ),
)  # fmt: skip


def test_every_surface_tells() -> None:
    """ALERT-11: status, check, readiness and metrics name the receiver, since when and why."""
    clock = ManualClock(now=NOW)
    view = View(Config(), clock, alerting=lambda: FIGURES)
    view.update(full_snapshot())
    text = "receiver ops has been failing for 2 min 5 s, 2 messages waiting: connection refused"
    problems = [(p["severity"], p["text"]) for p in view.status()["problems"] if p["kind"] == "undelivered"]  # type: ignore[attr-defined]
    assert problems == [("critical", text), ("warning", "receiver hook: 1 message could not be delivered")]

    code, line, _ = judge(view.status(), 0.9, 0.98)
    assert code == 2
    assert text in line
    samples = {family.name: made for family, made in series(None, NOW, alerting=FIGURES)}
    assert [sample.labels for sample in samples["gpuagent_receiver_undelivered"]] == [
        ("ops", "failing"),
        ("hook", "dead"),
    ]


def test_readiness_stays_and_names_them() -> None:
    """ALERT-11: what is served is true all the same, so the answer is still 200, with a line for each."""
    clock = ManualClock(now=99.0)
    view = View(Config(), clock, alerting=lambda: FIGURES)
    view.update(full_snapshot())
    ready, body = view.ready()
    assert ready
    assert body.splitlines()[0] == "ok"
    assert [line.split(" ")[1] for line in body.splitlines()[1:]] == ["ops", "hook:"]


def test_before_the_first_measurement_they_are_told_too() -> None:
    """ALERT-11: an agent that cannot read a GPU and cannot tell anybody says both."""
    found = find_problems(None, NOW, undelivered=FIGURES.undelivered)
    assert [problem.severity for problem in found if problem.kind == "undelivered"] == [
        Severity.CRITICAL, Severity.WARNING,
    ]  # fmt: skip
