"""Reloads that come faster than they can be done, and such as do not come to their end."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import fields
from typing import Any

import pytest

from gpuagent.config.models import Config
from gpuagent.core.background import Progress
from gpuagent.service.service import Service, ServiceComponents


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

    def load(self, progress: Progress) -> Any:
        self.together += 1
        self.most_together = max(self.most_together, self.together)
        self.reads += 1
        progress.at(f"reading file {self.reads}")
        self.begun.release()
        assert self.let_through.acquire(timeout=20)
        self.together -= 1
        raise ValueError("at fault")


def _service(files: _Files, **others: Any) -> Service:
    given: dict[str, Any] = {field.name: None for field in fields(ServiceComponents)}
    parts = ServiceComponents(**given | {"config": Config(), "notifier": _Notifier(), "load": files.load} | others)
    return Service(parts, reload_seconds=0.5 if others else 30.0)


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


@pytest.mark.slow
def test_a_reload_that_hangs_is_refused_and_holds_no_later_one_up() -> None:
    """A file that does not answer is named in the refusal; the next reload reads anew, however long the first hangs."""

    async def run() -> list[str]:
        files = _Files()
        service = _service(files, http_servers=None)
        told = [await service.reload(), await service.reload()]
        service._reload_seconds = 30.0
        third = asyncio.create_task(service.reload())
        for _ in range(3):
            assert await asyncio.to_thread(files.begun.acquire, timeout=20)
        for _ in range(3):  # the two that were given up end as well: nothing of them is put in force
            files.let_through.release()
        told.append(await third)
        return told

    first, second, third = asyncio.run(run())

    assert "reading file 1" in first
    assert "gpuagent remedies stop" in first
    assert "reading file 2" in second
    assert third == "at fault"


@pytest.mark.slow
def test_lost_reloads_are_counted() -> None:
    """Eight threads may wait for a mount that does not answer; after that a reload says so at once."""

    async def run() -> str:
        files = _Files()
        service = _service(files, http_servers=None)
        for _ in range(8):
            await service.reload()
        told = await service.reload()
        assert files.reads == 8
        for _ in range(8):
            files.let_through.release()
        return told

    told = asyncio.run(run())

    assert told.startswith("8 earlier reloads have not come to an end (reading file ")
    assert told.endswith("): restart gpuagent")


class _HttpServers:
    """Listens nowhere."""

    def prepare(self, _: object) -> Any:
        return lambda: None


class _HangingAlerting:
    """Waits for a disk for ever."""

    async def reload(self, *_: object) -> None:
        await asyncio.Event().wait()


class _Remedies:
    """Notes why it was turned off."""

    off = ""

    def use(self, _: object) -> None:
        pytest.fail("remedies went on by a configuration that is in force by halves")

    def turn_off(self, why: str) -> None:
        self.off = why


def test_a_reload_that_is_in_force_by_halves_turns_remedies_off() -> None:
    """Where receivers wait for a disk, nothing is acted on by the old configuration or by the new one."""
    remedies = _Remedies()

    async def run() -> str:
        given: dict[str, Any] = {
            "http_servers": _HttpServers(),
            "alerting": _HangingAlerting(),
            "remedies": remedies,
            "remedy_settings": lambda _: None,
        }
        return await _service(_Files(), **given, load=lambda _: (Config(), ())).reload()

    told = asyncio.run(run())

    assert remedies.off.startswith("a reload did not come to its end")
    assert told == f"{remedies.off}; remedies are off until then"
