"""What tests of served apps share: an agent that listens to them, and requests that never end."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.integration.agent import Agent, running_agent


@contextmanager
def agent_of_apps() -> Iterator[Agent]:
    """An agent that listens to apps."""
    with (
        TemporaryDirectory(prefix="gpuagent-", dir="/tmp") as folder,
        running_agent(Path(folder), "healthy") as running,
    ):
        running.wait_until_ready()
        yield running


def is_client(agent: Agent, pid: int) -> bool:
    """Whether the agent knows this process from within."""
    return pid in {client["pid"] for client in json.loads(agent.get("/api/v1/clients").body)["clients"]}


@contextmanager
def traffic(request: Callable[[int], object]) -> Iterator[None]:
    """Requests in a thread, one after the other; each is given its number."""
    end = threading.Event()

    def run() -> None:
        number = 0
        while not end.is_set():
            request(number)
            number += 1

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
