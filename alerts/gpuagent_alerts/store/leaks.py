"""What the leak detector remembers, as its histories dump themselves."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from gpuagent.core.growth import Evidence
from gpuagent.core.identity import ProcessId
from gpuagent_alerts.leak.lives import ServiceKey, ServiceRow
from gpuagent_alerts.leak.state import MOST_STATE_BYTES
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.tables import Column, Table, blob, duration, identifier, integer, text, word


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


def _history(
    boot_id: str, pid: int, start: int, uuid: str, instance: int, clock: float, evidence: str, dump: bytes
) -> LeakHistory:
    words = tuple(str(Evidence(one)) for one in evidence.split(",")) if evidence else ()
    return LeakHistory(LeakKey(ProcessId(boot_id, pid, start), uuid, instance), clock, words, dump)


LEAK_HISTORIES = Table(
    "leak_histories",
    ("boot_id", "pid", "start_ticks", "gpu_uuid", "gpu_instance_id"),
    {
        "boot_id": Column(word),
        "pid": Column(integer, 64),
        "start_ticks": Column(integer, 64),
        "gpu_uuid": Column(word),
        "gpu_instance_id": Column(identifier, 64),
        "clock_seconds": Column(duration, 64),
        "evidence": Column(text),
        "dump": Column(blob, MOST_STATE_BYTES),
    },
    _history,
)


def _service(owner: str, name: str, total: int, *numbers: int) -> ServiceRow:
    return ServiceRow(ServiceKey(owner, name, total), *numbers)


LEAK_SERVICES = Table(
    "leak_services",
    ("owner", "name", "total_bytes"),
    {
        "owner": Column(word),
        "name": Column(text),
        "total_bytes": Column(integer, 64),
        "version": Column(integer, 64),
        "level_used": Column(integer, 64),
        "level_tensors": Column(integer, 64),
        "exhausted": Column(integer, 64),
        "leaked": Column(integer, 64),
        "grown": Column(integer, 64),
        "quiet": Column(integer, 64),
        "leaking": Column(integer, 64),
    },
    _service,
)
_THIS = "boot_id = ? AND pid = ? AND start_ticks = ? AND gpu_uuid = ? AND gpu_instance_id = ?"


class LeakHistories:
    """All that are kept. Calls that write may raise StoreFailure."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def load(self, boot_id: str) -> list[LeakHistory]:
        """Load the histories of this boot, at a start, and delete those of another: none of its processes is left.

        Never raises.
        """
        self._store.at_start(lambda: self._forget_others(boot_id), None)
        return [one for one in self._store.load(LEAK_HISTORIES) if one.key.id.boot_id == boot_id]

    def _forget_others(self, boot_id: str) -> None:
        self._store.execute("DELETE FROM leak_histories WHERE typeof(boot_id) = 'text' AND boot_id != ?", (boot_id,))

    def set_aside(self, key: LeakKey, reason: str) -> None:
        """Set a history aside whose dump the detector did not take. Raises StoreFailure."""
        self._store.set_aside(LEAK_HISTORIES, f"WHERE {_THIS}", (*key.id, key.gpu_uuid, key.gpu_instance_id), reason)

    def save(self, histories: Collection[LeakHistory], gone: Collection[LeakKey]) -> None:
        """Keep these beside what is kept already, and forget what has gone: in one transaction."""
        with self._store.transaction():
            self._store.execute_many(
                f"DELETE FROM leak_histories WHERE {_THIS}",  # noqa: S608  a constant
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

    def load_services(self) -> list[ServiceRow]:
        """Load what the lives of services have shown, at a start. Never raises."""
        return self._store.load(LEAK_SERVICES)

    def save_services(self, rows: Collection[ServiceRow]) -> None:
        """Keep these in place of what was kept. Raises StoreFailure."""
        with self._store.transaction():
            self._store.execute("DELETE FROM leak_services")
            self._store.execute_many(
                "INSERT INTO leak_services VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [(*row.key, *row[1:]) for row in rows],
            )
