"""Recorded leaks in real cgroups, capped: their neighbors meet no out-of-memory error, and nobody is ended."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpuagent.core.memory_limits import MemoryLimits
from gpuagent.driver.memory_limits.folders import CgroupFolders
from gpuagent.driver.memory_limits.ledger import LimitLedger
from gpuagent.driver.memory_limits.nvml import NvmlMemoryLimits
from gpuagent.driver.memory_limits.setter import MemoryLimitSetter
from gpuagent.procfs.machine import boot_id
from gpuagent_alerts.store.database import Store
from tests.alerts.remedies.processes import PLAIN, running
from tests.alerts.remedies.staging import Stage, config, let_threads_work, stage
from tests.attack.cgroups import Cgroups
from tests.fakes.rig import Rig

GIB = 2**30
TRACES = Path(__file__).parents[2] / "data" / "leaks"
LEAKS = ["cache", "exception", "hook", "no_grad", "outputs"]
TIMES, GROWN = 40, 5
"""The recorded app is this much larger here, and its half hour so much shorter."""
FIRES_BYTES = 14 * GIB
HEADROOM_BYTES = 2 * GIB
GPU_BYTES = 24 * GIB
NO_LOGIN = 2**32 - 1
OF_ANOTHER = "import os, signal; os.setuid(65534); print('ready', flush=True); signal.pause()"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="cgroups are made by root")]


def recorded(name: str, times: int) -> dict[str, Any]:
    """The memory of a recorded app, as a curve of the scenario."""
    rows = [line.split(",") for line in gzip.decompress((TRACES / f"{name}.csv.gz").read_bytes()).decode().split()[1:]]
    began = float(rows[0][0])
    points = [[(float(row[0]) - began) / GROWN, int(row[1]) * times] for row in rows[::GROWN]]
    return {"shape": "steps", "points": points}


def node(leak: str) -> str:
    """One GPU, on which the leak and its neighbor do not both have room to the end."""
    processes = [
        {"name": "leaker", "bind": "leaker", "memory": recorded(f"leak-{leak}", TIMES)},
        {"name": "neighbor", "bind": "neighbor", "memory": recorded("healthy-bursts", 25)},
    ]
    memory = {"total": GPU_BYTES, "reserved": 0, "base_used": 0}
    gpu = {"model": "h100", "memory": memory, "processes": processes}
    return "\n" + json.dumps({"driver": "615.36.01", "gpus": [gpu]})


@dataclass
class Units:
    """Two processes, each in the cgroup of a unit of its own."""

    cgroups: Cgroups
    names: dict[str, str]
    pids: dict[str, int]
    alive: dict[str, subprocess.Popen[str]]

    def limits(self, rig: Rig) -> MemoryLimits:
        """What sets limits on the simulated driver, as the helper does."""
        root = str(self.cgroups.root)
        rig.node.session.gpus[0].memory_limits.root = root
        driver = NvmlMemoryLimits(rig.monitor._driver.library)  # type: ignore[attr-defined]
        return MemoryLimitSetter(driver, LimitLedger(None, boot_id()), CgroupFolders(root))


@contextmanager
def in_units() -> Iterator[Units]:
    """Start both, and move them as systemd does."""
    if Path("/proc/self/loginuid").exists() and int(Path("/proc/self/loginuid").read_text()) not in {0, NO_LOGIN}:
        pytest.skip("these processes come from a login, and a unit in which one works is never capped")
    cgroups = Cgroups()
    try:
        with running(PLAIN, "setsid") as leaker, running(PLAIN, "setsid") as neighbor:
            alive = {"leaker": leaker, "neighbor": neighbor}
            names = {key: f"capped-{key}-{secrets.token_hex(4)}.service" for key in alive}
            for key, process in alive.items():
                folder = cgroups.make(f"system.slice/{names[key]}")
                (folder / "cgroup.procs").write_text(str(process.pid))
            yield Units(cgroups, names, {key: each.pid for key, each in alive.items()}, alive)
    finally:
        cgroups.close()


def settings(units: Units, **step: object) -> Any:
    """One ladder with nothing but a limit, for real."""
    ladder = {
        "match": ['alertname="GpuProcessMemoryLeak"'],
        "steps": [{"limit": {"headroom": HEADROOM_BYTES, "wait": 5, **step}}],
    }
    return config("root", allow={"units": [units.names["leaker"]]}, ladders=[ladder])


def denied(one: Stage) -> tuple[int, int]:
    """What the leak and its neighbor were refused at this moment."""
    leaker, neighbor = one.rig.node.session.gpus[0].moment().rows
    return leaker.denied_bytes, neighbor.denied_bytes


async def play(one: Stage, units: Units, ticks: int = 350) -> list[tuple[int, int]]:
    """Play the story to its end: the alert fires when the leak has grown, and for as long as it is there."""
    found = []
    for _ in range(ticks):
        await one.tick()
        await let_threads_work()
        if one.held(units.pids["leaker"]) >= FIRES_BYTES:
            one.fires(units.pids["leaker"])
        found.append(denied(one))
    return found


@pytest.mark.parametrize("leak", LEAKS)
def test_a_capped_leak_harms_nobody_else(store: Store, leak: str) -> None:
    """The leak meets its own out-of-memory errors, its neighbor none, both live on; then the limit is lifted."""

    async def story(units: Units) -> None:
        made = stage(
            settings(units), store, units.pids, node(leak), limits=units.limits, cgroup_root=str(units.cgroups.root)
        )
        async with made as one:
            told = await play(one, units)
            assert [each.result for each in one.service.history.recent()][:1] == ["limited"]
            assert all(neighbor == 0 for _, neighbor in told)
            assert told[-1][0] > 0
            (limit,) = one.service.limit_lifts.known
            assert one.held(units.pids["leaker"]) <= limit.hard_bytes <= FIRES_BYTES + HEADROOM_BYTES + GIB
            assert limit.cgroup == f"/system.slice/{units.names['leaker']}"
            assert {key: each.poll() for key, each in units.alive.items()} == {"leaker": None, "neighbor": None}
            one.alerts = []
            await one.until(lambda: one.service.limit_lifts.known == (), 120)
            assert "lifted" in str((await one.service.document())["remedies"])

    with in_units() as units:
        asyncio.run(story(units))


def test_without_the_limit_the_neighbor_suffers(store: Store) -> None:
    """The same story without a ladder: what the limit is for."""

    async def story(units: Units) -> None:
        async with stage(config("nobody", ladders=[]), store, units.pids, node("hook")) as one:
            told = await play(one, units)
            assert any(neighbor > 0 for _, neighbor in told)

    with in_units() as units:
        asyncio.run(story(units))


def test_another_user_in_the_unit(store: Store) -> None:
    """A unit in which somebody else works too is not capped: that one would meet the errors as well."""

    async def story(units: Units) -> None:
        with running(OF_ANOTHER, "setsid") as other:
            folder = units.cgroups.root / "system.slice" / units.names["leaker"]
            (folder / "cgroup.procs").write_text(str(other.pid))
            made = stage(
                settings(units), store, units.pids, node("hook"), limits=units.limits,
                cgroup_root=str(units.cgroups.root),
            )  # fmt: skip
            async with made as one:
                await one.tick()
                one.fires(units.pids["leaker"])
                await one.until(lambda: bool(one.service.history.recent()))
                (note,) = one.service.history.recent()
                assert note.result == "refused"
                assert "other users" in str((await one.service.document())["remedies"])
                assert one.service.limit_lifts.known == ()

    with in_units() as units:
        asyncio.run(story(units))


def test_the_process_ends_by_itself(store: Store) -> None:
    """A leak that ends takes its limit with it, though its alert still fires."""

    async def story(units: Units) -> None:
        made = stage(
            settings(units, until="process_ends"), store, units.pids, node("hook"), limits=units.limits,
            cgroup_root=str(units.cgroups.root),
        )  # fmt: skip
        async with made as one:
            await one.tick()
            one.fires(units.pids["leaker"])
            await one.until(lambda: one.service.limit_lifts.known != ())
            units.alive["leaker"].kill()
            await asyncio.to_thread(units.alive["leaker"].wait)
            await one.until(lambda: one.service.limit_lifts.known == ())

    with in_units() as units:
        asyncio.run(story(units))
