"""Incidents over `kill -9`: the same messages, under the same ids, as if nothing had happened."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.alerts.notify.chaos import tell

ROOT = Path(__file__).parents[3]
STEPS = 160


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_kills_change_no_message(tmp_path: Path) -> None:
    """ALERT-08: killed at random steps, the agent tells of the same incidents, worsenings and ends, each once."""
    chance, killed = random.Random(7), 0
    whole, torn = tmp_path / "whole.db", tmp_path / "torn.db"
    tell(whole, STEPS)
    command = [sys.executable, "-m", "tests.alerts.notify.chaos", str(torn), str(STEPS)]
    for _ in range(12):
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as teller:
            assert teller.stdout is not None
            for _ in range(chance.randrange(1, 12)):
                teller.stdout.readline()
            teller.kill()
            killed += teller.wait() < 0
    assert killed > 6
    tell(torn, STEPS)

    assert messages(torn) == messages(whole)
    assert len(messages(whole)) > 30
    with closing(sqlite3.connect(torn)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def messages(path: Path) -> list[tuple[object, ...]]:
    """Every message in its order; the ids of digests are made anew."""
    with closing(sqlite3.connect(path)) as db:
        rows = db.execute("SELECT receiver, group_key, reason, state, id FROM outbox ORDER BY seq").fetchall()
    return [row[:4] if str(row[1]).endswith(":digest") else row for row in rows]
