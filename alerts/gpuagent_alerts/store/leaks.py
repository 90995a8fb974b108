"""What the leak detector remembers, as its histories dump themselves."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from gpuagent.identity import ProcessId
from gpuagent_alerts.store.database import Store


class LeakKey(NamedTuple):
    """Whose memory, where. `id.pid` 0 is memory that no process owns."""

    id: ProcessId
    gpu_uuid: str
    gpu_instance_id: int


class LeakHistory(NamedTuple):
    """One history. The dump is the detector's to understand, its version too."""

    key: LeakKey
    clock_seconds: float
    """CLOCK_BOOTTIME of the dump: means nothing in another boot."""
    evidence: tuple[str, ...]
    """Standards at which its leak was told."""
    dump: bytes


class LeakHistories:
    """All that are kept. Every method may raise StoreFailure."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def load(self, boot_id: str) -> list[LeakHistory]:
        """Those of this boot; of another one no process is left, and they are deleted."""
        with self._store.transaction():
            self._store.execute("DELETE FROM leak_histories WHERE boot_id != ?", (boot_id,))
            rows = self._store.execute(
                "SELECT pid, start_ticks, gpu_uuid, gpu_instance_id, clock_seconds, evidence, dump FROM leak_histories"
            )
        return [
            LeakHistory(LeakKey(ProcessId(boot_id, pid, start), uuid, instance), clock, _words(evidence), bytes(dump))
            for pid, start, uuid, instance, clock, evidence, dump in rows
        ]

    def save(self, histories: Collection[LeakHistory], gone: Collection[LeakKey]) -> None:
        """Keep these beside what is kept already, and forget what has gone: in one transaction."""
        with self._store.transaction():
            self._store.execute_many(
                "DELETE FROM leak_histories WHERE boot_id = ? AND pid = ? AND start_ticks = ?"
                " AND gpu_uuid = ? AND gpu_instance_id = ?",
                [(*key.id, key.gpu_uuid, key.gpu_instance_id) for key in gone],
            )
            self._store.execute_many(
                "INSERT INTO leak_histories VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
                " ON CONFLICT (boot_id, pid, start_ticks, gpu_uuid, gpu_instance_id) DO UPDATE"
                " SET clock_seconds = excluded.clock_seconds, evidence = excluded.evidence, dump = excluded.dump",
                [
                    (*key.id, key.gpu_uuid, key.gpu_instance_id, clock, ",".join(evidence), dump)
                    for key, clock, evidence, dump in histories
                ],
            )


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()
