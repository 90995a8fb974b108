"""The instances of rules, as their state machines dump them."""

from __future__ import annotations

from collections.abc import Mapping

from gpuagent_alerts.store.database import Store

InstanceKey = tuple[str, str, str]
"""Name of the group, name of the rule, fingerprint of the label set."""


class Instances:
    """Dumps by group, rule and fingerprint."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def load(self) -> dict[InstanceKey, str]:
        """All of them."""
        rows = self._store.execute("SELECT group_name, rule, fingerprint, dump FROM instances")
        return {(group, rule, fingerprint): dump for group, rule, fingerprint, dump in rows}

    def save(self, dumps: Mapping[InstanceKey, str]) -> None:
        """Keep exactly these. Raises StoreFailure."""
        with self._store.transaction():
            kept = self.load()
            self._store.execute_many(
                "DELETE FROM instances WHERE group_name = ? AND rule = ? AND fingerprint = ?",
                [key for key in kept if key not in dumps],
            )
            self._store.execute_many(
                "INSERT INTO instances VALUES (?, ?, ?, ?)"
                " ON CONFLICT (group_name, rule, fingerprint) DO UPDATE SET dump = excluded.dump",
                [(*key, dump) for key, dump in dumps.items() if kept.get(key) != dump],
            )
