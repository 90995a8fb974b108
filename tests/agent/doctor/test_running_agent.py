"""What the doctor says of the agent: the real one, a simulated one beside its place, or none."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuagent.config.models import Config
from gpuagent.core.snapshot import NvmlState
from gpuagent.doctor import machine, service
from gpuagent.doctor.finding import Level
from tests.fakes.answering import answering, says
from tests.fakes.readings import snapshot

SIMULATED: dict[str, Any] = {"schema": 1, "agent": {"version": "1", "pid": 7, "simulated": "leak"}}


def config_beside(simulated: Path, listen: str = "") -> Config:
    """A configuration whose control socket would be where a simulated agent's is beside it."""
    folder = simulated.parent / "gpuagent"
    (simulated.parent / "gpuagent-simulated").symlink_to(simulated.parent, target_is_directory=True)
    return Config(runtime_dir=folder, listen=listen)


def test_a_simulated_agent_is_seen_where_no_other_runs() -> None:
    """The commands find it there, so the doctor does, and says how to examine that node."""
    with answering(says(SIMULATED)) as place:
        (finding,) = service.agent(config_beside(place))

    assert (finding.subject, finding.level) == ("agent", Level.INFO)
    assert "only a simulated one is running (scenario leak)" in finding.text
    assert "--simulate" in finding.advice


@pytest.mark.parametrize(("pid", "level"), [(7, Level.INFO), (8, Level.FAILURE)])
def test_the_address_of_the_simulated_agent_is_no_stranger(pid: int, level: Level) -> None:
    """It is taken by the agent that was just named; any other program that has it is a failure."""
    on_loopback = {**SIMULATED, "agent": {**SIMULATED["agent"], "pid": pid}}
    with answering(says(SIMULATED)) as place, answering(says(on_loopback), unix=False) as url:
        _, listen = service.agent(config_beside(place, url.removeprefix("http://")))

    assert (listen.subject, listen.level) == ("listen", level)


def test_without_any_agent_the_address_is_looked_at(tmp_path: Path) -> None:
    """Nobody answers: what to do, and who has the address."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = Config(runtime_dir=tmp_path / "gpuagent", listen=f"127.0.0.1:{taken.getsockname()[1]}")
        agent, listen = service.agent(config)

    assert agent.text.startswith("none is running")
    assert (listen.level, "ss -ltnp" in listen.advice) == (Level.FAILURE, True)


def test_a_missing_driver_library_is_explained_once() -> None:
    """The check of the library has the loader's words and what to do; NVML refers to it."""
    shown = snapshot([])
    why = "nvmlInitWithFlags: the driver's library cannot be loaded: libnvidia-ml.so.1: cannot open shared object file"
    node = replace(shown.node, nvml_state=NvmlState.FAILED, nvml_reason=why)

    (finding,) = machine.nvml(replace(shown, node=node))

    assert (finding.text, finding.advice) == ("cannot be asked without the driver library", "")
