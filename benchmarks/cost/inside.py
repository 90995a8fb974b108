"""The agent with a probe in it: python -m benchmarks.cost.inside budget|blocks SECONDS CONFIG OUTPUT.

`budget` writes CPU seconds a second by part, `blocks` how long the event loop was not there for others, and why. Both
are JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from benchmarks.cost.meter import Meter, count_parts
from benchmarks.cost.running import SETTLE_SECONDS
from benchmarks.cost.turns import Turns
from gpuagent.service.assemble import assemble
from gpuagent.service.service import Service

_PROBE_SECONDS = 0.002

Probe = Callable[[float], Awaitable[object]]


async def budget(meter: Meter, seconds: float) -> dict[str, float]:
    """CPU seconds a second by part."""
    before, begun = meter.seconds(), time.monotonic()
    await asyncio.sleep(seconds)
    passed, after = time.monotonic() - begun, meter.seconds()
    return {part: (used - before.get(part, 0.0)) / passed for part, used in after.items()}


async def blocks(turns: Turns, seconds: float) -> list[tuple[float, float, str]]:
    """The longest block of each second: how late a task came that only wanted to be woken, and the loop's CPU time.

    The first holds the time of other programs and threads too, the second the loop's own work alone. The third says
    what the loop was at in the first.
    """
    loop = asyncio.get_running_loop()
    longest: list[tuple[float, float, str]] = []
    for _ in range(int(seconds)):
        late, busy, why, end = 0.0, 0.0, "", loop.time() + 1.0
        while (due := loop.time() + _PROBE_SECONDS) < end:
            turns.clear()
            before = time.thread_time()
            await asyncio.sleep(_PROBE_SECONDS)
            if loop.time() - due > late:
                late, why = loop.time() - due, ", ".join(map(str, turns.longest()))
            busy = max(busy, time.thread_time() - before)
        longest.append((late, busy, why))
    return longest


async def watched(service: Service, probe: Probe, seconds: float) -> object:
    """Run the service until the probe is done; what that has found."""

    async def watch() -> object:
        await asyncio.sleep(SETTLE_SECONDS)
        found = await probe(seconds)
        service.stop("measured")
        return found

    watching = asyncio.create_task(watch())
    await service.run()
    return await watching


def main() -> None:
    """What `gpuagent run` does, and the probe."""
    mode, seconds, config, output = sys.argv[1:]
    service = assemble(Path(config)).service
    if mode == "budget":
        meter = Meter()
        count_parts(service, meter)
        found = asyncio.run(watched(service, partial(budget, meter), float(seconds)))
    else:
        turns = Turns()
        with turns.watched():
            found = asyncio.run(watched(service, partial(blocks, turns), float(seconds)))
    Path(output).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
