"""When the instances of rules are written down: their clocks run all the time, and a disk need not hear each second.

At once when one begins, fires, ends, or a clock of it starts or stops; else every half a minute. So what a `kill -9` or
a power cut may cost is half a minute of a hold: a pending alert fires that much later, one that `keep_firing_for` keeps
is kept that much longer. Nothing ever happens too early, and an orderly stop costs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Hashable

from gpuagent.core.clock import Clock
from gpuagent_alerts.states.engine import InstanceRecord, RuleEngine
from gpuagent_alerts.states.instance import load_instance
from gpuagent_alerts.store.checks import document, parsed
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.instances import InstanceKey, Instances

LATEST_SECONDS = 30.0
"""The clocks on disk are never older than this."""


class Keeper:
    """The instances of an engine in the store. Calls that write raise StoreFailure."""

    def __init__(self, store: Store, engine: RuleEngine, clock: Clock) -> None:
        self._store = store
        self._engine = engine
        self._clock = clock
        self._instances = Instances(store)
        self._kept: Hashable | None = None
        self._kept_at = clock.now()

    def load(self) -> list[InstanceRecord]:
        """What the last agent left. What cannot be read of it is set aside."""
        return self._instances.load(_record)

    def is_due(self) -> bool:
        """Whether what is on disk will not do."""
        return self._clock.now() - self._kept_at >= LATEST_SECONDS or self._engine.shape() != self._kept

    def save_if_due(self) -> None:
        """As part of the transaction under way, if there is one."""
        if self.is_due():
            self.save()

    def save(self) -> None:
        """Likewise, whether or not it is due."""
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
        """What is kept may be of other instances: the next time it is due."""
        self._kept = None


def _record(key: InstanceKey, dump: str) -> InstanceRecord:
    """Raises ValueError for what no engine has dumped."""
    group, rule, fingerprint = key
    found = document(parsed(dump))
    if load_instance(found, 0.0).labels.get("alertname") != rule:
        raise ValueError("an instance of another rule")
    return InstanceRecord(group, rule, fingerprint, found)
