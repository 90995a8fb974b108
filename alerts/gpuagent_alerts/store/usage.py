"""The daily table of the usage ledger: what each holder has used of each GPU on each day (UTC)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gpuagent.core.usage import OTHER, Amounts, Holder, HolderKind
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.tables import Column, Table, integer, number, text, word

MOST_ROWS_A_DAY = 500
"""Some 100 KiB. What comes beyond that is one more row for each GPU."""


class UsageRow(NamedTuple):
    """What one holder has used of one GPU on one day."""

    day: str
    """`2026-11-28`, by UTC."""
    gpu: int
    uuid: str
    holder: Holder
    amounts: Amounts


def _amount(value: object) -> float:
    return number(value, 0.0, 1e30)


def _amount_or_none(value: object) -> float | None:
    return None if value is None else _amount(value)


def _row(
    day: str, uuid: str, kind: str, user: str, unit: str, container: str, namespace: str, pod: str, job: str,
    gpu: int, *amounts: float,
) -> UsageRow:  # fmt: skip
    holder = Holder(HolderKind(kind), user, unit, container, namespace, pod, job)
    return UsageRow(day, gpu, uuid, holder, Amounts(*amounts))


_KEY = ("day", "gpu_uuid", "kind", "user", "unit", "container", "namespace", "pod", "job")
_SUMS = ("held", "observed", "busy", "idle", "memory")
_SUMS_OR_NONE = ("untouched", "energy")

USAGE_DAYS = Table(
    "usage_days",
    _KEY,
    {
        "day": Column(word, 64),
        "gpu_uuid": Column(word),
        **{name: Column(text) for name in _KEY[2:]},
        "gpu": Column(integer, 64),
        **{name: Column(_amount, 64) for name in _SUMS},
        **{name: Column(_amount_or_none, 64) for name in _SUMS_OR_NONE},
    },
    _row,
)
_ADD = (
    f"INSERT INTO usage_days ({', '.join(USAGE_DAYS.columns)}) VALUES ({', '.join('?' * len(USAGE_DAYS.columns))})"  # noqa: S608  names of ours
    f" ON CONFLICT ({', '.join(_KEY)}) DO UPDATE SET gpu = excluded.gpu, "
    + ", ".join(f"{name} = {name} + excluded.{name}" for name in _SUMS)
    + ", "
    + ", ".join(
        f"{name} = CASE WHEN excluded.{name} IS NULL THEN {name} ELSE ifnull({name}, 0) + excluded.{name} END"
        for name in _SUMS_OR_NONE
    )
)


class UsageDays:
    """The daily table. Calls that write may raise StoreFailure."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._day = ""
        self._rows: set[tuple[str, Holder]] = set()
        """Rows of `_day` that are there."""

    def add(self, day: str, oldest_day: str, changes: Iterable[tuple[int, str, Holder, Amounts]]) -> None:
        """Add amounts to the rows of a day, and forget those before `oldest_day`: in one transaction."""
        if day != self._day:
            rows = self._store.read(USAGE_DAYS, "WHERE day = ?", (day,))
            self._day, self._rows = day, {(row.uuid, row.holder) for row in rows}
        added = set(self._rows)
        values = []
        for gpu, uuid, holder, amounts in changes:
            row = holder if self._fits(added, uuid, holder) else OTHER
            added.add((uuid, row))
            values.append((day, uuid, *row, gpu, *amounts))
        with self._store.transaction():
            self._store.execute_many(_ADD, values)
            self._store.execute("DELETE FROM usage_days WHERE day < ?", (oldest_day,))
        self._rows = added

    @staticmethod
    def _fits(rows: set[tuple[str, Holder]], uuid: str, holder: Holder) -> bool:
        return holder.kind is not HolderKind.PROCESSES or len(rows) < MOST_ROWS_A_DAY or (uuid, holder) in rows

    def check(self) -> None:
        """Set every row aside that cannot be read. Raises StoreFailure."""
        self._store.check(USAGE_DAYS)

    def read(self, since_day: str) -> list[UsageRow]:
        """Return the rows from a day on. Raises StoreFailure."""
        return self._store.read(USAGE_DAYS, "WHERE day >= ? ORDER BY day", (since_day,))
