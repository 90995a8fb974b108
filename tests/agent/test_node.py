"""The outside world of a monitor: this machine, or a scenario in its place."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuagent.collector.listings import KNOWN_HOLDERS, Holders
from gpuagent.collector.saved_state import STAMP_FILE
from gpuagent.collector.tick import Monitor
from gpuagent.config.models import Config
from gpuagent.core.clock import ScaledClock, SystemClock
from gpuagent.node import (
    INDICES_FILE,
    INVENTORY_FILE,
    LISTINGS_FILE,
    STATE_FILE,
    Node,
    NoSuchNode,
    lost_state,
    real_node,
    simulated_node,
)
from gpuagent.procfs.machine import PidSpace
from gpuagent.procfs.table import ProcessTable
from gpuagent_alerts.store.database import Store
from gpuagent_simulator.node import SimulatedNode
from tests.agent.collector.test_listings import GPU, UNPROVEN, process, seen
from tests.fakes.nvml import use
from tests.integration.waiting import until


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """With directories that are not there yet."""
    return Config(state_dir=tmp_path / "var" / "gpuagent", runtime_dir=tmp_path / "run" / "gpuagent")


@pytest.fixture(autouse=True)
def library_put_back() -> Iterator[None]:
    """What a simulated node places under pynvml is taken away again."""
    with use(None):
        yield


async def first_tick(node: Node) -> list[str]:
    """The GPUs and the processes that a monitor finds on it."""
    monitor = Monitor(node.driver, node.processes, node.clock, place=node.place)
    snapshot = await monitor.tick()
    while any(gpu.state == "starting" for gpu in snapshot.gpus) or not snapshot.node.nvml_initializations:
        snapshot = await monitor.tick()
    await monitor.close()
    return [gpu.identity.name for gpu in snapshot.gpus] + [p.info.user for p in snapshot.processes if p.info]


def test_a_simulated_node() -> None:
    """Its GPUs, its processes and their users come from the scenario, and it says so."""
    node = simulated_node(Config(), "dead-process")

    assert node.place.simulated == "dead-process"
    assert node.driver.library.max_pid == SimulatedNode.max_pid
    found = asyncio.run(first_tick(node))
    assert found == ["NVIDIA H100 80GB HBM3"] * 2 + ["alice", "svc-ml"]  # bob's is a zombie


def test_a_simulated_node_says_so_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody takes a made-up node for a real one."""
    simulated_node(Config(), "healthy")

    assert "SIMULATED: every reading comes from the scenario healthy" in caplog.text


def test_no_such_scenario() -> None:
    """Asked for by name, never fallen back to."""
    with pytest.raises(NoSuchNode, match="no scenario 'helthy'"):
        simulated_node(Config(), "helthy")


def test_time_may_run_faster_on_a_simulated_node_only() -> None:
    """On this machine it is the machine's own."""
    assert isinstance(simulated_node(Config(), "healthy", speed=8.0).clock, ScaledClock)
    assert isinstance(simulated_node(Config(), "healthy").clock, SystemClock)
    assert isinstance(real_node(Config(), keep_inventory=False).clock, SystemClock)


def test_this_machine(config: Config) -> None:
    """Real processes are found in the real /proc, and the GPUs are remembered in the state directory."""
    node = real_node(config)

    assert node.place.simulated == ""
    assert node.place.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert isinstance(node.processes, ProcessTable)
    assert node.place.inventory is not None
    assert config.state_dir.is_dir()
    assert config.state_dir.stat().st_mode & 0o777 == 0o750
    if node.processes.host_pid_namespace:
        found = node.processes.resolve([os.getpid()])[os.getpid()]
        assert found is not None
        assert found.uid == os.getuid()


def test_a_state_directory_that_cannot_be_made(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Costs the memory over restarts, and nothing else: it is told."""
    (tmp_path / "file").write_text("")
    node = real_node(Config(state_dir=tmp_path / "file" / "gpuagent"))

    assert node.place.inventory is not None
    assert node.place.inventory.known == ()
    assert "nothing will be remembered over a restart" in caplog.text


def test_a_look_without_an_agent_leaves_nothing_behind(config: Config) -> None:
    """`gpuagent status` as a user writes no state."""
    assert real_node(config, keep_inventory=False).place.inventory is None
    assert not config.state_dir.exists()


def restarted(config: Config) -> tuple[Node, Holders]:
    """Start an agent whose GPU lists a process, and return who is not known to hold its memory."""
    node = real_node(config)
    assert node.place.listings is not None
    assert node.place.inventory is not None
    assert node.place.indices is not None
    now = node.clock.now()
    node.place.inventory.observe([GPU])
    node.place.indices.observe([GPU])
    return node, seen(node.place.listings, now, process(99.0))


@pytest.mark.parametrize("lost", ["nothing", "gpus and listings", "all but the database", "the state directory"])
def test_lost_state_makes_no_first_list(config: Config, monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    """KILL-01: an agent that has run in this boot believes no list as the first, whatever was lost of its state."""
    monkeypatch.setattr(PidSpace, "may_have_wrapped", lambda self, since: False)
    config.runtime_dir.mkdir(parents=True)
    assert restarted(config)[1] == KNOWN_HOLDERS
    until((config.state_dir / LISTINGS_FILE).exists, "the listings are written")
    (config.state_dir / STATE_FILE).write_text("")
    if lost == "gpus and listings":
        for name in (INVENTORY_FILE, LISTINGS_FILE):
            (config.state_dir / name).write_text("")
    elif lost == "all but the database":
        (config.runtime_dir / STAMP_FILE).unlink()
        for name in (INVENTORY_FILE, LISTINGS_FILE, INDICES_FILE):
            (config.state_dir / name).unlink()
    elif lost == "the state directory":
        shutil.rmtree(config.state_dir)
    node, holders = restarted(config)
    assert holders == (KNOWN_HOLDERS if lost == "nothing" else UNPROVEN)
    assert node.place.indices is not None
    assert bool(node.place.indices.uncertainty) == (lost == "all but the database")


@pytest.mark.parametrize("size", [None, 0], ids=["missing", "empty"])
def test_a_lost_database_is_no_first_start(config: Config, size: int | None) -> None:
    """KILL-07: beside other state of an agent's it was lost, and with it what limits count: remedies stop."""
    assert lost_state(config) == ""
    config.state_dir.mkdir(parents=True)
    path = config.state_dir / STATE_FILE
    assert lost_state(config) == ""
    (config.state_dir / LISTINGS_FILE).touch()
    if size is not None:
        path.touch()
    told = lost_state(config)
    assert "missing or empty" in told
    store = Store(path, lost=told)
    assert store.has_lost_rows
    assert told in store.problem_text
    store.close()
    assert lost_state(config) == ""
    again = Store(path)
    assert again.has_lost_rows
    again.forget_loss()
    assert not again.has_lost_rows


def test_an_agent_that_has_seen_no_gpu_has_lost_nothing(config: Config) -> None:
    """GPUs that appear once the driver is installed are the first ones, though the agent has state already."""
    real_node(config)
    (config.state_dir / STATE_FILE).write_text("")
    node, _ = restarted(config)
    assert node.place.indices is not None
    assert node.place.indices.uncertainty == ""
