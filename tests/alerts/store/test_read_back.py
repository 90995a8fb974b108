"""Whatever the agent can write into its state, it reads back: no value of its own counts as damage."""

from __future__ import annotations

import json
import string
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuagent.core.clock import ManualClock
from gpuagent.core.growth import Evidence
from gpuagent.core.identity import ProcessId
from gpuagent.core.matchers import parse_matcher
from gpuagent_alerts.alert import Alert, Message, Status
from gpuagent_alerts.notify.outbox.entry import Occasion, OutboxEntry
from gpuagent_alerts.notify.outbox.queue import Outbox
from gpuagent_alerts.notify.silences import Acks, Silences
from gpuagent_alerts.notify.state import (
    GroupKey,
    NotificationState,
    NotifiedAlert,
    load_notification_states,
    save_notification_states,
)
from gpuagent_alerts.remedies.audit import Audit
from gpuagent_alerts.remedies.audit_rows import BEGIN, END, INTENT, MOST_ROW_BYTES, RESULT
from gpuagent_alerts.remedies.outcome import RunOutcome, RunResult
from gpuagent_alerts.remedies.plan import begin_row, end_row
from gpuagent_alerts.states.instance import Instance, State, load_instance
from gpuagent_alerts.states.persister import StoredInstances
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.leaks import LeakHistories, LeakHistory, LeakKey
from tests.alerts.remedies.world import BOOT, KILL, ORDER, TERMINATE, plan, target

FLOATS = st.floats()
FINITE = st.floats(allow_nan=False, allow_infinity=False)
SECONDS = st.floats(0, 1e10)
BYTES = st.integers(0, 2**64 - 1)
TEXTS = st.text(max_size=30)
NAMES = st.text(string.ascii_letters, min_size=1, max_size=10)
UNIX = st.floats(0, 9.2e9)
ALERTS = st.builds(
    Alert,
    st.dictionaries(NAMES, TEXTS, max_size=4).map(lambda labels: {**labels, "alertname": "A"}),
    st.dictionaries(NAMES, TEXTS, max_size=4), st.just(Status.FIRING), UNIX, st.none(), FLOATS,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    value=FLOATS, values=st.lists(FLOATS, max_size=4), used=BYTES,
    released=st.one_of(st.none(), st.integers(-(2**64), 2**64)),
    seconds=st.one_of(st.none(), SECONDS), wait=SECONDS, text=TEXTS, uid=st.integers(0, 2**32 - 1),
    labels=st.dictionaries(NAMES, TEXTS, max_size=3), result=st.sampled_from(list(RunResult)),
)  # fmt: skip
def test_the_record_of_remedies(
    value: float, values: list[float], used: int, released: int | None, seconds: float | None, wait: float, text: str,
    uid: int, labels: dict[str, str], result: RunResult,
) -> None:  # fmt: skip
    """ALERT-11: any value of an expression (236 GiB/h is no Unix time), any amount, any text of a process."""
    order = replace(ORDER, value=value, values=tuple(values), labels=labels, expression=text)
    one = target(used_bytes=used, uid=uid, command=text, name=text, unit=text, user=text)
    what = plan(replace(TERMINATE, wait_seconds=wait), KILL, of=one, request=order)
    with closing(Store(None)) as store:
        audit = Audit(store, ManualClock(), BOOT)
        run = audit.begin(begin_row(what, text, [one.pid]))
        audit.write(run, INTENT, {"step": "SIGTERM", "disrupts": True, "pids": [1], "used_bytes": used, "note": text})
        audit.write(run, RESULT, {"step": "SIGTERM", "ok": True, "errno": 0, "detail": text})
        audit.write(run, END, end_row(RunOutcome(result, text, released, seconds)) | {"reasons": [text]})
        assert [event.kind for event in audit.events()] == [BEGIN, INTENT, RESULT, END]
        assert store.problem_text == ""


