"""Send the usage of a week to those who asked for it: at its hour, once, and late if the agent was down then."""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import UTC, datetime, timedelta

from gpuagent.config.models import Config
from gpuagent.config.usage import WEEKDAYS, Report
from gpuagent.core.clock import Clock
from gpuagent_alerts.alert import Alert, Message, Status
from gpuagent_alerts.alert import Report as ReportText
from gpuagent_alerts.notify.outbox.delivery import Delivery
from gpuagent_alerts.notify.outbox.entry import Occasion, OutboxEntry, id_of_news
from gpuagent_alerts.notify.outbox.queue import Outbox
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.problem import StoreFailure
from gpuagent_alerts.usage.accounting import UsageAccounting
from gpuagent_alerts.usage.report import html, markdown, report_title
from gpuagent_alerts.usage.summary import GroupBy

log = logging.getLogger(__name__)

REPORT_ALERTNAME = "GpuUsageReport"
CHECK_SECONDS = 60.0
_SENT_KEY = "usage_reports_sent"
_WEEK = timedelta(days=7)
_LATEST = timedelta(days=2)
"""After this a report that was missed is left out: the next one is nearer."""


class UsageReports:
    """Looks every minute whether a report is due. For one event loop."""

    def __init__(
        self, config: Config, clock: Clock, store: Store, usage: UsageAccounting, outbox: Outbox, delivery: Delivery,
        node: str,
    ) -> None:  # fmt: skip
        self.config = config
        self._clock = clock
        self._store = store
        self._usage = usage
        self._outbox = outbox
        self._delivery = delivery
        self._node = node
        self._fails = False

    async def send_due(self) -> None:
        """Put every report that is due into the outbox, and note that; a failure is logged once, and tried again."""
        if not self.config.reports or self.config.alerting != "node":
            return
        try:
            await self._send_due()
        except StoreFailure as error:
            if not self._fails:
                log.warning("a report of usage could not be written: %s", error)
            self._fails = True
        else:
            self._fails = False

    async def _send_due(self) -> None:
        now = datetime.fromtimestamp(self._clock.wall(), UTC)
        sent = self._store.meta_at_start(_SENT_KEY, _decode) or {}
        known = {}
        for report in self.config.reports:
            name, due = _name(report), last_due(report, now)
            before = sent.get(name)
            # One that was just configured begins with its next week.
            known[name] = due.timestamp() if before is None else max(before, due.timestamp())
            if before is not None and before < due.timestamp() and now - due < _LATEST:
                await self._send(report, due)
        if known != sent:
            await asyncio.to_thread(self._store.set_meta, _SENT_KEY, json.dumps(known))

    async def _send(self, report: Report, due: datetime) -> None:
        first, until = f"{due - _WEEK:%Y-%m-%d}", f"{due - timedelta(days=1):%Y-%m-%d}"
        document = await self._usage.document_of(GroupBy(report.by), first, until)
        title = report_title(document, until)
        write = html if report.format == "html" else markdown
        text = ReportText(title, write(document, title), report.format)
        labels = {"alertname": REPORT_ALERTNAME, "severity": "info", "node": self._node, "by": report.by}
        summary = {"summary": title, "resolved_summary": title}
        alert = Alert(labels, summary, Status.RESOLVED, due.timestamp(), self._clock.wall(), value=1.0)
        group = f'{REPORT_ALERTNAME}:{{by="{report.by}", until="{until}"}}'
        entries = [
            OutboxEntry(
                Message(id_of_news(name, group, [alert]), name, group, (alert,), labels, report=text),
                Occasion.RESOLVED,
            )
            for name in report.receivers
        ]
        await asyncio.to_thread(self._outbox.enqueue, entries)
        self._delivery.wake(report.receivers)
        log.info("%s was sent to %s", title, ", ".join(report.receivers))


def last_due(report: Report, now: datetime) -> datetime:
    """Return when the report was due last, at `now` or before."""
    days = (now.weekday() - WEEKDAYS.index(report.weekday)) % 7
    due = (now - timedelta(days=days)).replace(hour=report.hour, minute=0, second=0, microsecond=0)
    return due if due <= now else due - _WEEK


def _name(report: Report) -> str:
    """Return what a report is known by: one that is changed is another."""
    return f"{report.by} {report.weekday} {report.hour} {' '.join(sorted(report.receivers))}"


def _decode(text: str) -> dict[str, float]:
    found = json.loads(text)
    if not isinstance(found, dict) or not all(isinstance(each, int | float) for each in found.values()):
        raise ValueError("it is no record of reports")
    return {str(name): float(at) for name, at in found.items()}
