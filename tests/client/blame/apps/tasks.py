"""Prints how many tasks run a coroutine function, as the child of a census and as the app count them."""
# mypy: ignore-errors
# ruff: noqa: ANN001, ASYNC110, D103, T201

from __future__ import annotations

import asyncio
import gc
import json
import threading

from gpuagent_client.blame.heap import index_heap
from gpuagent_client.blame.watch import measure_all, tasks_target


async def waiting(event) -> None:
    await event.wait()


async def main(found, asked, answered) -> None:
    event = asyncio.Event()
    tasks = [asyncio.ensure_future(waiting(event)) for _ in range(3)]
    await asyncio.sleep(0)
    target = tasks_target(tasks[0], index_heap(gc.get_objects(), [], []))
    found["of another"] = tasks_target(event, index_heap([], [], [])) is None

    async def ask(name) -> None:
        asked.append((name, target))
        while name not in found:
            await asyncio.sleep(0.001)

    await ask("at first")
    found["at first"].insert(0, target.value)
    tasks += [asyncio.ensure_future(waiting(event)) for _ in range(2)]
    await asyncio.sleep(0)
    await ask("more")
    event.set()
    await asyncio.gather(*tasks)
    await ask("done")
    answered.set()


def run() -> None:
    found, asked, answered = {}, [], threading.Event()
    thread = threading.Thread(target=asyncio.run, args=(main(found, asked, answered),))
    thread.start()
    while thread.is_alive():
        if asked:
            name, target = asked.pop()
            found[name] = measure_all([target])
    print(json.dumps(found))


if __name__ == "__main__":
    run()