@pytest.mark.parametrize(
    "data",
    [
        {"note": "\x00" * MOST_ROW_BYTES},
        {"reasons": ["é" * 2000] * 1000},
        {"labels": {str(number): "x" * 10_000 for number in range(250)}},
        {"pids": list(range(300_000))},
    ],
    ids=["text", "texts", "labels", "numbers"],
)
def test_a_row_that_is_too_long(data: dict[str, Any]) -> None:
    """A row is cut to what is read back, and what an action is known by stays."""
    with closing(Store(None)) as store:
        audit = Audit(store, ManualClock(), BOOT)
        audit.write("r", INTENT, {"step": "SIGTERM", "disrupts": True, **data})
        (event,) = audit.events()
        assert (event.data["step"], event.data["disrupts"]) == ("SIGTERM", True)
        (action,) = audit.past(dry_run=False)
        assert action.unknown  # its beginning is missing, and nothing of it is damaged
        assert store.problem_text == ""


@settings(max_examples=60, deadline=None)
@given(ALERTS, st.sampled_from(State), SECONDS, SECONDS, st.one_of(st.none(), SECONDS))
def test_instances_of_rules(alert: Alert, state: State, now: float, active: float, kept: float | None) -> None:
    """ALERT-08: an instance with any value and any clocks comes back with the same labels, value and state."""
    one = Instance(alert.labels, lambda: dict(alert.annotations), alert.value, active, state, kept_clock=kept,
                   ended_clock=active, starts_at=alert.starts_at)  # fmt: skip
    with closing(Store(None)) as store:
        instances = StoredInstances(store)
        instances.save({("g", "A", one.fingerprint): json.dumps(one.dump(now), allow_nan=False)})
        (found,) = instances.load(lambda _, dump: load_instance(json.loads(dump), now))
        assert (found.labels, repr(found.value), found.state) == (one.labels, repr(one.value), state)
        assert store.problem_text == ""


@settings(max_examples=60, deadline=None)
@given(ALERTS, UNIX, TEXTS)
def test_alerts_that_were_told_and_messages(alert: Alert, at: float, text: str) -> None:
    """What was told and what waits to be sent hold any value of an expression; so do acknowledgements any comment."""
    with closing(Store(None)) as store:
        save_notification_states(
            store, {GroupKey("r", "g"): NotificationState(at, {}, {alert.fingerprint: NotifiedAlert(alert)})}
        )
        (told,) = load_notification_states(store, 1e10).values()
        assert repr(told.alerts[alert.fingerprint].alert.value) == repr(alert.value)
        outbox = Outbox(store, ManualClock())
        outbox.enqueue([OutboxEntry(Message("m", "r", "g", (alert,)), Occasion.FIRING, (alert.fingerprint,))])
        assert Outbox(store, ManualClock()).lost == frozenset()
        Acks(store, ManualClock()).add(alert, comment=text, creator=text)
        assert alert.fingerprint in Acks(store, ManualClock())
        assert store.problem_text == ""


@settings(max_examples=60, deadline=None)
@given(FLOATS, FLOATS, TEXTS)
def test_silences(seconds: float, starts_at: float, text: str) -> None:
    """A silence of any length and beginning is refused in words, or comes back."""
    with closing(Store(None)) as store:
        silences = Silences(store, ManualClock())
        with suppress(ValueError):
            silences.add([parse_matcher('a="b"')], seconds, comment=text, creator=text, starts_at=starts_at)
        assert len(Silences(store, ManualClock()).all()) == len(silences.all())
        assert store.problem_text == ""


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**22), st.integers(0, 2**53), st.integers(0, 2**32 - 1), SECONDS,
    st.sets(st.sampled_from(Evidence)), st.binary(max_size=100),
)  # fmt: skip
def test_histories_of_leaks(
    pid: int, ticks: int, instance: int, clock: float, evidence: set[Evidence], dump: bytes
) -> None:
    """ALERT-08: a history of any process, instance, time and evidence comes back as it was saved."""
    history = LeakHistory(LeakKey(ProcessId(BOOT, pid, ticks), "GPU-0", instance), clock, tuple(evidence), dump)
    with closing(Store(None)) as store:
        histories = LeakHistories(store)
        histories.save([history], [])
        assert histories.load(BOOT) == [history]
        assert store.problem_text == ""
