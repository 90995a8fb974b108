"""`gpuagent record` against a running agent, and `gpuagent replay` of what it wrote."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.integration.agent import GPUAGENT, command, running_agent
from tests.integration.waiting import PATIENCE_SECONDS, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def test_a_leaking_server_is_recorded_and_replayed(folder: Path) -> None:
    """What the agent measures is in the file, with the memory that is free beside it, and replay takes it as it is."""
    file = folder / "run.csv"
    with running_agent(folder, "leak") as agent:
        agent.wait_until_ready()
        (pid,) = (one["pid"] for one in agent.status()["processes"] if one["process"] == "embed-server")
        words = ["record", "--pid", str(pid), "-o", str(file), "--interval", "200ms"]
        with subprocess.Popen(
            [*GPUAGENT, *words, "--socket", str(agent.control_socket)], stderr=subprocess.PIPE, text=True
        ) as recorder:
            until(lambda: file.exists() and len(file.read_text().splitlines()) > 10, "ten readings in the file")
            recorder.send_signal(signal.SIGINT)
            _, told = recorder.communicate(timeout=PATIENCE_SECONDS)

    assert recorder.returncode == 0, told
    assert f"embed-server:{pid} on GPU 0" in told
    rows = [line.split(",") for line in file.read_text().splitlines()[1:]]
    assert {row[5] for row in rows} == {f"embed-server:{pid}"}
    assert all(int(row[1]) >= 6 * 1024**3 and int(row[2]) > 0 for row in rows)
    replayed = command("replay", "--json", str(file))
    found = json.loads(replayed.stdout)
    assert (replayed.returncode, found["process"], found["samples"]) == (0, f"embed-server:{pid}", len(rows))
    assert found["alarms"] == []
