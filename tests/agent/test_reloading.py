"""Reloads that come faster than they can be done."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import fields
from typing import Any

from gpuagent.config.models import Config
from gpuagent.service import Parts, Service


class _Notifier:
    def reloading(self, _: int) -> None:
        """Nobody listens."""

    def ready(self) -> None:
        """Nobody listens."""


class _Files:
    """What is read at a reload: it waits to be let through, and is at fault, so that nothing is put in force."""

    def __init__(self) -> None:
        self.reads = 0
        self.together = 0
        self.most_together = 0
        self.begun = threading.Semaphore(0)
        self.let_through = threading.Semaphore(0)

    def load(self) -> Any:
        self.together += 1
        self.most_together = max(self.most_together, self.together)
        self.reads += 1
        self.begun.release()
        assert self.let_through.acquire(timeout=20)
        self.together -= 1
        raise ValueError("at fault")


def _service(files: _Files) -> Service:
    given: dict[str, Any] = {field.name: None for field in fields(Parts)}
    return Service(Parts(**given | {"config": Config(), "notifier": _Notifier(), "load": files.load}))


def test_a_storm_of_signals_is_two_reloads() -> None:
    """However many SIGHUPs come while the files are read, they are read once more after that, and never at once."""

    async def run() -> _Files:
        files = _Files()
        service = _service(files)
        service._reload_soon()
        assert await asyncio.to_thread(files.begun.acquire, timeout=20)
        for _ in range(100):
            service._reload_soon()
        by_command = asyncio.create_task(service.reload())
        for _ in range(3):
            files.let_through.release()
        assert await by_command == "at fault"
        assert service._reloading is not None
        await service._reloading
        return files

    files = asyncio.run(run())

    assert (files.reads, files.most_together) == (3, 1)  # the first, one for all that followed, the command's
