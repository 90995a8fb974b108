"""Where the figures of the screen come from, while agents come and go."""

from __future__ import annotations

import subprocess
import sys
from ctypes.util import find_library
from pathlib import Path
from typing import Any

import pytest

from gpuagent.cli.agent import NoData, Source
from gpuagent.core.api_client import DEFAULT_URL, AgentUnreachable
from gpuagent.top.source import AgentSource

STATUS = {"schema": 1, "source": "agent"}
_READS_TWICE = """
from gpuagent.cli.agent import NoData
from gpuagent.top.source import DirectReader
for _ in range(2):
    reader = DirectReader()
    try:
        reader.read()
    except NoData as error:
        print(error)
    reader.close()
"""


class Agents:
    """Answers at the places that are up, and counts what it is asked."""

    def __init__(self, *up: str) -> None:
        self.up = set(up)
        self.asked: list[tuple[str, str]] = []

    def __call__(self, place: Path | str, path: str = "/api/v1/status", timeout_seconds: float = 0.0) -> Any:
        self.asked.append((str(place), path))
        if str(place) not in self.up:
            raise AgentUnreachable(f"{place}: refused")
        return STATUS if path == "/api/v1/status" else {"schema": 1, "path": path}


class Driver:
    """The driver, read in this process."""

    def __init__(self) -> None:
        self.closed = False

    def read(self) -> dict[str, Any]:
        return {"schema": 1, "source": "direct"}

    def close(self) -> None:
        self.closed = True


def test_without_an_agent_the_driver_is_read_until_one_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver is opened once and let go of as soon as an agent answers; acts are possible only then."""
    monkeypatch.setenv("GPUAGENT_RUNTIME_DIR", "/x")
    agents, drivers = Agents(), list[Driver]()

    def open_driver() -> Any:
        drivers.append(Driver())
        return drivers[-1]

    source = AgentSource(Source(), agents, open_driver)
    readings = [source.read(), source.read()]
    assert [one.status["source"] for one in readings] == ["direct", "direct"]
    assert len(drivers) == 1
    assert "refused" in readings[0].note
    assert "No agent is running" in readings[0].act_refusal
    agents.up.add("/x/control.sock")
    back = source.read()
    assert (back.status["source"], back.place, back.act_refusal) == ("agent", Path("/x/control.sock"), "")
    assert drivers[0].closed


def test_the_address_that_only_reads_refuses_acts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the socket is not open to this user the address is asked, and acts say why they are not possible."""
    monkeypatch.setenv("GPUAGENT_RUNTIME_DIR", "/x")
    reading = AgentSource(Source(), Agents(DEFAULT_URL)).read()

    assert reading.place == DEFAULT_URL
    assert "read-only" in reading.act_refusal


@pytest.mark.parametrize("source", [Source(url="http://node7:9837"), Source(socket=Path("/y/control.sock"))])
def test_nothing_stands_in_for_a_named_agent(source: Source) -> None:
    """Another node's figures are never those of this node's driver."""
    with pytest.raises(NoData, match="refused"):
        AgentSource(source, Agents(DEFAULT_URL), lambda: pytest.fail("the driver was opened")).read()


def test_alerts_are_asked_for_now_and_then_and_after_an_act() -> None:
    """A large document that seldom changes is not fetched at each reading."""
    agents = Agents("http://a")
    source = AgentSource(Source(url="http://a"), agents)
    for _ in range(3):
        assert source.read().alerts == {"schema": 1, "path": "/api/v1/alerts"}
    assert [path for _, path in agents.asked].count("/api/v1/alerts") == 1
    source.alerts_changed()
    source.read()
    assert [path for _, path in agents.asked].count("/api/v1/alerts") == 2


@pytest.mark.slow
@pytest.mark.skipif(find_library("nvidia-ml") is not None, reason="this machine has NVML")
def test_a_machine_without_nvml_says_so() -> None:
    """The reader without an agent tells the driver's reason, and can be closed and opened again."""
    done = subprocess.run(  # in a process that has not loaded a library for another test
        [sys.executable, "-c", _READS_TWICE], capture_output=True, text=True, timeout=50, check=True
    )
    assert done.stdout.count("Cannot read the GPUs: ") == 2
