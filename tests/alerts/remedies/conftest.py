"""What the tests of remedies share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpuagent_alerts.store.database import Store


@pytest.fixture
def store() -> Iterator[Store]:
    """A database in memory that counts as a disk."""
    store = Store(None)
    yield store
    store.close()
