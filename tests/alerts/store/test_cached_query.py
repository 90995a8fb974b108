"""What was read is read again when something has changed, and not before."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuagent_alerts.store.cached_query import CachedQuery
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.problem import StoreFailure


class Reader:
    """Reads a value, and counts how often."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.times = 0

    def __call__(self) -> str | None:
        self.times += 1
        return self.store.meta("x")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A file."""
    return Store(tmp_path / "state.db")


def test_it_is_read_once_for_each_change(store: Store) -> None:
    """Whoever asks often costs the disk nothing; a change is seen at once, also one that takes something away."""
    read = Reader(store)
    kept = CachedQuery(store, read)
    assert [kept.get() for _ in range(100)] == [None] * 100
    assert read.times == 1
    store.set_meta("x", "1")
    assert [kept.get(), kept.get()] == ["1", "1"]
    store.execute("DELETE FROM meta WHERE key = 'x'")
    assert kept.get() is None
    assert read.times == 3


def test_what_was_rolled_back_was_never_there(store: Store) -> None:
    """A transaction that fails leaves what is true."""
    kept = CachedQuery(store, Reader(store))
    store.set_meta("x", "1")

    def fail() -> None:
        with store.transaction():
            store.set_meta("x", "2")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert kept.get() == "1"


def test_a_change_while_it_is_read(store: Store) -> None:
    """It may or may not be in what was read: the next one reads again."""
    found: list[str | None] = []

    def read() -> str | None:
        value = store.meta("x")
        if not found:
            store.set_meta("x", "later")
        found.append(value)
        return value

    kept = CachedQuery(store, read)
    assert [kept.get(), kept.get(), kept.get()] == [None, "later", "later"]
    assert len(found) == 2


def test_a_failure_is_not_kept(store: Store) -> None:
    """It is told, and asked for again."""
    kept = CachedQuery(store, Reader(store))
    kept.get()
    store.close()
    for _ in range(2):
        with pytest.raises(StoreFailure):
            kept.get()
