"""A state file that is gone from its place, a write-ahead log that is, and a file that could not be opened at first."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuagent.core.clock import ManualClock
from gpuagent_alerts.remedies.audit import Audit, NotRecorded
from gpuagent_alerts.remedies.audit_rows import END, INTENT
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.problem import StoreProblemKind

BOOT = "b8c23df1-820e-4860-8918-e92c9c0ad98a"
BEGUN = {
    "pid": 1, "start_ticks": 1, "boot_id": BOOT, "gpu": 0, "gpu_uuid": "GPU-a", "name": "x", "dry_run": False,
    "ladder": ["SIGTERM"],
}  # fmt: skip
INTENDED = {"step": "SIGTERM", "disrupts": True}


def remove_database(path: Path) -> None:
    """Take the database alone."""
    path.unlink()


def remove_everything(path: Path) -> None:
    """Take everything that is in the directory."""
    for file in path.parent.iterdir():
        file.unlink()


def rename_directory(path: Path) -> None:
    """Take the whole directory."""
    path.parent.rename(path.parent.with_name("elsewhere"))


def put_another_in_its_place(path: Path) -> None:
    """Put a sound database in its place, of which nothing is to be lost."""
    other = Store(path.with_name("other.db"))
    other.set_meta("whose", "somebody else's")
    other.close()
    path.with_name("other.db").replace(path)


def remove_log(path: Path) -> None:
    """Take the write-ahead log alone."""
    path.with_name(f"{path.name}-wal").unlink()


@pytest.mark.parametrize(
    "lose", [remove_database, remove_everything, rename_directory, put_another_in_its_place, remove_log]
)
def test_no_intent_is_written_into_a_file_that_is_gone(tmp_path: Path, lose: Callable[[Path], None]) -> None:
    """KILL-05: the act is refused, the problem told, and the whole record written anew before the next act."""
    path = tmp_path / "state" / "state.db"
    store, clock = Store(path), ManualClock()
    audit = Audit(store, clock, BOOT)
    run = audit.begin(BEGUN)
    audit.write(run, INTENT, INTENDED)
    lose(path)

    with pytest.raises(NotRecorded):
        audit.write(run, INTENT, {**INTENDED, "step": "SIGKILL"})
    assert store.problem is not None
    assert (store.problem.trouble, store.problem.in_memory) == (StoreProblemKind.MISSING, True)
    assert store.heal()
    assert store.problem_text == ""
    audit.write(run, INTENT, {**INTENDED, "step": "SIGKILL"})

    shutil.copytree(path.parent, tmp_path / "after a kill")  # what a process that is killed now leaves
    store.close()
    again = Store(tmp_path / "after a kill" / "state.db")
    events = Audit(again, clock, BOOT).events()
    assert [(event.kind, event.data["step"]) for event in events[1:]] == [(INTENT, "SIGTERM"), (INTENT, "SIGKILL")]
    assert again.meta("whose") is None
    again.close()


def test_what_was_in_the_place_of_the_file_is_kept(tmp_path: Path) -> None:
    """A backup that somebody put there is moved aside, not overwritten."""
    path = tmp_path / "state.db"
    store = Store(path)
    put_another_in_its_place(path)

    assert store.heal()
    (aside,) = (file for file in tmp_path.glob("state.db.replaced-*") if not file.name.endswith(("-wal", "-shm")))
    assert sqlite3.connect(aside).execute("SELECT value FROM meta WHERE key = 'whose'").fetchall() != []
    store.close()


@pytest.mark.parametrize("left", ["nothing", "an empty file", "half"])
def test_a_lost_log_forgets_no_action(tmp_path: Path, left: str) -> None:
    """KILL-05: limits count what was intended before a signal was sent, whatever becomes of the write-ahead log."""
    path = tmp_path / "state" / "state.db"
    store, clock = Store(path), ManualClock()
    audit = Audit(store, clock, BOOT)
    run = audit.begin(BEGUN)
    audit.write(run, INTENT, INTENDED)
    for number in range(20):
        store.set_meta(f"key {number}", "x" * 1000)
    after = tmp_path / "after" / "state.db"
    shutil.copytree(path.parent, after.parent)
    store.close()
    log = after.with_name("state.db-wal")
    if left == "nothing":
        log.unlink()
    else:
        with log.open("r+b") as file:
            file.truncate(0 if left == "an empty file" else log.stat().st_size // 2)

    again = Store(after)
    audit = Audit(again, clock, BOOT)
    assert audit.close_open() == [run]
    assert len(audit.past(dry_run=False)) == 1
    again.close()


def test_no_act_while_another_program_keeps_the_log(tmp_path: Path) -> None:
    """An intent that stays in the log for as long as a backup is read is refused, and no row of it stays."""
    store, clock = Store(tmp_path / "state.db"), ManualClock()
    audit = Audit(store, clock, BOOT)
    audit.begin(BEGUN)
    store.set_meta("a", "b")
    store.execute("PRAGMA busy_timeout = 0")
    reader = sqlite3.connect(tmp_path / "state.db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM meta").fetchall()

    with pytest.raises(NotRecorded, match="another program"):
        audit.begin(BEGUN)
    reader.close()
    assert len(audit.events()) == 1
    audit.begin(BEGUN)
    store.close()


def test_a_file_that_could_not_be_opened_is_tried_again(tmp_path: Path) -> None:
    """Both what the file held and what came meanwhile are in it then; an act is refused until then, and no longer."""
    path = tmp_path / "state" / "state.db"
    before, clock = Store(path), ManualClock()
    run = Audit(before, clock, BOOT).begin(BEGUN)
    Audit(before, clock, BOOT).write(run, INTENT, INTENDED)
    before.set_meta("old", "1")
    before.set_meta("both", "old")
    before.close()
    path.parent.rename(tmp_path / "hidden")
    path.parent.touch()  # a file in the place of the directory: as unusable as a full or read-only disk

    store = Store(path)
    audit = Audit(store, clock, BOOT)
    assert audit.past(dry_run=False) == []
    store.set_meta("new", "2")
    store.set_meta("both", "new")
    with pytest.raises(NotRecorded):
        audit.begin(BEGUN)
    with pytest.raises(NotRecorded):
        audit.write("f00", END, {"result": "refused"})
    assert not store.heal()
    path.parent.unlink()
    (tmp_path / "hidden").rename(path.parent)
    assert store.heal()

    assert store.problem_text == ""
    assert [store.meta(key) for key in ("old", "new", "both")] == ["1", "2", "new"]
    assert [event.kind for event in audit.events()] == ["begin", "intent", "end"]
    assert len(audit.past(dry_run=False)) == 1
    audit.begin(BEGUN)
    store.close()
    again = Store(path)
    assert (again.meta("new"), again.problem_text) == ("2", "")
    again.close()
