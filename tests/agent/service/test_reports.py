"""Reports of usage: when they are due, what they say, and who is sent them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from gpuagent.config.load import ConfigError
from gpuagent.config.models import Config
from gpuagent.core.clock import ManualClock
from gpuagent.core.usage import NOBODY, Amounts, Holder
from gpuagent.service.reports import UsageReports, last_due
from gpuagent_alerts.alert import Message
from gpuagent_alerts.notify.outbox.entry import OUTBOX, dump_message, load_message
from gpuagent_alerts.notify.outbox.queue import Outbox
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.usage import UsageDays, UsageRow
from gpuagent_alerts.usage.accounting import UsageAccounting, UsageSettings
from gpuagent_alerts.usage.report import html, markdown, report_title
from gpuagent_alerts.usage.summary import GroupBy, Price, usage_document
from tests.agent.config.loading import load, write

HOOK = "receivers: [{name: hook, webhook: {url: 'http://127.0.0.1:9/'}}]\n"
MONDAY = datetime(2026, 11, 23, 8, tzinfo=UTC)


class _Delivery:
    def wake(self, receivers: object) -> None:
        """Nothing is delivered here."""


class Stage:
    """An agent's reports, at a wall clock that stands still until it is told."""

    def __init__(self, folder: Path, begin: datetime, reports: str, store: Store | None = None) -> None:
        self.config = load(write(folder, f"{HOOK}reports: {reports}\n"))
        self.clock = ManualClock(wall=begin.timestamp())
        self.store = store or Store(None)
        usage = UsageAccounting(UsageSettings(), self.clock, self.store, 5.0, node="node7")
        outbox, delivery = Outbox(self.store, self.clock), cast("Any", _Delivery())
        self.reports = UsageReports(self.config, self.clock, self.store, usage, outbox, delivery, "node7")

    def until(self, when: datetime) -> list[Message]:
        """Go on to a time, look whether a report is due, and return all that was sent."""
        self.clock.advance(when.timestamp() - self.clock.wall())
        asyncio.run(self.reports.send_due())
        return [entry.message for entry in self.store.read(OUTBOX)]


def test_a_report_is_sent_once_a_week(tmp_path: Path) -> None:
    """Not when it is configured, then at its hour, once, about the seven days before."""
    stage = Stage(tmp_path, MONDAY - timedelta(days=2), "[{receivers: [hook]}]")
    days = UsageDays(stage.store)
    for day in ("2026-11-15", "2026-11-16", "2026-11-22", "2026-11-23"):
        days.add(day, "", [(0, "a", Holder(user=f"u{day[-2:]}"), Amounts(3600.0))])

    assert stage.until(MONDAY - timedelta(minutes=1)) == []
    (sent,) = stage.until(MONDAY)
    assert stage.until(MONDAY + timedelta(days=6)) == [sent]
    assert len(stage.until(MONDAY + timedelta(days=7))) == 2

    assert sent.report is not None
    assert sent.report.title == "GPU usage of node7 by user, 2026-11-16 to 2026-11-22"
    assert [f"u{day}" in sent.report.text for day in (15, 16, 22, 23)] == [False, True, True, False]


def test_a_report_that_was_missed_is_sent_late(tmp_path: Path) -> None:
    """Within two days; after that the next one is nearer. What was sent is known after a restart."""
    stage = Stage(tmp_path, MONDAY - timedelta(days=2), "[{receivers: [hook]}]")
    stage.until(MONDAY - timedelta(days=1))
    after = Stage(tmp_path, MONDAY + timedelta(days=1), "[{receivers: [hook]}]", stage.store)
    assert len(after.until(MONDAY + timedelta(days=1))) == 1

    later = Stage(tmp_path, MONDAY + timedelta(days=9, hours=1), "[{receivers: [hook]}]", stage.store)
    assert len(later.until(MONDAY + timedelta(days=9, hours=1))) == 1


def test_prometheus_notifies_and_no_report_is_sent(tmp_path: Path) -> None:
    """An agent that sends no message sends no report either."""
    stage = Stage(tmp_path, MONDAY - timedelta(days=2), "[{receivers: [hook]}]\nalerting: prometheus")
    stage.until(MONDAY - timedelta(days=1))

    assert stage.until(MONDAY) == []


@pytest.mark.parametrize(
    ("now", "due"),
    [
        (MONDAY, MONDAY),
        (MONDAY - timedelta(seconds=1), MONDAY - timedelta(days=7)),
        (MONDAY + timedelta(days=6, hours=23), MONDAY),
    ],
)
def test_when_a_report_was_due_last(tmp_path: Path, now: datetime, due: datetime) -> None:
    """On its weekday at its hour, by UTC."""
    (report,) = load(write(tmp_path, f"{HOOK}reports: [{{receivers: [hook]}}]\n")).reports
    assert last_due(report, now) == due


@pytest.mark.parametrize(
    ("reports", "problem"),
    [
        ("[{receivers: [nobody]}]", "there is no receiver 'nobody'"),
        ("[{receivers: [slack]}]", "'slack' takes alerts only"),
        ("[{receivers: []}]", "receivers"),
        ("[{receivers: [hook], weekday: someday}]", "weekday"),
        ("[{receivers: [hook], hour: 24}]", "hour"),
    ],
)
def test_reports_that_cannot_be_sent_are_refused(tmp_path: Path, reports: str, problem: str) -> None:
    """A receiver that is not there, or that would make an incident of it, and times that are none."""
    receivers = (
        "receivers:\n  - {name: hook, webhook: {url: 'http://127.0.0.1:9/'}}\n"
        "  - {name: slack, slack: {url: 'https://hooks.slack.com/services/T/B/x'}}\n"
    )
    with pytest.raises(ConfigError, match=problem):
        load(write(tmp_path, f"{receivers}reports: {reports}\n"))


def test_off_until_configured() -> None:
    """Nothing is sent to anybody by default."""
    assert Config().reports == ()


ROWS = (
    UsageRow("2026-11-22", 0, "a", Holder(user="<b>|eve*"), Amounts(36_000.0, 36_000.0, 18_000.0, 9_000.0, 2.0**50)),
    UsageRow("2026-11-22", 0, "a", NOBODY, Amounts(3600.0, energy_joules=3.6e6)),
)


def test_names_are_text_in_both_forms() -> None:
    """A user's name is chosen by somebody: no markup of it has an effect."""
    document = usage_document(ROWS, GroupBy.USER, "2026-11-16", 0.0, Price(2.0, "EUR"), node="n")
    title = report_title(document, "2026-11-22")

    table = [line for line in markdown(document, title).splitlines() if line.startswith("|")]
    assert table[2] == "| \\<b\\>\\|eve\\* | 10.0 h | 5.00 h | 2.50 h | 25 % | 291 GiB h | - | 20.00 |"
    assert table[3] == "| (free) | 1.00 h | - | - | - | - | 1.00 kWh | 2.00 |"
    page = html(document, title)
    assert "&lt;b&gt;|eve*" in page
    assert "<b>" not in page


def test_a_report_outlives_a_restart(tmp_path: Path) -> None:
    """In the outbox it is kept like any message, and comes out as it went in."""
    stage = Stage(tmp_path, MONDAY - timedelta(days=2), "[{receivers: [hook], format: html}]")
    stage.until(MONDAY - timedelta(days=1))
    (sent,) = stage.until(MONDAY)

    again = load_message(dump_message(sent), message_id=sent.id, receiver=sent.receiver, group=sent.group)
    assert again == sent
    assert again.report is not None
    assert again.report.format == "html"
