"""Files that SQLite cannot use, or only in part: each loss is told, and nothing keeps the store from being used."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuagent.core.clock import ManualClock
from gpuagent_alerts.remedies.audit import Audit, NotRecorded
from gpuagent_alerts.remedies.audit_rows import END, INTENT, runs
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.files import KEPT
from gpuagent_alerts.store.problem import StoreFailure, StoreProblemKind
from gpuagent_alerts.store.tables import MOST_SET_ASIDE
from tests.alerts.store.damage import BEGUN
from tests.alerts.store.test_database import fill, write_much

BOOT = "boot"


def left_by_a_kill(folder: Path, commits: int = 20) -> Path:
    """A database whose last commits are only in its write-ahead log."""
    Store(folder / "running" / "state.db").close()
    store = Store(folder / "running" / "state.db")
    for number in range(commits):
        store.set_meta(f"key {number}", "x" * 100)
    path = folder / "state.db"
    for suffix in ("", "-wal"):
        shutil.copy(folder / "running" / f"state.db{suffix}", f"{path}{suffix}")
    store.close()
    return path


def log_of(path: Path) -> Path:
    """The write-ahead log."""
    return path.with_name(f"{path.name}-wal")


def overwrite(path: Path, offset: int, data: bytes) -> None:
    """Damage a file in place."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def kept(path: Path) -> list[str]:
    """What was moved aside."""
    return sorted(one.name for one in path.parent.glob(f"{path.name}.corrupt-*"))


def test_a_log_that_is_whole_is_no_problem(tmp_path: Path) -> None:
    """After a kill SQLite takes over what is in the log; nothing is told, and nothing kept aside."""
    path = left_by_a_kill(tmp_path)
    store = Store(path)
    assert (store.problem_text, store.meta("key 19"), store.has_lost_rows, kept(path)) == ("", "x" * 100, False, [])
    store.close()


@pytest.mark.parametrize("offset", [0, 4, 8, 16, 24], ids=["magic", "version", "page size", "salt", "checksum"])
def test_a_log_with_a_damaged_header_is_told(tmp_path: Path, offset: int) -> None:
    """ALERT-08: SQLite would pass over the whole log in silence: what was in it is lost, said so, and kept."""
    path = left_by_a_kill(tmp_path)
    overwrite(log_of(path), offset, b"\xa5\xa5")
    before = log_of(path).read_bytes()
    store = Store(path)
    assert "its header is damaged" in store.problem_text
    assert store.has_lost_rows
    store.set_meta("later", "works")
    store.close()
    (copy,) = kept(path)
    assert (path.parent / copy).read_bytes() == before
    again = Store(path)
    assert (again.meta("later"), again.problem_text, again.has_lost_rows) == ("works", "", True)
    again.close()


def test_a_log_of_garbage_is_told(tmp_path: Path) -> None:
    """ALERT-08: bytes that are no log at all."""
    path = left_by_a_kill(tmp_path)
    log_of(path).write_bytes(os.urandom(100_000))
    store = Store(path)
    assert str(log_of(path)) in store.problem_text
    store.close()


def test_a_log_without_its_database_is_told(tmp_path: Path) -> None:
    """ALERT-08: SQLite would delete it."""
    path = left_by_a_kill(tmp_path)
    path.unlink()
    store = Store(path)
    assert "has no database" in store.problem_text
    assert len(kept(path)) == 1
    store.close()


