"""What apps tell, joined with a snapshot; and what they are told of room."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from typing import Any

import pytest

from gpuagent.clients.server import (
    CRITICAL,
    NAMELESS_GPU,
    OK,
    UNKNOWN_GPU,
    WARNING,
    FreeMemory,
    fresh_seconds,
    level_message,
    level_of,
)
from gpuagent.core.hardware import Memory
from gpuagent.core.identity import ProcessId
from gpuagent.core.snapshot import AllocatorReading, ClientReading, ProcessReading, ProcessState, Snapshot
from gpuagent.core.units import GIB
from tests.agent.clients.parts import Stage, in_thread, stage, until
from tests.fakes.embedded import stats
from tests.fakes.snapshots import full_snapshot

ME = os.getpid()


def told(*devices: dict[str, Any], on: tuple[str, ...] = ("GPU-0",), seconds: float = 0.0, **changes: Any) -> Any:
    """The reading of an app that told these, so many seconds ago, and whose process is on these GPUs."""

    async def run() -> ClientReading | None:
        async with stage() as opened:
            return await _told(opened, devices, on, seconds, changes)

    return asyncio.run(run())


async def _told(
    opened: Stage, devices: tuple[dict[str, Any], ...], on: tuple[str, ...], seconds: float, changes: dict[str, Any]
) -> ClientReading | None:
    with await opened.client(declared={"typical_bytes": 7}) as app:
        client = opened.registry.client(ME)
        assert client is not None
        assert client.info is not None
        app.send(stats(*devices, **changes))
        await until(lambda: client.stats)
        opened.clock.advance(seconds)
        info = dataclasses.replace(client.info, id=client.info.id)
        processes = tuple(ProcessReading(0, uuid, ME, ProcessState.LIVE, info, GIB, "C", None) for uuid in on)
        return (await opened.tick(dataclasses.replace(full_snapshot(), processes=processes))).clients.get(ME)


@pytest.mark.parametrize("name", ["0", "GPU-0", "MIG-0"])
def test_a_device_goes_by_the_drivers_name(name: str) -> None:
    """NUM: torch leaves NVML's prefix out, and a MIG device's figures are under its GPU."""
    assert told({"uuid": name, "allocated_bytes": 5}).devices == {"GPU-0": AllocatorReading(allocated_bytes=5)}


def test_what_the_app_said_of_itself() -> None:
    """Its name, its versions, what it declares."""
    reading = told({"uuid": "0"})

    assert (reading.id.pid, reading.app, reading.backend) == (ME, "web", "native")
    assert (reading.declared_minimum_bytes, reading.declared_typical_bytes) == (None, 7)


def test_a_device_without_a_name() -> None:
    """An old torch does not tell the UUID: with one device and one GPU there is no doubt, otherwise nothing is said."""
    nameless = {"index": 0, "allocated_bytes": 5}

    assert told(nameless).devices == {"GPU-0": AllocatorReading(allocated_bytes=5)}
    assert (told(nameless, on=()).devices, told(nameless, on=()).problem) == ({}, NAMELESS_GPU)
    assert told(nameless, nameless).devices == {}
    assert told(nameless, on=("GPU-0", "GPU-1")).devices == {}


def test_a_device_that_the_driver_does_not_know() -> None:
    """Its figures are of no GPU of this node."""
    reading = told({"uuid": "77"}, {"uuid": "0"})

    assert (set(reading.devices), reading.problem) == ({"GPU-0"}, UNKNOWN_GPU)


def test_old_figures_are_not_believed() -> None:
    """After three intervals, at least 5 s: what an app said before it hung is not what it holds."""
    assert told({"uuid": "0"}, seconds=5.0).devices
    stale = told({"uuid": "0"}, seconds=5.1)
    assert (stale.devices, stale.measured_seconds) == ({}, 1000.0)
    assert (fresh_seconds(1.0), fresh_seconds(10.0)) == (5.0, 30.0)


@pytest.mark.parametrize(("hello", "rate"), [({"interval": 60.0}, 0.0), ({}, 60.0), ({"interval": 1.0}, 60.0)])
def test_figures_that_come_seldom_are_believed_for_longer(hello: dict[str, Any], rate: float) -> None:
    """Where the app has set its interval, or was given another: an old client that does neither has the agent's."""

    async def run() -> tuple[bool, ...]:
        async with stage() as opened:
            with await opened.client(**hello) as app:
                if rate:
                    asked = asyncio.create_task(opened.commands.command(ME, "rate", {"interval": rate}))
                    order = await in_thread(lambda: app.receive("cmd"))
                    app.send({"t": "res", "id": order["id"], "ok": True, "r": {"interval": rate}})
                    await asked
                client = opened.registry.client(ME)
                assert client is not None
                app.send(stats({"uuid": "0"}))
                await until(lambda: client.stats)
                opened.clock.advance(180.0)
                fresh = bool((await opened.tick(full_snapshot())).clients[ME].devices)
                opened.clock.advance(0.1)
                return fresh, bool((await opened.tick(full_snapshot())).clients[ME].devices)

    assert asyncio.run(run()) == (True, False)


