"""Back to the state file, soon after it can be written again."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gpuagent.core.clock import ManualClock
from gpuagent_alerts.store.database import Store
from tests.agent.service.alerting.bench import BUSY, FULL, alerting, config, rules
from tests.alerts.notify.outbox.parts import until
from tests.alerts.store.test_database import fill, write_much


def test_it_goes_back_by_itself(tmp_path: Path) -> None:
    """ALERT-08: what was kept in memory while the disk was full is on disk by the next look, not a minute later."""

    async def test() -> None:
        path = tmp_path / "s"
        async with alerting(config(tmp_path, None), rules(FULL), ManualClock(), path) as bench:
            store = bench.alerting.store
            fill(store)
            store.insist(lambda: write_much(store))
            assert store.problem is not None
            await bench.show(BUSY)
            await until(lambda: store.problem is None)
        again = Store(path)
        assert len(again.execute("SELECT rule FROM instances")) == 1
        again.close()

    asyncio.run(test())
