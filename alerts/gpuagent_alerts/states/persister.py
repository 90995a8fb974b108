"""Persist the instances of rules: their clocks run all the time, and a disk need not hear each second.

They are written at once when one begins, fires, ends, or a clock of it starts or stops; else every half a minute. So
what a `kill -9` or a power cut may cost is half a minute of a hold: a pending alert fires that much later, one that
`keep_firing_for` keeps is kept that much longer. Nothing ever happens too early, and an orderly stop costs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

from gpuagent.core.clock import Clock
from gpuagent_alerts.states.engine import InstanceRecord, RuleEngine
from gpuagent_alerts.states.instance import load_instance
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.tables import Column, Table, document, parsed, text, word

T = TypeVar("T")

InstanceKey = tuple[str, str, str]
"""Name of the group, name of the rule, fingerprint of the label set."""


_COLUMNS = {
    "group_name": Column(text, 2**16),
    "rule": Column(word, 2**16),
    "fingerprint": Column(word),
    "dump": Column(text, 2**20),
}


class StoredInstances:
    """Dumps by group, rule and fingerprint."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def load(self, decode: Callable[[InstanceKey, str], T]) -> list[T]:
        """Return all of them, at a start, as `decode` makes them; what it raises for is set aside."""

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


LATEST_SECONDS = 30.0
"""The clocks on disk are never older than this."""


class StatePersister:
    """The instances of an engine in the store. Calls that write raise StoreFailure."""

    def __init__(self, store: Store, engine: RuleEngine, clock: Clock) -> None:
        self._store = store
        self._engine = engine
        self._clock = clock
        self._instances = StoredInstances(store)
        self._kept: Hashable | None = None
        self._kept_at = clock.now()

    def load(self) -> list[InstanceRecord]:
        """Return what the last agent left. What cannot be read of it is set aside."""
        return self._instances.load(_record)

    def is_due(self) -> bool:
        """Return whether what is on disk will not do."""
        return self._clock.now() - self._kept_at >= LATEST_SECONDS or self._engine.shape() != self._kept

    def save_if_due(self) -> None:
        """Save if that is due, as part of the transaction under way, if there is one."""
        if self.is_due():
            self.save()

    def save(self) -> None:
        """Save, whether or not that is due."""
        shape, now = self._engine.shape(), self._clock.now()

        def note() -> None:
            self._kept, self._kept_at = shape, now

        self.forget()  # should this fail, an older shape that is equal by chance must not count
        with self._store.transaction():
            self._instances.save(
                {
                    (record.group, record.rule, record.fingerprint): json.dumps(record.dump)
                    for record in self._engine.dump()
                }
            )
            self._store.after_commit(note)

    def forget(self) -> None:
        """Forget what is on disk, which may be of other instances: the next time it is due."""
        self._kept = None


def _record(key: InstanceKey, dump: str) -> InstanceRecord:
    """Return a record. Raises ValueError for what no engine has dumped."""
    group, rule, fingerprint = key
    found = document(parsed(dump))
    if load_instance(found, 0.0).labels.get("alertname") != rule:
        raise ValueError("an instance of another rule")
    return InstanceRecord(group, rule, fingerprint, found)
