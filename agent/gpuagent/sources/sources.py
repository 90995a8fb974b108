"""Asks every configured server at its interval. One that does not answer is down, and delays no other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING

from gpuagent.core.metrics.clients import ServerReading, Servers
from gpuagent.runtime.background import in_daemon_thread
from gpuagent.sources import ollama, sglang, triton, vllm
from gpuagent.sources.fetch import BadAnswer, FetchError, fetch

if TYPE_CHECKING:
    from gpuagent.config.sources import ServerSource

log = logging.getLogger(__name__)

Fetch = Callable[[str], bytes]

_KINDS: Mapping[str, ModuleType] = {"vllm": vllm, "sglang": sglang, "ollama": ollama, "triton": triton}
_NOT_FOUND = 404


class Sources:
    """For one event loop."""

    def __init__(self, sources: Iterable[ServerSource], fetch: Fetch = fetch) -> None:
        self._sources = tuple(sources)
        self._fetch = fetch
        self._readings: dict[str, ServerReading] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def open(self) -> None:
        """Begin to ask."""
        self._tasks = [
            asyncio.create_task(self._follow(source), name=f"source {source.name}") for source in self._sources
        ]

    async def close(self) -> None:
        """Ask no more. A question that is on its way is left behind."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def reload(self, sources: Iterable[ServerSource]) -> None:
        """Ask these servers from now on; those that stay are asked anew."""
        new = tuple(sources)
        if new == self._sources:
            return
        await self.close()
        self._sources = new
        self._readings = {source.name: self._readings[source.name] for source in new if source.name in self._readings}
        self.open()

    def readings(self) -> Servers:
        """Return what each of them told last, in their order; those not asked yet are left out."""
        return tuple(self._readings[source.name] for source in self._sources if source.name in self._readings)

    async def _follow(self, source: ServerSource) -> None:
        while True:
            reading = await in_daemon_thread(partial(self.ask, source), f"source {source.name}")
            before = self._readings.get(source.name)
            self._readings[source.name] = reading
            if before is None or before.up != reading.up:
                log.info("source %s: %s", source.name, "it answers" if reading.up else reading.problem)
            await asyncio.sleep(source.interval)

    def ask(self, source: ServerSource) -> ServerReading:
        """Ask once. Whatever goes wrong is a reading; for a thread of its own."""
        kind = _KINDS[source.kind]
        problem = ""
        for path in kind.PATHS:
            try:
                reading: ServerReading = kind.read(source.name, self._fetch(source.url + path))
                return reading
            except FetchError as error:
                problem = str(error)
                if error.status != _NOT_FOUND:
                    break
            except BadAnswer as error:
                problem = str(error)
                break
        return ServerReading(source.name, source.kind, problem=problem)
