"""Clients of an MPS server, as budgets and remedies see them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gpuagent.config.remedy_settings import budgets_of
from gpuagent.core.snapshot import ProcessReading, Snapshot
from gpuagent_alerts.remedies.candidates import budget_uses
from gpuagent_alerts.store.database import Store
from tests.alerts.remedies.processes import PLAIN, as_target, running
from tests.alerts.remedies.staging import config, read, stage
from tests.fakes.rig import rig

GIB = 2**30
ONE, OTHER = "a" * 64, "b" * 64
SHARED = f"""
gpus:
  - model: h100
    processes:
      - {{name: nvidia-cuda-mps-server, memory: 512MiB}}
      - {{name: client, kind: M, memory: 1GiB, cgroup: "/system.slice/docker-{ONE}.scope"}}
      - {{name: client, kind: M, memory: 2GiB, cgroup: "/system.slice/docker-{ONE}.scope"}}
      - {{name: client, kind: M, memory: 4GiB, cgroup: "/system.slice/docker-{OTHER}.scope"}}
"""
CLIENT = """
gpus:
  - model: h100
    processes:
      - {name: client, bind: leaker, kind: M, memory: 4GiB}
"""


def clients(snapshot: Snapshot) -> list[ProcessReading]:
    """The clients among its processes."""
    return [process for process in snapshot.processes if process.kinds == "M"]


def test_the_clients_in_one_container_are_summed() -> None:
    """PROC-08: a budget for a container counts each of its clients, and neither the server nor another container."""
    settings = read({"budgets": [{"match": {"container": ONE[:12]}, "memory": "2GiB"}]})

    async def run() -> None:
        async with rig(SHARED, events=False) as one:
            snapshot = await one.tick()
            assert [process.used_bytes for process in clients(snapshot)] == [GIB, 2 * GIB, 4 * GIB]
            (use,) = budget_uses(budgets_of(settings.budgets), snapshot)
            assert (use.used_bytes, use.limit_bytes) == (3 * GIB, 2 * GIB)

    asyncio.run(run())


@pytest.mark.parametrize(("permitted", "result"), [(False, "refused"), (True, "released")])
def test_a_client_is_ended_on_demand_alone(tmp_path: Path, permitted: bool, result: str) -> None:
    """PROC-08: ending a client can harm the others of its server: only where the configuration says so."""
    store = Store(tmp_path / "state.db")

    async def story(pid: int) -> None:
        settings = config(as_target(pid).user, mps_clients=permitted)
        async with stage(settings, store, {"leaker": pid}, CLIENT) as one:
            one.fires(pid)
            await one.until(lambda: one.ended() == [result])
            (run,) = (await one.service.document())["remedies"]
            assert ("client of MPS" in run["end"]["detail"]) is not permitted

    with running(PLAIN) as process:
        asyncio.run(story(process.pid))
        assert (process.poll() is None) is not permitted
