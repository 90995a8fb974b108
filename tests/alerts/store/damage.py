"""A state file that a real alerting half and real remedies have filled, and ways to damage it."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

from gpuagent.config.models import Config
from gpuagent.core.clock import ManualClock
from gpuagent.core.growth import MemoryKey
from gpuagent.core.identity import ProcessId
from gpuagent.core.usage import Amounts, Holder
from gpuagent_alerts.leak.histories import Beginning, Histories
from gpuagent_alerts.leak.lives import ServiceKey, ServiceRow
from gpuagent_alerts.notify.outbox.attempt import DeliveryOutcome, Reason
from gpuagent_alerts.notify.receivers.slack import StoredThreads, Thread
from gpuagent_alerts.remedies.audit import Audit
from gpuagent_alerts.remedies.audit_rows import END, INTENT, RESULT
from gpuagent_alerts.rules.model import RuleGroup
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.leaks import LeakHistories
from gpuagent_alerts.store.usage import UsageDays
from tests.agent.service.alerting.bench import BUSY, FULL, alerting, config, rules
from tests.fakes.readings import BOOT_ID

HALF = "alert: Half, expr: gpuagent_gpu_memory_used_ratio > 0.5, labels: {severity: warning}"
BEGUN = {
    "pid": 4711, "start_ticks": 1000, "boot_id": BOOT_ID, "gpu": 0, "gpu_uuid": "GPU-0", "name": "trainer",
    "dry_run": False, "ladder": ["kill"], "program": "/usr/bin/trainer", "unit": "trainer.service",
    "labels": {"gpu": "0"}, "members": [4711],
}  # fmt: skip
TABLES = (
    "meta",
    "instances",
    "outbox",
    "told",
    "incidents",
    "silences",
    "acks",
    "remedy_audit",
    "leak_histories",
    "leak_services",
    "slack_threads",
    "usage_days",
)
NOWHERE = "http://127.0.0.1:9/"
"""Nobody listens on the port `discard`: what is sent there stays in the outbox."""


def settings(folder: Path) -> Config:
    """A configuration with receivers that cannot be reached."""
    hooks = [{"name": name, "webhook": {"url": NOWHERE}} for name in ("hook", "gone")]
    return config(folder, None, receivers=hooks)


def groups() -> tuple[RuleGroup, ...]:
    """Two rules that are true of `BUSY`."""
    return rules(FULL, HALF)


def filled(folder: Path, clock: ManualClock) -> Path:
    """Every table has rows."""
    path = folder / "state.db"

    async def fill() -> None:
        async with alerting(settings(folder), groups(), clock, path) as bench:
            await bench.show(BUSY, times=2)
            await bench.commands.add_silence(['gpu="7"', 'user=~"a.*"'], 3600.0, "maintenance", "alice")
            await bench.commands.acknowledge("Half", "on it", "bob")
            delivery = bench.alerting.delivery
            await asyncio.to_thread(
                delivery._disabled.switch_off, delivery.workers["gone"].sender, DeliveryOutcome(Reason.GONE, "410 Gone")
            )

    asyncio.run(fill())
    store = Store(path)
    store.execute("UPDATE outbox SET state = 'dead', last_error = 'refused' WHERE seq = (SELECT min(seq) FROM outbox)")
    _remember_leaks(store)
    asyncio.run(StoredThreads(store).keep("chat", "C1", "inc-1", Thread("1.000100", "C1"), clock.wall()))
    act(Audit(store, clock, BOOT_ID))
    amounts = Amounts(60.0, 60.0, 30.0, 0.0, 2.0**40, 2.0**30, 1000.0)
    UsageDays(store).add("2026-11-27", "", [(0, "GPU-00000000", Holder(user="alice", unit="trainer.service"), amounts)])
    store.close()
    return path


def act(audit: Audit) -> str:
    """One action on record."""
    run = audit.begin(BEGUN)
    audit.write(run, INTENT, {"step": "kill", "disrupts": True, "dry_run": False, "pids": [4711]})
    audit.write(run, RESULT, {"step": "kill", "ok": True, "errno": None, "detail": ""})
    audit.write(run, END, {"result": "released", "acted": True, "released_bytes": 1, "seconds": 1.0, "detail": ""})
    return run


def _remember_leaks(store: Store) -> None:
    histories = Histories("balanced")
    for pid in (4711, 4712):
        beginning = Beginning(24 * 2**30, 10.0, 0)
        made = histories.begin(ProcessId(BOOT_ID, pid, 1000), MemoryKey("GPU-00000000", pid), beginning)
        assert made is not None
        for second in range(0, 600, 5):
            made.update(1000.0 + second, 2**30 + second * 2**20, 20 * 2**30)
    kept = LeakHistories(store)
    kept.save(histories.to_keep(1700.0), [])
    kept.save_services([ServiceRow(ServiceKey("unit trainer.service", "python", 24 * 2**30), 1, 2**18, 0, 1, 1, 0, 0)])


def columns(path: Path, table: str) -> list[str]:
    """Names of a table's columns."""
    with closing(sqlite3.connect(path)) as db:
        return [str(row[1]) for row in db.execute(f"PRAGMA table_info({table})")]


def damage(path: Path, table: str, column: str, value: object, *, all_rows: bool = False) -> int:
    """Write a value where it does not belong, past every constraint that SQLite can be made to pass over.

    Returns how many rows have it.
    """
    where = "" if all_rows else f" WHERE {column} IS (SELECT {column} FROM {table} LIMIT 1)"
    with closing(sqlite3.connect(path)) as db:
        db.execute("DROP TRIGGER IF EXISTS remedy_audit_is_true")
        try:
            changed = db.execute(f"UPDATE {table} SET {column} = ?{where}", (value,)).rowcount
        except sqlite3.IntegrityError:  # NOT NULL, or a key that is there already
            changed = 0
        db.execute(
            "CREATE TRIGGER remedy_audit_is_true BEFORE UPDATE ON remedy_audit\n"
            "        BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END"
        )
        db.commit()
    return changed
