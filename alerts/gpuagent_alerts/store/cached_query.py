"""Cache the result of a query until something in the store changes: asking again costs nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from gpuagent_alerts.store.database import Store

T = TypeVar("T")


class CachedQuery(Generic[T]):
    """A cached query, for any thread, outside of transactions: what one has not committed yet must not be kept."""

    def __init__(self, store: Store, read: Callable[[], T]) -> None:
        """Keep nothing yet. `read` may raise StoreFailure; then nothing is kept."""
        self._store = store
        self._read = read
        self._last: tuple[object, T] | None = None

    def get(self) -> T:
        """Return what `read` gives, or gave since the last change. Nobody may alter it. Raises as `read` does."""
        changes = self._store.changes  # before reading: what comes in between is read again the next time
        last = self._last
        if last is not None and last[0] == changes:
            return last[1]
        found = self._read()
        self._last = changes, found
        return found
