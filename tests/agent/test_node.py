"""The outside world of a monitor: this machine, or a scenario in its place."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuagent.clock import ScaledClock, SystemClock
from gpuagent.config.models import Config
from gpuagent.monitor.monitor import Monitor
from gpuagent.node import Node, NoSuchNode, real_node, simulated_node
from gpuagent.procfs.table import ProcessTable
from gpuagent.simulated.node import SimulatedNode
from tests.fakes.nvml import use


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """With a state directory that is not there yet."""
    return Config(state_dir=tmp_path / "var" / "gpuagent")


@pytest.fixture(autouse=True)
def library_put_back() -> Iterator[None]:
    """What a simulated node places under pynvml is taken away again."""
    with use(None):
        yield


async def first_tick(node: Node) -> list[str]:
    """The GPUs and the processes that a monitor finds on it."""
    monitor = Monitor(node.library, node.processes, node.clock, place=node.place)
    snapshot = await monitor.tick()
    while any(gpu.state == "starting" for gpu in snapshot.gpus) or not snapshot.node.nvml_initializations:
        snapshot = await monitor.tick()
    await monitor.close()
    return [gpu.identity.name for gpu in snapshot.gpus] + [p.info.user for p in snapshot.processes if p.info]


def test_a_simulated_node() -> None:
    """Its GPUs, its processes and their users come from the scenario, and it says so."""
    node = simulated_node(Config(), "dead-process")

    assert node.place.simulated == "dead-process"
    assert node.library.max_pid == SimulatedNode.max_pid
    found = asyncio.run(first_tick(node))
    assert found == ["NVIDIA H100 80GB HBM3"] * 2 + ["alice", "bob", "svc-ml"]


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
