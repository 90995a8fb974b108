"""Alerts, silences and receivers: see `gpuagent.alerting.commands`, which makes the documents."""

from __future__ import annotations

from gpuagent_exporters.openapi.schema import Schema, flag, integer, listing, mapping, number, one_of, record, ref, text
from gpuagent_exporters.openapi.status_schemas import VERSION

ALERT_SCHEMAS: dict[str, Schema] = {
    "Alerts": record(
        "What fires, who is told, and what became of it.",
        schema=VERSION,
        time_seconds=number("Unix time of the answer."),
        simulated=flag("No real GPU stands behind this."),
        alerting=text("Who notifies, as it is configured."),
        alerts=listing(ref("Alert"), "Firing ones first."),
        incidents=listing(ref("Incident"), "Those that go on, then those that ended within a day."),
        silences=listing(ref("Silence")),
        receivers=listing(ref("Receiver"), "Those configured, and others for which messages are still kept."),
        held_back=listing(record(
            "What a receiver has not been told yet, as it was too much for an hour.",
            receiver=text(),
            messages=integer(),
            since_seconds=number("Unix time of the oldest."),
            alerts=listing(text(), "Names."),
        )),
        heartbeats=listing(record(
            "A receiver that is called all the time.",
            receiver=text(),
            interval_seconds=number(),
            sent=integer("Since the start."),
            failed=integer("Since the start."),
            last=text("The last outcome in words; `hidden` where commands are not shown."),
        )),
        rules=integer("Rules in force."),
        failing_rules=listing(record(
            "A rule that could not be evaluated.", group=text(), rule=text(), error=text("Why.")
        )),
        store_problem=text("Why the state cannot be kept on the disk."),
    ),
    "Alert": record(
        "One alert that is pending or firing. Where commands are not shown, `annotations` is empty.",
        name=text("Of its rule."),
        state=one_of(["pending", "firing"]),
        severity=text("Its label of this name."),
        fingerprint=text("Identifies it, as in Alertmanager's API."),
        labels=mapping(text()),
        annotations=mapping(text(), "With templates filled in; empty where commands are not shown."),
        value=number("Of its expression; null where that is no finite number.", null=True),
        active_seconds=number("Since the expression became true."),
        fires_in_seconds=number("Of a pending one: if it stays true for so long. null once it fires.", null=True),
        starts_at_seconds=number("Unix time.", null=True),
        incident=text("Key of the incident that it belongs to; empty for none."),
        silenced_by=listing(text(), "Ids of silences."),
        muted_by=text("Why another alert's being there mutes it."),
        acknowledged_by=text("A user; `hidden` where commands are not shown."),
        receivers=listing(text(), "Who is told, by the routes."),
    ),
    "Incident": record(
        "Alerts of one cause.",
        key=text("Stands for it everywhere, also in messages."),
        headline=text("What happened in one line; empty where nothing is known, and where commands are not shown."),
        kind=one_of(["process", "group", "gpu", "node", "receiver", "rule"]),
        labels=mapping(text(), "Of what it happened to."),
        severity=text("The worst of its alerts."),
        starts_at_seconds=number("Unix time."),
        ends_at_seconds=number("Unix time; null while it goes on.", null=True),
        reopened=integer("How often it began again within half an hour of its end."),
        alerts=listing(text(), "Fingerprints of those that fire."),
        acknowledged_by=text("A user; `hidden` where commands are not shown."),
    ),
    "Silence": record(
        "Nothing is said of what matches.",
        id=text(),
        matchers=listing(text(), "All must match."),
        state=one_of(["pending", "active", "expired"]),
        starts_at_seconds=number("Unix time."),
        ends_at_seconds=number("Unix time."),
        comment=text("Empty where commands are not shown."),
        creator=text("The user at the other end of the control socket; empty where commands are not shown."),
        note=text(
            "Where it names an alert that no rule has: which, and what was probably meant. When it is added, also that "
            "it silences nothing now."
        ),
    ),
    "Receiver": record(
        "One receiver, and its messages.",
        receiver=text("Its name."),
        kind=text('Such as slack; "" where it is configured no more.'),
        queued=integer("Messages that wait."),
        dead=integer("Messages that were given up."),
        oldest_seconds=number("Age of the oldest that waits.", null=True),
        sent=integer(),
        failed=integer(),
        dropped=integer("Because too many waited."),
        held_back=integer("Because the receiver had had enough for an hour; a digest tells of them."),
        last=text("The last outcome in words; `hidden` where commands are not shown."),
        off=text("Why nothing is tried until somebody has looked; `hidden` where commands are not shown."),
        off_since_seconds=number("Unix time.", null=True),
    ),
    "DeadLetters": record(
        "Messages that were given up, oldest first.",
        schema=VERSION,
        time_seconds=number("Unix time of the answer."),
        dead=listing(record(
            "One message.",
            id=text(),
            receiver=text(),
            status=one_of(["firing", "resolved"]),
            alerts=listing(text(), "Names."),
            created_seconds=number("Unix time."),
            attempts=integer(),
            error=text("Of the last attempt."),
        )),
    ),
    "Acknowledged": record("What is acknowledged now.", acknowledged=listing(text(), "Fingerprints.")),
    "Unacknowledged": record("What is acknowledged no more.", removed=listing(text(), "Fingerprints.")),
    "ReceiverTest": record("What a receiver said to a test.", taken=flag(), outcome=text("In words.")),
    "Replayed": record("Messages that are tried again.", replayed=integer("How many.")),
}  # fmt: skip
