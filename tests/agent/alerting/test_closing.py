"""The end of alerting while the disk hangs."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from gpuagent.clock import ManualClock
from tests.agent.alerting.bench import BUSY, FULL, alerting, config, rules


def test_a_disk_that_hangs_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """GPU-11: whoever writes holds the store; the end waits for that a moment, and not for as long as it takes."""
    begun, over = threading.Event(), threading.Event()

    async def test() -> None:
        async with alerting(config(tmp_path, None), rules(FULL), ManualClock(), tmp_path / "s") as bench:
            await bench.show(BUSY)
            store = bench.alerting.store

            def write() -> None:
                with store.transaction():
                    begun.set()
                    assert over.wait(20)

            writing = asyncio.create_task(asyncio.to_thread(write))
            assert await asyncio.to_thread(begun.wait, 20)
        assert not writing.done()  # closed, and the write is still going on
        over.set()
        await writing

    asyncio.run(test())
