"""The end of alerting while the disk hangs."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from gpuagent.core.clock import ManualClock
from tests.agent.service.alerting.bench import BUSY, FULL, alerting, config, hanging_disk, rules


@pytest.mark.slow
def test_a_disk_that_hangs_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """GPU-11: whoever writes holds the store; the end waits for that a moment, and not for as long as it takes."""

    async def test() -> None:
        async with (
            AsyncExitStack() as later,  # after the end: `hanging_disk` then sees that the write still goes on
            alerting(config(tmp_path, None), rules(FULL), ManualClock(), tmp_path / "s") as bench,
        ):
            await bench.show(BUSY)
            await later.enter_async_context(hanging_disk(bench.alerting.store))

    asyncio.run(test())
