"""Ten scrapers, each once a second: python -m benchmarks.cost.scrapers PORT SECONDS."""

from __future__ import annotations

import asyncio
import random
import sys

CLIENTS = 10


async def scraper(port: int, seconds: float, phase: float) -> None:
    """A connection of its own for each scrape; what it cannot have now it wants a second later."""
    loop = asyncio.get_running_loop()
    due = loop.time() + phase
    end = loop.time() + seconds
    while due < end:
        await asyncio.sleep(max(0.0, due - loop.time()))
        due += 1.0
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /metrics HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n")
            await reader.read(-1)
            writer.close()
        except OSError:
            continue


async def crowd(port: int, seconds: float) -> None:
    """They begin within a second, at moments that are the same each time."""
    phases = random.Random(1)
    await asyncio.gather(*(scraper(port, seconds, phases.random()) for _ in range(CLIENTS)))


if __name__ == "__main__":
    asyncio.run(crowd(int(sys.argv[1]), float(sys.argv[2])))
