"""The agent under a service manager: what it tells over the notify socket (man 3 sd_notify)."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.agent import running_agent
from tests.integration.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


class Manager:
    """The receiving end of the notify socket."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(PATIENCE_SECONDS)
        self.environment = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "900000"}

    def hear(self, wanted: str) -> list[str]:
        """Every message up to the one that begins like this. Raises TimeoutError when it does not come."""
        heard: list[str] = []
        while not (heard and heard[-1].startswith(wanted)):
            heard.append(self._socket.recv(4096).decode())
        return heard

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(folder: Path) -> Iterator[Manager]:
    """Listens before the agent starts."""
    made = Manager(folder / "notify")
    yield made
    made.close()


def test_ready_comes_after_the_first_reading(folder: Path, manager: Manager) -> None:
    """A unit that is started has measured: what waits for it finds a snapshot."""
    with running_agent(folder, "healthy", manager.environment) as agent:
        manager.hear("READY=1")

        assert agent.get("/-/ready").status == 200
        assert manager.hear("STATUS=")[-1] == "STATUS=2 GPUs: 2 ok; 5 processes"


def test_the_watchdog_is_told_between_two_ticks(folder: Path, manager: Manager) -> None:
    """A poll interval longer than WatchdogSec does not get the agent killed."""
    with running_agent(folder, "healthy", manager.environment, poll_interval="60s", slow_interval="60s"):
        manager.hear("READY=1")

        for _ in range(4):
            manager.hear("WATCHDOG=1")


def test_a_reload_and_a_stop_are_announced(folder: Path, manager: Manager) -> None:
    """RELOADING=1 with its time, READY=1 when it is done, also when it was refused, STOPPING=1 at the end."""
    with running_agent(folder, "healthy", manager.environment) as agent:
        manager.hear("READY=1")
        agent.process.send_signal(signal.SIGHUP)
        assert "MONOTONIC_USEC=" in manager.hear("RELOADING=1")[-1]
        manager.hear("READY=1")

        assert agent.stop() == 0
        manager.hear("STOPPING=1")


def test_ready_comes_without_a_gpu(folder: Path, manager: Manager) -> None:
    """EXP-07: a node without GPUs has a service that is up, not one that systemd gives up on."""
    with running_agent(folder, "no-gpus", manager.environment) as agent:
        manager.hear("READY=1")

        assert agent.get("/-/healthy").status == 200
        assert "gpuagent_gpus 0\n" in agent.get("/metrics").text
