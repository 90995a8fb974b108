"""The file: its mode, its versions, and what happens when it is damaged or the disk is full."""

from __future__ import annotations

import sqlite3
import stat
from pathlib import Path

import pytest

from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.problem import StoreFailure, StoreProblemKind
from gpuagent_alerts.store.schema import STEPS

MORE = (*STEPS, ("CREATE TABLE more (thing TEXT)", "INSERT INTO more VALUES ('of the second version')"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a file that is not there yet, nor its folder."""
    return tmp_path / "state" / "alerts.db"


def fill(store: Store, room_pages: int = 2) -> None:
    """Let the disk be full soon, as SQLite sees it."""
    ((pages,),) = store.execute("PRAGMA page_count")
    store.execute(f"PRAGMA max_page_count = {pages + room_pages}")


def write_much(store: Store) -> None:
    """More than there is room for."""
    with store.transaction():
        for number in range(200):
            store.set_meta(f"key{number}", "x" * 1000)


def test_only_the_owner_reads_it(path: Path) -> None:
    """The file and what SQLite puts beside it are 0600, the folder 0700."""
    store = Store(path)
    store.set_meta("a", "b")
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    store.close()

    assert modes == {"alerts.db": 0o600, "alerts.db-wal": 0o600, "alerts.db-shm": 0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_file_that_others_read_is_closed_to_them(path: Path) -> None:
    """An older file with a wide mode gets the right one."""
    path.parent.mkdir()
    path.touch(0o644)
    path.chmod(0o644)

    Store(path).close()

    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_that_grows_takes_no_more_memory(path: Path) -> None:
    """EXP-01: pages of the file that are kept in memory are bounded, whatever the day's messages make of it."""
    store = Store(path)

    assert store.execute("PRAGMA cache_size") == [(-512,)]
    store.close()


@pytest.mark.synced
def test_it_survives(path: Path) -> None:
    """What was written is there after a restart, synced at every commit."""
    store = Store(path)
    store.set_meta("a", "1")
    modes = store.execute("PRAGMA journal_mode") + store.execute("PRAGMA synchronous")
    store.close()
    again = Store(path)

    assert (again.meta("a"), again.problem, modes) == ("1", None, [("wal",), (2,)])
    again.close()


def test_a_transaction_is_kept_whole_or_not_at_all(path: Path) -> None:
    """What fails in the middle leaves nothing behind, and calls nobody."""
    store, called = Store(path), list[str]()

    def half() -> None:
        with store.transaction():
            store.set_meta("a", "1")
            store.after_commit(lambda: called.append("half"))
            with store.transaction():
                store.set_meta("b", "2")
            raise KeyError

    with pytest.raises(KeyError):
        half()
    with store.transaction():
        store.set_meta("c", "3")
        store.after_commit(lambda: called.append("whole"))

    assert (store.meta("a"), store.meta("b"), store.meta("c"), called) == (None, None, "3", ["whole"])
    store.close()


def test_no_path_means_memory() -> None:
    """Without a file it works all the same, and that is no problem."""
    store = Store(None)
    store.set_meta("a", "1")

    assert (store.meta("a"), store.problem) == ("1", None)
    store.close()


def test_a_new_version_brings_the_file_forward(path: Path) -> None:
    """What an older version wrote is kept, and has the new tables."""
    old = Store(path)
    old.set_meta("a", "1")
    old.close()
    new = Store(path, steps=MORE)

    assert (new.meta("a"), new.execute("SELECT thing FROM more"), new.problem) == (
        "1",
        [("of the second version",)],
        None,
    )
    new.close()


def test_a_step_that_fails_changes_nothing(path: Path) -> None:
    """Half a step forward would fit no version: the file stays as it was."""
    store = Store(path)
    store.set_meta("a", "too long")
    store.close()
    picky = ("CREATE TABLE more (thing TEXT CHECK (length(thing) < 3))", "INSERT INTO more SELECT value FROM meta")
    broken = Store(path, steps=(*STEPS, picky))
    problem = broken.problem
    broken.close()
    good = Store(path, steps=MORE)

    assert problem is not None
    assert (problem.trouble, problem.in_memory, good.problem) == (StoreProblemKind.UNUSABLE, True, None)
    good.close()


def test_a_file_of_a_newer_version_is_left_alone(path: Path) -> None:
    """After a downgrade the agent goes on in memory, says so, and the newer one finds its file again."""
    newer = Store(path, steps=MORE)
    newer.set_meta("a", "1")
    newer.close()
    older = Store(path)
    older.set_meta("a", "2")
    problem = older.problem
    older.close()
    newer = Store(path, steps=MORE)

    assert problem is not None
    assert (problem.trouble, problem.in_memory, newer.meta("a")) == (StoreProblemKind.NEWER, True, "1")
    assert "newer version of gpuagent" in str(problem)
    newer.close()


def test_a_damaged_file_is_moved_aside(path: Path) -> None:
    """What is no database costs the old state, not the agent; it is kept for whoever wants to look."""
    path.parent.mkdir()
    path.write_bytes(b"no database, by any means" * 1000)
    store = Store(path)
    store.set_meta("a", "1")
    problem = store.problem
    store.close()

    assert problem is not None
    assert (problem.trouble, problem.in_memory) == (StoreProblemKind.CORRUPT, False)
    assert problem.moved_to is not None
    assert problem.moved_to.read_bytes().startswith(b"no database")
    assert str(problem.moved_to) in str(problem)
    again = Store(path)
    assert (again.meta("a"), again.problem) == ("1", None)
    again.close()


def test_a_damaged_page_is_found_when_the_file_is_opened(path: Path) -> None:
    """A head that is right proves nothing about the rest."""
    store = Store(path)
    with store.transaction():
        for number in range(500):
            store.set_meta(f"key{number}", "x" * 100)
    store.close()
    with path.open("r+b") as file:
        file.seek(4096 * 3)
        file.write(b"\xff" * 4096 * 8)
    store = Store(path)

    assert store.problem is not None
    assert store.problem.trouble is StoreProblemKind.CORRUPT
    store.close()


def test_another_programs_database_is_left_alone(path: Path) -> None:
    """A path that was mistyped must not destroy what is there."""
    path.parent.mkdir()
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE theirs (thing TEXT)")
    other.commit()
    other.close()
    store = Store(path)
    problem = store.problem
    store.close()
    other = sqlite3.connect(path)
    tables = other.execute("SELECT name FROM sqlite_master").fetchall()
    other.close()

    assert problem is not None
    assert (problem.trouble, problem.in_memory, tables) == (StoreProblemKind.FOREIGN, True, [("theirs",)])


@pytest.mark.parametrize("kind", ["folder", "link", "under a file"])
def test_what_cannot_be_a_file_is_a_problem_not_an_end(path: Path, kind: str) -> None:
    """The agent alerts without a state directory too, and says what is wrong."""
    path.parent.mkdir()
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to("/etc/passwd")
    else:
        (path.parent / "file").touch()
        path = path.parent / "file" / "alerts.db"
    store = Store(path)
    store.set_meta("a", "1")

    assert store.problem is not None
    assert (store.problem.trouble, store.problem.in_memory, store.meta("a")) == (StoreProblemKind.UNUSABLE, True, "1")
    store.close()


def test_a_full_disk_moves_everything_into_memory(path: Path) -> None:
    """The transaction that failed is lost; what the file held goes on in memory, and new writes work."""
    store = Store(path)
    store.set_meta("before", "1")
    fill(store)
    with pytest.raises(StoreFailure):
        write_much(store)
    write_much(store)

    assert store.problem is not None
    assert (store.problem.trouble, store.problem.in_memory) == (StoreProblemKind.WRITES_FAIL, True)
    assert (store.meta("before"), store.meta("key199")) == ("1", "x" * 1000)
    store.close()


def test_it_goes_back_to_the_file_when_there_is_room(path: Path) -> None:
    """What was written meanwhile is in the file then, and the problem is gone."""
    store = Store(path)
    store.set_meta("before", "1")
    fill(store)
    store.insist(lambda: write_much(store))
    healed = store.heal()
    problem = store.problem
    store.set_meta("after", "2")
    store.close()
    again = Store(path)

    assert (healed, problem) == (True, None)
    assert [again.meta(key) for key in ("before", "key199", "after")] == ["1", "x" * 1000, "2"]
    again.close()


def test_a_file_that_cannot_be_written_again_stays_out_of_use(path: Path) -> None:
    """Going back fails quietly, and memory goes on."""
    store = Store(path)
    fill(store)
    store.insist(lambda: write_much(store))
    for file in (path, path.with_name("alerts.db-wal"), path.with_name("alerts.db-shm")):
        file.unlink(missing_ok=True)
    path.mkdir()

    assert not store.heal()
    assert store.meta("key199") == "x" * 1000
    store.close()


def test_a_file_that_was_refused_is_never_overwritten(path: Path) -> None:
    """Going back is for a file that was ours: not for a newer version's."""
    Store(path, steps=MORE).close()
    store = Store(path)

    assert not store.heal()
    store.close()


def test_another_process_that_holds_the_file_costs_one_transaction(path: Path) -> None:
    """A lock passes: nothing moves into memory for it."""
    store = Store(path)
    store.execute("PRAGMA busy_timeout = 0")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreFailure):
        store.set_meta("a", "1")
    other.execute("ROLLBACK")
    other.close()
    store.set_meta("a", "2")

    assert (store.meta("a"), store.problem) == ("2", None)
    store.close()
