"""The tables, as steps: a file of an older version is brought forward by the steps that it lacks.

A step that was released is never changed; a change is one more step.
"""

from __future__ import annotations

Step = tuple[str, ...]
"""SQL statements that are applied together, or not at all."""

APPLICATION_ID = 0x67706167
"""Mark in the head of the file, so that another program's database is not taken for ours: "gpag"."""

STEPS: tuple[Step, ...] = (
    (
        "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
        # The state machines' instances; what a dump holds is theirs to know.
        """
        CREATE TABLE instances (
            group_name TEXT NOT NULL,
            rule TEXT NOT NULL,
            fingerprint TEXT NOT NULL,
            dump TEXT NOT NULL,
            PRIMARY KEY (group_name, rule, fingerprint)
        ) WITHOUT ROWID
        """,
        # AUTOINCREMENT: a number is never used again, so that order is order for ever.
        """
        CREATE TABLE outbox (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            receiver TEXT NOT NULL,
            group_key TEXT NOT NULL,
            reason TEXT NOT NULL,
            news TEXT NOT NULL,
            body TEXT NOT NULL,
            bytes INTEGER NOT NULL,
            created REAL NOT NULL,
            attempts INTEGER NOT NULL DEFAULT 0,
            next_at REAL NOT NULL,
            wait REAL NOT NULL DEFAULT 0,
            state TEXT NOT NULL DEFAULT 'queued',
            last_error TEXT NOT NULL DEFAULT '',
            done_at REAL
        )
        """,
        # Finds the head of every group without a look at what was sent.
        "CREATE INDEX outbox_queued ON outbox (receiver, group_key, seq) WHERE state = 'queued'",
        "CREATE INDEX outbox_state ON outbox (state, seq)",
        # What each receiver was told last, per group of alerts.
        """
        CREATE TABLE told (
            receiver TEXT NOT NULL,
            group_key TEXT NOT NULL,
            dump TEXT NOT NULL,
            PRIMARY KEY (receiver, group_key)
        ) WITHOUT ROWID
        """,
        """
        CREATE TABLE silences (
            id TEXT PRIMARY KEY,
            matchers TEXT NOT NULL,
            starts_at REAL NOT NULL,
            ends_at REAL NOT NULL,
            comment TEXT NOT NULL,
            creator TEXT NOT NULL,
            created_at REAL NOT NULL
        ) WITHOUT ROWID
        """,
        """
        CREATE TABLE acks (
            fingerprint TEXT PRIMARY KEY,
            alertname TEXT NOT NULL,
            comment TEXT NOT NULL,
            creator TEXT NOT NULL,
            created_at REAL NOT NULL
        ) WITHOUT ROWID
        """,
    ),
    (
        # What was done to processes, and why. A row is written before what it tells of, and never changed after.
        """
        CREATE TABLE remedy_audit (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            run TEXT NOT NULL,
            kind TEXT NOT NULL,
            boot_id TEXT NOT NULL,
            clock REAL NOT NULL,
            wall REAL NOT NULL,
            data TEXT NOT NULL
        )
        """,
        "CREATE INDEX remedy_audit_run ON remedy_audit (run)",
        """
        CREATE TRIGGER remedy_audit_is_kept BEFORE DELETE ON remedy_audit
        BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END
        """,
        """
        CREATE TRIGGER remedy_audit_is_true BEFORE UPDATE ON remedy_audit
        BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END
        """,
    ),
    (
        # What the leak detector remembers of processes, of this boot alone.
        """
        CREATE TABLE leak_histories (
            boot_id TEXT NOT NULL,
            pid INTEGER NOT NULL,
            start_ticks INTEGER NOT NULL,
            gpu_uuid TEXT NOT NULL,
            gpu_instance_id INTEGER NOT NULL,
            clock_seconds REAL NOT NULL,
            evidence TEXT NOT NULL,
            dump BLOB NOT NULL,
            PRIMARY KEY (boot_id, pid, start_ticks, gpu_uuid, gpu_instance_id)
        )
        """,
    ),
    (
        # Rows that could not be read, for whoever wants to look. Bounded: see `rows`.
        """
        CREATE TABLE set_aside (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            table_name TEXT NOT NULL,
            row TEXT NOT NULL,
            reason TEXT NOT NULL,
            wall REAL NOT NULL DEFAULT (CAST(strftime('%s', 'now') AS REAL))
        )
        """,
    ),
    (
        # What has one cause: alerts, told as one thread of messages. What a dump holds is theirs to know.
        "CREATE TABLE incidents (incident_key TEXT PRIMARY KEY, dump TEXT NOT NULL) WITHOUT ROWID",
    ),
    (
        # The root of each incident's thread in a Slack channel.
        """
        CREATE TABLE slack_threads (
            receiver TEXT NOT NULL,
            channel TEXT NOT NULL,
            incident TEXT NOT NULL,
            ts TEXT NOT NULL,
            channel_id TEXT NOT NULL,
            at REAL NOT NULL,
            PRIMARY KEY (receiver, channel, incident)
        )
        """,
    ),
    (
        # What the lives of services have shown to the leak detector, over boots.
        """
        CREATE TABLE leak_services (
            owner TEXT NOT NULL,
            name TEXT NOT NULL,
            total_bytes INTEGER NOT NULL,
            version INTEGER NOT NULL,
            level_used INTEGER NOT NULL,
            level_tensors INTEGER NOT NULL,
            exhausted INTEGER NOT NULL,
            leaked INTEGER NOT NULL,
            grown INTEGER NOT NULL,
            quiet INTEGER NOT NULL,
            PRIMARY KEY (owner, name, total_bytes)
        )
        """,
    ),
    (
        # Who has used which GPU on which day, by UTC.
        """
        CREATE TABLE usage_days (
            day TEXT NOT NULL,
            gpu_uuid TEXT NOT NULL,
            kind TEXT NOT NULL,
            user TEXT NOT NULL,
            unit TEXT NOT NULL,
            container TEXT NOT NULL,
            namespace TEXT NOT NULL,
            pod TEXT NOT NULL,
            job TEXT NOT NULL,
            gpu INTEGER NOT NULL,
            held REAL NOT NULL,
            observed REAL NOT NULL,
            busy REAL NOT NULL,
            idle REAL NOT NULL,
            memory REAL NOT NULL,
            untouched REAL,
            energy REAL,
            PRIMARY KEY (day, gpu_uuid, kind, user, unit, container, namespace, pod, job)
        )
        """,
    ),
    (
        # Lives that were leaking when the agent was stopped: over, where the next one does not see them.
        "ALTER TABLE leak_services ADD COLUMN leaking INTEGER NOT NULL DEFAULT 0",
    ),
)
