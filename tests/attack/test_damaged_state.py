"""Rows of the state that are no longer what the agent wrote: it starts, goes on, and acts on whom it should."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.attack.arena import Arena

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

GARBAGE = ("{", b"\x00\xff\xfe", '{"state": 7, "labels": []}', "[" * 5000, -1.0)
ROWS = {
    "instances": "INSERT INTO instances VALUES ('attack', 'TooMuch', 'feedface', ?)",
    "told": "INSERT INTO told VALUES ('hook', 'group', ?)",
    "silences": "INSERT INTO silences VALUES ('damaged', ?, 0, 9e99, '', '', 0)",
    "leak_histories": "INSERT INTO leak_histories VALUES (?1, 1, 1, 'GPU-0', -1, 1.0, '', ?2)",
}


def damage(state: Path, table: str, garbage: object) -> None:
    """Put garbage into every row of a table that is no part of its key, and into one row more."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    with closing(sqlite3.connect(state)) as db:
        db.execute(ROWS[table], (boot, garbage) if table == "leak_histories" else (garbage,))
        columns = [name for _, name, _, _, _, key in db.execute(f"PRAGMA table_info({table})") if not key]
        for column in columns:
            db.execute(f"UPDATE {table} SET {column} = ?", (garbage,))
        db.commit()


@pytest.mark.parametrize("garbage", GARBAGE, ids=["cut", "bytes", "other", "deep", "number"])
def test_damaged_rows(arena: Arena, garbage: object) -> None:
    """ALERT-08: garbage in every table stops neither the agent nor a remedy, and has nobody else ended."""
    uid = next(arena.uids)
    innocent = arena.innocent(arena.crowd.start(uid))
    arena.driver.hold(innocent.pid, 21)
    agent = arena.start(users=["nobody-yet"])
    assert arena.refused(innocent)
    arena.stop()
    arena.driver.hold(innocent.pid, 5)
    for table in ROWS:
        damage(agent.folder / "state" / "state.db", table, garbage)
    guilty = arena.culprit(arena.crowd.start(uid))
    arena.driver.hold(guilty.pid, 30)
    arena.start(users=[str(uid)])
    arena.judge()


LISTINGS = {
    "empty": "",
    "cut": '{"schema": 1, "boot_id": ',
    "other": '{"schema": 1, "boot_id": 5, "gpus": []}',
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("text", LISTINGS.values(), ids=LISTINGS)
def test_damaged_listings(arena: Arena, text: str) -> None:
    """KILL-01: without the memory of what the driver listed before, who has just been given a number holds nothing."""
    allowed, other = next(arena.uids), next(arena.uids)
    holder = arena.crowd.start(other)
    arena.driver.hold(holder.pid, 45, lags=True)
    agent = arena.start(users=[str(allowed)])
    assert arena.refused(holder)
    arena.stop()
    number = holder.pid
    holder.end()
    heir = arena.innocent(arena.crowd.given(number, allowed))
    (agent.folder / "state" / "listings.json").write_text(text, encoding="utf-8")
    arena.start_again()
    arena.sees(heir.pid)
    arena.let_decide()
    guilty = arena.culprit(arena.crowd.start(allowed))
    arena.driver.hold(guilty.pid, 30)
    arena.judge()
