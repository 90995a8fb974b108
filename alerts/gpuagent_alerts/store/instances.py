"""The instances of rules, as their state machines dump them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from gpuagent_alerts.store.checks import text, word
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.rows import Column, Table

T = TypeVar("T")

InstanceKey = tuple[str, str, str]
"""Name of the group, name of the rule, fingerprint of the label set."""


_COLUMNS = {
    "group_name": Column(text, 2**16),
    "rule": Column(word, 2**16),
    "fingerprint": Column(word),
    "dump": Column(text, 2**20),
}


class Instances:
    """Dumps by group, rule and fingerprint."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def load(self, decode: Callable[[InstanceKey, str], T]) -> list[T]:
        """All of them, at a start, as `decode` makes them; what it raises for is set aside."""

        def made(group: str, rule: str, fingerprint: str, dump: str) -> T:
            return decode((group, rule, fingerprint), dump)

        return self._store.load(Table("instances", ("group_name", "rule", "fingerprint"), _COLUMNS, made))

    def save(self, dumps: Mapping[InstanceKey, str]) -> None:
        """Keep exactly these. Raises StoreFailure."""
        with self._store.transaction():
            rows = self._store.execute("SELECT group_name, rule, fingerprint, dump FROM instances")
            kept = {(group, rule, fingerprint): dump for group, rule, fingerprint, dump in rows}
            self._store.execute_many(
                "DELETE FROM instances WHERE group_name = ? AND rule = ? AND fingerprint = ?",
                [key for key in kept if key not in dumps],
            )
            self._store.execute_many(
                "INSERT INTO instances VALUES (?, ?, ?, ?)"
                " ON CONFLICT (group_name, rule, fingerprint) DO UPDATE SET dump = excluded.dump",
                [(*key, dump) for key, dump in dumps.items() if kept.get(key) != dump],
            )
