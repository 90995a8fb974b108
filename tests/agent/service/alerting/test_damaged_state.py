"""A state file with damage in any table: every part of the agent starts, goes on, and says what was lost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from gpuagent.core.clock import ManualClock
from gpuagent_alerts.leak.sensor import LeakDetection
from gpuagent_alerts.notify.receivers.slack import StoredThreads
from gpuagent_alerts.remedies.audit import Audit, NotRecorded
from gpuagent_alerts.remedies.audit_rows import runs
from gpuagent_alerts.remedies.safeguards.limits import RemedyLimits, breaker_reason, refusals
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.usage import UsageDays
from tests.agent.service.alerting.bench import BUSY, CALM, alerting
from tests.alerts.store.damage import TABLES, act, columns, damage, filled, groups, settings
from tests.fakes.readings import BOOT_ID

SPOILED: tuple[object, ...] = (
    None, b"\x00\xff\xfe", "", "no JSON", "{}", "[]", "null", "NaN", "[" * 100_000, "-5", -5, -1e300, 1e300,
    float("inf"), 2**63 - 1, -(2**63), 3.5, "x" * 5_000_000, b"y" * 3_000_000, '{"labels": {"a": 1}}',
    '{"told_at": "1"}', '{"version": 99}', "\x00nul", "\ud7ff\U0010ffff", '[{"a": Infinity}]', '["no matcher"]',
    '["a=~\\"(\\""]', "1" * 5000,
)  # fmt: skip


class Value(NamedTuple):
    """What is written into a cell; shown short."""

    value: object

    def __repr__(self) -> str:
        return repr(self.value)[:100]


VALUES = st.one_of(
    st.sampled_from([Value(each) for each in SPOILED]),
    st.builds(
        Value,
        st.one_of(
            st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
            st.binary(max_size=20),
            st.integers(-(2**63), 2**63 - 1),
            st.floats(allow_nan=False),
        ),
    ),
)
PLACES = {
    "meta": ("key", "value"),
    "instances": ("group_name", "rule", "fingerprint", "dump"),
    "outbox": (
        "id", "receiver", "group_key", "reason", "news", "body", "bytes", "created", "attempts", "next_at", "wait",
        "state", "last_error", "done_at",
    ),
    "incidents": ("incident_key", "dump"),
    "told": ("receiver", "group_key", "dump"),
    "silences": ("id", "matchers", "starts_at", "ends_at", "comment", "creator", "created_at"),
    "acks": ("fingerprint", "alertname", "comment", "creator", "created_at"),
    "remedy_audit": ("run", "kind", "boot_id", "clock", "wall", "data"),
    "slack_threads": ("receiver", "channel", "incident", "ts", "channel_id", "at"),
    "leak_histories": (
        "boot_id", "pid", "start_ticks", "gpu_uuid", "gpu_instance_id", "clock_seconds", "evidence", "dump",
    ),
    "leak_services": (
        "owner", "name", "total_bytes", "version", "level_used", "level_tensors", "exhausted", "leaked", "grown",
        "quiet", "leaking",
    ),
    "usage_days": (
        "day", "gpu_uuid", "kind", "user", "unit", "container", "namespace", "pod", "job", "gpu", "held", "observed",
        "busy", "idle", "memory", "untouched", "energy",
    ),
}  # fmt: skip
ANYWHERE = [(table, column) for table, names in PLACES.items() for column in names]


@pytest.fixture(scope="module")
def original() -> Iterator[Path]:
    """A file that a real run has filled; nobody changes it."""
    with tempfile.TemporaryDirectory(prefix="gpuagent-") as folder:
        path = filled(Path(folder), ManualClock())
        with closing(sqlite3.connect(path)) as db:
            assert all(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in TABLES)
        yield path


def use(path: Path) -> Store:
    """Start every part on a file, let it work, and stop it; returns what is in the file then."""

    async def work() -> None:
        clock = ManualClock()
        clock.advance(100.0)
        async with alerting(settings(path.parent), groups(), clock, path) as bench:
            store = bench.alerting.store
            leaks = LeakDetection("balanced", clock, store=store, boot_id=BOOT_ID)
            leaks.open()
            UsageDays(store).check()
            audit = Audit(store, clock, BOOT_ID)
            audit.close_open()
            runs(audit.events())
            for seen in (BUSY, CALM, BUSY):
                await bench.show(leaks.observe(seen))
            await leaks.keep()
            await StoredThreads(store).find("chat", "C1", "inc-1")
            assert (await bench.state("Half"))["state"] == "firing"
            await bench.commands.dead()
            await bench.commands.replay(None)
            await bench.commands.add_silence(['gpu="9"'], 60.0, "", "carol")
            await bench.alerting.housekeeping()
            for name in ("hook", "gone"):
                bench.alerting.outbox.release(await asyncio.to_thread(bench.alerting.outbox.take_due, name, 100))
            assert audit.past(dry_run=False)
            with contextlib.suppress(NotRecorded):
                act(audit)
            await leaks.close()

    asyncio.run(work())
    return Store(path)


def test_every_column_of_every_table_is_here(original: Path) -> None:
    """ALERT-08: a table or a column that is added is damaged by these tests too."""
    with closing(sqlite3.connect(original)) as db:
        found = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert {name for name in found if not name.startswith("sqlite_")} == {*PLACES, "set_aside"}
    for table, names in PLACES.items():
        assert set(columns(original, table)) - {"seq"} == set(names)


@pytest.mark.exhaustive
@pytest.mark.slow
@hypothesis_settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(ANYWHERE), VALUES, st.booleans()), min_size=1, max_size=4))
def test_any_damage_in_any_table(original: Path, spoiled: list[tuple[tuple[str, str], Value, bool]]) -> None:
    """ALERT-08: whatever is in a row, all parts load and go on with the rest, and nothing is set aside twice."""
    with tempfile.TemporaryDirectory(prefix="gpuagent-") as folder:
        path = Path(shutil.copy(original, Path(folder) / "state.db"))
        for (table, column), spoiling, all_rows in spoiled:
            damage(path, table, column, spoiling.value, all_rows=all_rows)
        store = use(path)
        assert store.problem is None
        again = use(path)
        assert {table for table in again.set_aside_rows if table != "remedy_audit"} == set()
        store.close()
        again.close()


@pytest.mark.parametrize("table", [table for table in TABLES if table != "remedy_audit"])
def test_a_bad_row_costs_itself(original: Path, tmp_path: Path, table: str, caplog: pytest.LogCaptureFixture) -> None:
    """ALERT-08: of each table one row is set aside with its content and the reason; the other tables keep all."""
    path = Path(shutil.copy(original, tmp_path / "state.db"))
    column = {"meta": "value", "silences": "matchers", "outbox": "body"}.get(table, columns(path, table)[-1])
    spoiled = damage(path, table, column, "broken" if table == "leak_histories" else b"\xffbroken")

    async def start() -> tuple[str, dict[str, int]]:
        async with alerting(settings(tmp_path), groups(), ManualClock(), path) as bench:
            LeakDetection("balanced", bench.clock, store=bench.alerting.store, boot_id=BOOT_ID).open()
            await StoredThreads(bench.alerting.store).find("chat", "C1", "inc-1")
            UsageDays(bench.alerting.store).check()
            await bench.show(BUSY)
            figures = bench.alerting.figures()
            assert figures is not None
            return (await bench.commands.alerts())["store_problem"], dict(figures.rows_set_aside)

    problem, counted = asyncio.run(start())
    assert counted == {table: spoiled}
    assert f"{spoiled} of {table} ({column}: " in problem
    assert sum("cannot be read" in record.message for record in caplog.records) == 1
    with closing(sqlite3.connect(path)) as db:
        rows = db.execute("SELECT table_name, row, reason FROM set_aside").fetchall()
    assert [row[0] for row in rows] == [table] * spoiled
    assert "broken" in json.loads(rows[0][1])[column]
    assert column in rows[0][2]


def test_an_alert_whose_state_is_lost_is_told_once(original: Path, tmp_path: Path) -> None:
    """ALERT-08: what is firing at the receivers and still true is neither ended nor told again when its row is lost."""
    path = Path(shutil.copy(original, tmp_path / "state.db"))
    damage(path, "instances", "dump", "{", all_rows=True)
    with closing(sqlite3.connect(path)) as db:
        before = db.execute("SELECT id FROM outbox ORDER BY seq").fetchall()

    async def go_on() -> None:
        async with alerting(settings(tmp_path), groups(), ManualClock(), path) as bench:
            await bench.show(BUSY, times=3)

    asyncio.run(go_on())
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT id FROM outbox ORDER BY seq").fetchall() == before


def test_what_is_told_again_has_the_id_that_it_had(original: Path, tmp_path: Path) -> None:
    """ALERT-08: when the note that an alert was told is lost, it is told again under the same id."""
    path = Path(shutil.copy(original, tmp_path / "state.db"))
    damage(path, "told", "dump", "{", all_rows=True)
    with closing(sqlite3.connect(path)) as db:
        before = set(db.execute("SELECT id FROM outbox"))
        db.execute("UPDATE outbox SET state = 'sent', body = '', bytes = 0")
        db.commit()

    async def go_on() -> None:
        async with alerting(settings(tmp_path), groups(), ManualClock(), path) as bench:
            await bench.show(BUSY, times=3)

    asyncio.run(go_on())
    with closing(sqlite3.connect(path)) as db:
        assert set(db.execute("SELECT id FROM outbox WHERE state = 'queued'")) == before


@pytest.mark.parametrize("column", ["run", "kind", "clock", "wall", "data"])
def test_a_damaged_action_is_an_action(original: Path, tmp_path: Path, column: str) -> None:
    """KILL-04: limits count what the record has, and what cannot be read of it as if anybody had been acted on."""
    path = Path(shutil.copy(original, tmp_path / "state.db"))
    damage(path, "remedy_audit", column, b"\xff", all_rows=True)
    store, clock = Store(path), ManualClock()
    audit = Audit(store, clock, BOOT_ID)
    past = audit.past(dry_run=False)
    assert any(each.unknown for each in past)
    assert list(refusals(RemedyLimits(per_day=1, pause=0.0), past, unit="other.service", cooldown_key="user:1:other"))
    assert list(refusals(RemedyLimits(pause=0.0), audit.past(dry_run=True), cooldown_key="user:1:other"))
    clock.advance(86_401.0)
    assert not list(
        refusals(RemedyLimits(), audit.past(dry_run=False), unit="other.service", cooldown_key="user:1:other")
    )
    store.close()


def test_a_record_that_is_lost_stops_remedies_until_somebody_has_looked(original: Path, tmp_path: Path) -> None:
    """KILL-04: a state file that was damaged may have lost actions: nothing is done before a reset."""
    path = Path(shutil.copy(original, tmp_path / "state.db"))
    path.write_bytes(b"no database" * 1000)
    store = Store(path)
    audit = Audit(store, ManualClock(), BOOT_ID)
    assert "damaged" in breaker_reason(RemedyLimits(), audit.past(dry_run=False, since_reset=True))
    store.close()
    again = Store(path)
    audit = Audit(again, ManualClock(), BOOT_ID)
    assert breaker_reason(RemedyLimits(), audit.past(dry_run=False, since_reset=True))
    audit.reset("alice")
    assert breaker_reason(RemedyLimits(), audit.past(dry_run=False, since_reset=True)) == ""
    again.close()
