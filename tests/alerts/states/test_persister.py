"""Instances of rules over a restart."""

from __future__ import annotations

from pathlib import Path

from gpuagent_alerts.states.persister import StoredInstances
from gpuagent_alerts.store.database import Store


def test_exactly_what_was_saved_last_is_there(tmp_path: Path) -> None:
    """ALERT-08: what is new is added, what changed is changed, what is gone is gone, after a restart too."""
    store = Store(tmp_path / "alerts.db")
    instances = StoredInstances(store)
    instances.save({("g", "A", "1"): "old", ("g", "A", "2"): "stays", ("g", "B", "1"): "goes"})
    instances.save({("g", "A", "1"): "new", ("g", "A", "2"): "stays", ("h", "A", "1"): "comes"})
    store.close()
    again = Store(tmp_path / "alerts.db")

    found = StoredInstances(again).load(lambda key, dump: (key, dump))
    assert dict(found) == {("g", "A", "1"): "new", ("g", "A", "2"): "stays", ("h", "A", "1"): "comes"}
    again.close()