def test_a_log_that_is_damaged_in_the_middle_is_told(tmp_path: Path) -> None:
    """ALERT-08: SQLite takes the commits before the damage and drops those after it."""
    path = left_by_a_kill(tmp_path)
    overwrite(log_of(path), log_of(path).stat().st_size // 2, b"\xff" * 16)
    store = Store(path)
    assert "the last changes are lost" in store.problem_text
    assert store.meta("key 0") == "x" * 100
    assert store.meta("key 19") is None
    store.close()


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(share=st.floats(0.0, 1.0))
def test_what_a_power_cut_leaves_is_no_damage(tmp_path_factory: pytest.TempPathFactory, share: float) -> None:
    """A log that ends anywhere holds a transaction that was never committed: that is no loss, and nothing is told."""
    path = left_by_a_kill(tmp_path_factory.mktemp("cut"), commits=3)
    os.truncate(log_of(path), int(log_of(path).stat().st_size * share))
    store = Store(path)
    assert store.problem_text == ""
    store.close()


def _a_folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def _a_fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def _a_link(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/full")


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
@pytest.mark.parametrize("make", [_a_folder, _a_fifo, _a_link])
def test_something_else_in_the_place_of_a_companion(tmp_path: Path, suffix: str, make: Callable[[Path], None]) -> None:
    """ALERT-08: it is moved aside and told; the database itself is used on."""
    path = tmp_path / "state.db"
    store = Store(path)
    store.set_meta("a", "1")
    store.close()
    make(path.with_name(path.name + suffix))
    store = Store(path)
    assert (store.meta("a"), store.problem) == ("1", None)
    assert f"state.db{suffix} cannot be used" in store.problem_text
    store.set_meta("b", "2")
    store.close()
    again = Store(path)
    assert (again.meta("b"), again.problem_text) == ("2", "")
    again.close()


@pytest.mark.parametrize(
    "statement",
    [
        "PRAGMA user_version = 0",
        "PRAGMA user_version = -3",
        "DROP TABLE told",
        "ALTER TABLE told RENAME COLUMN dump TO other",
        "DROP TRIGGER remedy_audit_is_kept",
        "UPDATE sqlite_sequence SET seq = 9223372036854775807",
        "UPDATE sqlite_sequence SET seq = 'many'",
        "INSERT INTO remedy_audit VALUES (9223372036854775807, 'r', 'begin', 'b', 1.0, 1.0, '{}')",
    ],
)
def test_tables_that_are_not_as_they_were_made(tmp_path: Path, statement: str) -> None:
    """ALERT-08: a new file is begun with the rows that there are, and what it was is kept."""
    path = tmp_path / "state.db"
    store = Store(path)
    store.set_meta("a", "1")
    run = Audit(store, ManualClock(), BOOT).begin(BEGUN)
    store.close()
    with closing(sqlite3.connect(path)) as db:
        db.execute(statement)
        db.commit()
    store = Store(path)
    assert store.problem is not None
    assert (store.problem.trouble, store.problem.in_memory, store.meta("a")) == (StoreProblemKind.CORRUPT, False, "1")
    audit = Audit(store, ManualClock(), BOOT)
    assert [event.run for event in audit.events()] == [run]
    audit.write(run, END, {"result": "refused"})
    store.close()
    again = Store(path)
    assert (again.problem, [event.kind for event in Audit(again, ManualClock(), BOOT).events()]) == (
        None,
        ["begin", "end"],
    )
    again.close()


def test_a_missing_value_costs_its_row(tmp_path: Path) -> None:
    """ALERT-08: NULL where a table has none, by a table without its constraints: the row is set aside."""
    path = tmp_path / "state.db"
    Store(path).close()
    with closing(sqlite3.connect(path)) as db:
        db.execute("DROP TABLE acks")
        db.execute("CREATE TABLE acks (fingerprint, alertname, comment, creator, created_at)")
        db.execute("INSERT INTO acks VALUES ('f', NULL, '', '', 1.0), ('g', 'A', '', '', 1.0)")
        db.commit()
    store = Store(path)
    assert store.execute("SELECT fingerprint FROM acks") == [("g",)]
    assert store.execute("SELECT table_name, reason FROM set_aside") == [("acks", "a value is missing")]
    store.close()


def test_damage_in_the_middle_of_a_run(tmp_path: Path) -> None:
    """ALERT-08: it goes on in memory with what can be read; the damaged file is moved aside, never written over."""
    path = tmp_path / "state.db"
    store = Store(path)
    with store.transaction():
        for number in range(9999):
            store.set_meta(f"key {number:04}", "x" * 200)
    store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    overwrite(path, path.stat().st_size // 2, b"\xff" * 4096 * 4)
    before = path.read_bytes()
    with pytest.raises(StoreFailure):
        store.execute("SELECT count(*) FROM meta WHERE value LIKE '%y%'")
    assert store.problem is not None
    assert (store.problem.trouble, store.problem.in_memory) == (StoreProblemKind.DAMAGED, True)
    assert (store.meta("key 0000"), store.meta("key 9998")) == ("x" * 200, "x" * 200)
    store.set_meta("new", "1")
    assert store.heal()
    assert store.problem.trouble is StoreProblemKind.CORRUPT
    assert not store.problem.in_memory
    assert store.has_lost_rows
    store.close()
    assert [(path.parent / name).read_bytes() for name in kept(path) if name.endswith("Z")] == [before]
    again = Store(path)
    assert (again.meta("new"), again.meta("key 9998"), again.problem) == ("1", "x" * 200, None)
    again.close()


def test_only_the_newest_damaged_files_are_kept(tmp_path: Path) -> None:
    """A machine that damages a file at each start fills no disk."""
    path = tmp_path / "state.db"
    for number in range(KEPT + 3):
        path.write_bytes(b"no database %d" % number * 1000)
        log_of(path).unlink(missing_ok=True)
        Store(path).close()
    assert len(kept(path)) == KEPT


@pytest.mark.slow
def test_rows_that_are_set_aside_are_bounded(tmp_path: Path) -> None:
    """The newest are kept, each cut to a bounded size."""
    store = Store(tmp_path / "state.db")
    with store.transaction():
        for number in range(MOST_SET_ASIDE + 50):
            store.execute("INSERT INTO meta VALUES (?, ?)", (f"key {number}", b"\xff" * 10_000))
    for number in range(MOST_SET_ASIDE + 50):
        assert store.meta(f"key {number}") is None
    ((rows, longest),) = store.execute("SELECT count(*), max(length(row)) FROM set_aside")
    assert rows == MOST_SET_ASIDE
    assert longest < 10_000
    store.close()


def test_a_file_that_somebody_holds_at_a_start(tmp_path: Path) -> None:
    """ALERT-08: a lock that does not end leaves an agent that works in memory, and the file as it is."""
    path = tmp_path / "state.db"
    first = Store(path)
    first.set_meta("a", "1")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    first._db.execute("PRAGMA busy_timeout = 0")
    assert first.at_start(lambda: first.meta("a"), None) == "1"
    first.set_meta("b", "2")
    assert first.problem is not None
    assert first.problem.in_memory
    other.execute("ROLLBACK")
    other.close()
    assert first.heal()
    assert first.meta("b") == "2"
    assert first.problem_text == ""
    first.close()


def test_an_end_that_a_full_disk_refused_is_written_later(tmp_path: Path) -> None:
    """KILL-05: without a restart, and in order: no run is shown as under way for ever."""
    path = tmp_path / "state.db"
    store, clock = Store(path), ManualClock()
    audit = Audit(store, clock, BOOT)
    run = audit.begin(BEGUN)
    audit.write(run, INTENT, {"step": "kill", "disrupts": True})
    fill(store, room_pages=0)
    with pytest.raises(StoreFailure):
        write_much(store)
    with pytest.raises(NotRecorded):
        audit.write(run, "result", {"step": "kill", "ok": True})
    with pytest.raises(NotRecorded):
        audit.write(run, END, {"result": "released", "acted": True})
    assert store.heal()
    store.close()
    again = Store(path)
    events = Audit(again, clock, BOOT).events()
    assert [event.kind for event in events] == ["begin", "intent", "result", "end"]
    assert "end" in runs(events)[0]
    again.close()


def test_an_end_that_a_lock_refused_is_written_later(tmp_path: Path) -> None:
    """KILL-05: with the time at which it happened, before anything that is done later; nothing is begun meanwhile."""
    path = tmp_path / "state.db"
    store, clock = Store(path), ManualClock()
    audit = Audit(store, clock, BOOT)
    run = audit.begin(BEGUN)
    store.execute("PRAGMA busy_timeout = 0")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    ended_at = clock.now()
    for kind, data in (("result", {"step": "kill", "ok": True}), (END, {"result": "released", "acted": True})):
        with pytest.raises(NotRecorded):
            audit.write(run, kind, data)
    with pytest.raises(NotRecorded):
        audit.begin(BEGUN)
    other.execute("ROLLBACK")
    other.close()
    clock.advance(30.0)
    store.set_meta("whatever", "is written next")
    events = audit.events()
    assert [event.kind for event in events] == ["begin", "result", "end"]
    assert events[-1].clock_seconds == ended_at
    store.close()
