"""The agent on the real NVML, compared with nvidia-smi. Figures that are worth a note are printed (`pytest -s`)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuagent.procfs.machine import in_host_pid_namespace
from tests.integration.agent import Agent, running_agent
from tests.integration.waiting import until

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

MIB = 1024**2
SIZES_MIB = (512, 2048)
TOLERANCE_BYTES = 64 * MIB
"""nvidia-smi rounds to MiB, and both look at different moments while a context settles."""


@contextmanager
def holding(size_bytes: int) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that holds so much memory, and the UUID of its GPU."""
    program = [sys.executable, str(Path(__file__).with_name("allocate.py")), str(size_bytes)]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            uuid = process.stdout.readline().strip()
            assert uuid, "the memory could not be taken"
            yield process, uuid
        finally:
            process.stdin.close()
            process.wait(30)


def smi(query: str, fields: str) -> list[list[str]]:
    """Rows of `nvidia-smi --query-...`."""
    command = ["nvidia-smi", f"--query-{query}={fields}", "--format=csv,noheader,nounits"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.splitlines()
    return [[cell.strip() for cell in line.split(",")] for line in lines if line.strip()]


def gpu_of(agent: Agent, uuid: str) -> Any:
    """The GPU in the agent's status."""
    return next(gpu for gpu in agent.status()["gpus"] if gpu["uuid"] == uuid)


@pytest.mark.parametrize("size_mib", SIZES_MIB)
def test_memory_is_what_nvidia_smi_says(tmp_path: Path, size_mib: int) -> None:
    """Used memory per GPU and, where pids mean something, per process: as nvidia-smi has it, and what was taken."""
    with running_agent(tmp_path, None) as agent:
        agent.wait_until_ready()
        before = {gpu["uuid"]: gpu["memory_used_bytes"] for gpu in agent.status()["gpus"]}
        with holding(size_mib * MIB) as (process, uuid):
            held = size_mib * MIB
            until(lambda: gpu_of(agent, uuid)["memory_used_bytes"] >= before[uuid] + held, "the memory in the status")
            said = {row[0]: int(row[1]) * MIB for row in smi("gpu", "uuid,memory.used")}
            used = gpu_of(agent, uuid)["memory_used_bytes"]
            print(f"{size_mib} MiB taken: agent {used / MIB:.0f} MiB, nvidia-smi {said[uuid] / MIB:.0f} MiB")  # noqa: T201
            assert abs(used - said[uuid]) <= TOLERANCE_BYTES
            if not in_host_pid_namespace():
                return
            own = [one for one in agent.status()["processes"] if one["pid"] == process.pid]
            listed = {int(row[0]): int(row[1]) * MIB for row in smi("compute-apps", "pid,used_memory")}
            assert abs(own[0]["memory_used_bytes"] - listed[process.pid]) <= TOLERANCE_BYTES
            assert own[0]["memory_used_bytes"] >= held
        until(lambda: gpu_of(agent, uuid)["memory_used_bytes"] < before[uuid] + held // 2, "the memory given back")


def test_every_gpu_is_read_without_a_fault(tmp_path: Path) -> None:
    """As many GPUs as nvidia-smi lists, all readable, no collector failing; the cost of each collector is printed."""
    with running_agent(tmp_path, None) as agent:
        agent.wait_until_ready()
        document = agent.status()
    uuids = {row[0] for row in smi("gpu", "uuid")}
    for run in document["collectors"]:
        print(f"{run['collector']:20} GPU {run['gpu']}: {run['duration_seconds'] * 1e3:8.3f} ms {run['reason']}")  # noqa: T201

    assert {gpu["uuid"] for gpu in document["gpus"]} == uuids
    assert [gpu["state"] for gpu in document["gpus"]] == ["ok"] * len(uuids)
    assert [run for run in document["collectors"] if run["gpu"] is not None and not run["ok"]] == []
