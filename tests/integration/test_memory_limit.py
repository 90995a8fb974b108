"""The memory that the service is given is far more than it ever takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.integration.agent import running_agent
from tests.integration.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

UNIT = Path(__file__).parents[2] / "systemd" / "gpuagent.service"
CROWD = "gpus:\n" + "  - {model: h100, processes: [{name: worker, count: 64, memory: 1GiB}]}\n" * 16
TICKS = 20


def highest_bytes(pid: int) -> int:
    """Peak of the resident memory of a process (VmHWM, proc_pid_status(5))."""
    found = re.search(r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def test_the_limit_is_never_what_ends_it(folder: Path) -> None:
    """GPU-12: sixteen GPUs with 1,024 processes, scraped all the time: less than half of the unit's MemoryMax."""
    limit = re.search(r"^MemoryMax=(\d+)M$", UNIT.read_text(), re.MULTILINE)
    assert limit is not None
    (folder / "crowd.yaml").write_text(CROWD)
    with running_agent(folder, folder / "crowd.yaml", poll_interval="200ms") as agent:
        agent.wait_until_ready()

        def ticks() -> float:
            text = agent.get("/metrics").text
            return float(re.findall(r"^gpuagent_ticks_total (\S+)$", text, re.MULTILINE)[0])

        first = ticks()
        until(lambda: ticks() >= first + TICKS, "it has measured for a while", 90)
        assert highest_bytes(agent.process.pid) < int(limit[1]) * 2**20 / 2
        assert agent.stop() == 0