def test_why_there_are_no_figures() -> None:
    """An allocator that keeps none says so."""
    assert told(err="unsupported").problem == "unsupported"


def test_another_process_of_that_pid_is_not_the_app() -> None:
    """PROC: a pid that was given away again belongs to somebody else: by identity, never by number."""

    async def run(start_ticks: int) -> Snapshot:
        async with stage() as opened:
            with await opened.client():
                snapshot = full_snapshot()
                info = snapshot.processes[0].info
                assert info is not None
                other = dataclasses.replace(info, id=ProcessId("boot", ME, start_ticks))
                process = ProcessReading(0, "GPU-0", ME, ProcessState.LIVE, other, GIB, "C", None)
                return await opened.tick(dataclasses.replace(snapshot, processes=(process,)))

    assert ME not in asyncio.run(run(1)).clients
    assert ME in asyncio.run(run(-1)).clients  # hidden by /proc: there is nothing to compare


def client(reserved_bytes: int = 0, allocated_bytes: int = 0, uuid: str = "GPU-0") -> ClientReading:
    """An app with figures on one GPU."""
    reading = AllocatorReading(allocated_bytes=allocated_bytes, reserved_bytes=reserved_bytes)
    return ClientReading(ProcessId("boot", 7, 1), "web", devices={uuid: reading})


def free(free_bytes: int, total_bytes: int = 100 * GIB) -> Snapshot:
    """A node whose GPU has so much room."""
    snapshot = full_snapshot()
    gpu = dataclasses.replace(snapshot.gpus[0], memory=Memory(total_bytes, total_bytes - free_bytes, free_bytes))
    return dataclasses.replace(snapshot, gpus=(gpu,))


@pytest.mark.parametrize(("left", "level"), [(11, OK), (9, WARNING), (2, CRITICAL), (0, CRITICAL)])
def test_levels(left: int, level: str) -> None:
    """Below 10 % an app is warned, below 3 % it should take no more work."""
    assert level_of(client(), free(left * GIB), OK) == level


def test_a_level_does_not_flap() -> None:
    """It ends when there is a quarter more than began it."""
    assert level_of(client(), free(11 * GIB), WARNING) == WARNING
    assert level_of(client(), free(13 * GIB), WARNING) == OK
    assert level_of(client(), free(int(3.5 * GIB)), CRITICAL) == CRITICAL
    assert level_of(client(), free(5 * GIB), CRITICAL) == WARNING


def test_an_apps_own_cache_is_room_for_it() -> None:
    """Its allocator hands that out again: a full GPU is no pressure for whoever has filled it with a cache."""
    assert level_of(client(reserved_bytes=50 * GIB, allocated_bytes=20 * GIB), free(GIB), OK) == OK
    assert level_of(client(reserved_bytes=50 * GIB, allocated_bytes=50 * GIB), free(GIB), OK) == CRITICAL


def test_a_gpu_that_the_app_does_not_use_is_none_of_its_business() -> None:
    """Somebody else's full GPU turns no request away."""
    assert level_of(client(uuid="GPU-1"), free(0), OK) == OK


def test_room_is_news_when_it_changes_noticeably() -> None:
    """By a 64th of the GPU; the first time always, and when a GPU comes or goes."""
    room = FreeMemory()

    assert room.changed(free(50 * GIB))
    assert not room.changed(free(50 * GIB + GIB))
    assert room.changed(free(52 * GIB))
    assert room.changed(dataclasses.replace(full_snapshot(), gpus=()))


def test_a_gpu_without_memory_of_its_own_has_no_level() -> None:
    """Unified memory and a GPU that cannot be read tell nothing: nothing is made up."""
    gpu = dataclasses.replace(full_snapshot().gpus[0], memory=Memory())
    snapshot = dataclasses.replace(full_snapshot(), gpus=(gpu, dataclasses.replace(gpu, memory=None)))

    assert level_of(client(), snapshot, OK) == OK
    assert level_message(OK, snapshot) == {
        "t": "level", "level": "ok", "free_bytes": {}, "total_bytes": {}, "names": {}
    }  # fmt: skip
