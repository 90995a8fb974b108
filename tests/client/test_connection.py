"""The connection itself: what it does when the agent's queue is full."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from gpuagent_client.connection import Connection


def sleeping(thread: threading.Thread) -> bool:
    """Whether the kernel has it wait for something."""
    stat = Path(f"/proc/self/task/{thread.native_id}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "S"


@pytest.mark.parametrize("default_timeout", [None, 30.0])
def test_it_waits_for_a_place_in_a_full_queue(tmp_path: Path, default_timeout: float | None) -> None:
    """Somebody floods the agent with connects, so the queue is full; the app's default timeout does not matter."""
    path = str(tmp_path / "s")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen(0)
    filling = socket.socket(socket.AF_UNIX)
    filling.connect(path)
    socket.setdefaulttimeout(default_timeout)
    try:
        connection = Connection()
    finally:
        socket.setdefaulttimeout(None)
    outcomes: list[OSError | None] = []

    def connect() -> None:
        try:
            connection.open(path)
        except OSError as error:
            outcomes.append(error)
        else:
            outcomes.append(None)

    thread = threading.Thread(target=connect)
    thread.start()
    while not outcomes and not sleeping(thread):
        pass
    accepted = [listening.accept()[0] for _ in range(1 if outcomes else 2)]
    thread.join()
    assert outcomes == [None]
    for sock in (*accepted, listening, filling):
        sock.close()
    connection.close()
