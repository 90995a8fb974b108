"""A capture, replayed, is the node that was captured."""

from __future__ import annotations

import asyncio
import re
from importlib import resources
from pathlib import Path

import pytest

from gpuagent.config.models import Config
from gpuagent.core.clock import ManualClock
from gpuagent.core.snapshot import GpuState
from gpuagent.doctor.capture.redaction import CaptureRedactor
from gpuagent.doctor.capture.session import MachineToCapture, _NoLibrary, capture
from gpuagent.doctor.finding import Level
from gpuagent.doctor.machine import captured_host, captured_machine
from gpuagent.procfs.files import RealProc
from gpuagent.service.view import View
from gpuagent_simulator.captures.node import open_node
from gpuagent_simulator.spec import FIRST_MADE_UP_PID
from tests.fakes.captures import captured
from tests.fakes.nvml import use
from tests.fakes.rig import rig

TIMES = re.compile(r"^(gpuagent_collector_duration_seconds\{.*\}) \S+$", re.MULTILINE)
NODES = (
    *("healthy", "mig", "unified-memory", "coherent-memory", "consumer-card", "lost-gpu", "dead-process", "no-gpus"),
    "xid",
)


async def metrics(node: str) -> list[list[str]]:
    """`/metrics` of the node itself at the time of each pass, but for durations and the node's name."""
    found = []
    async with rig(node, events=False) as stage:
        view = View(Config(), stage.clock, "node")
        for first in (0, 4.75):
            await stage.tick(first, slow=True)
            view.update(await stage.tick(0.25, slow=True))
            text = view.metrics(openmetrics=False).decode().partition("# HELP process_")[0]
            text = text.replace(f'scenario="{stage.node.name}"', 'scenario="node"')
            found.append(TIMES.sub(r"\1 <time>", text).splitlines())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("scenario", NODES)
def test_replay_equals_the_node(scenario: str, tmp_path: Path) -> None:
    """Every figure of a node is the same when a capture of it is replayed, in both passes."""
    path = tmp_path / f"{scenario}.yaml"
    path.write_text(captured(scenario), encoding="utf-8")

    assert asyncio.run(metrics(str(path))) == asyncio.run(metrics(scenario))


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        "{kind: process_stride, entry_bytes: 16}",
        "{kind: process_stride}",
        "{kind: unavailable_memory}",
        "{kind: impossible_memory, size: 200GiB}",
        "{kind: error, calls: [nvmlDeviceGetMemoryInfo_v2], code: unknown}",
        "{kind: error, gpu: 0, calls: [nvmlDeviceGetProcessUtilization], code: 321}",
        "{kind: missing, calls: [nvmlDeviceGet*RunningProcesses_v3, nvmlGpmMetricsGet, nvmlDeviceGetEccMode]}",
        "{kind: non_utf8_name}",
    ],
)
def test_what_is_wrong_is_captured(fault: str, tmp_path: Path) -> None:
    """Odd answers are replayed as they were: lists of other forms, codes without a name, missing functions, bytes."""
    node = tmp_path / "node.yaml"
    healthy = resources.files("gpuagent_simulator").joinpath("scenarios", "healthy.yaml").read_text(encoding="utf-8")
    node.write_text(f"{healthy}\nfaults:\n  - {fault}\n", encoding="utf-8")
    path = tmp_path / "replay.yaml"
    path.write_text(captured(str(node)), encoding="utf-8")

    assert asyncio.run(metrics(str(path))) == asyncio.run(metrics(str(node)))


def test_names_that_are_no_text(tmp_path: Path) -> None:
    """Processes whose names and command lines are no UTF-8 are replayed byte by byte."""
    node = tmp_path / "node.yaml"
    node.write_text(
        "gpus:\n  - processes:\n"
        '      - {name: "caf\\\\xe9", command: ["/bin/\\\\xff", "\\\\x01", "ü"], memory: 1GiB, state: D}\n'
        "      - {name: gone, memory: 2GiB, dead: true}\n"
    )
    path = tmp_path / "replay.yaml"
    path.write_text(captured(str(node)), encoding="utf-8")
    assert asyncio.run(metrics(str(path))) == asyncio.run(metrics(str(node)))

    replayed = open_node(str(path), ManualClock()).proc
    assert replayed.read(FIRST_MADE_UP_PID, "cmdline") == b"/bin/\xff\0\x01\0\xc3\xbc\0"
    assert replayed.read(FIRST_MADE_UP_PID, "comm") == b"caf\xe9\n"
    assert not replayed.exists(FIRST_MADE_UP_PID + 1)


def test_a_redacted_capture_names_nobody(tmp_path: Path) -> None:
    """Names, command lines, users, serial numbers and UUIDs are not in a redacted file, and stay tellable apart."""
    plain, redacted = captured("healthy"), captured("healthy", CaptureRedactor.with_new_key())
    secrets = ("whisper-server", "vllm", "svc-ml", "alice", "GPU-51a0f2d4", "16512200", "train.py")
    assert [each for each in secrets if each not in plain] == []
    assert [each for each in secrets if each in redacted] == []

    path = tmp_path / "redacted.yaml"
    path.write_text(redacted, encoding="utf-8")
    first, _ = asyncio.run(metrics(str(path)))
    original, _ = asyncio.run(metrics("healthy"))
    known = "gpuagent_process_preallocates"  # told by the name of a program
    names = [line.partition("{")[0] for line in original if known not in line]
    assert [line.partition("{")[0] for line in first] == names
    users = {match for line in first for match in re.findall(r'user="([^"]*)"', line)}
    assert len(users) == len({match for line in original for match in re.findall(r'user="([^"]*)"', line)})


def test_digests_differ_between_files() -> None:
    """Two captures of one machine cannot be told to be of the same machine."""
    texts = [captured("no-gpus"), *(captured("healthy", CaptureRedactor.with_new_key()) for _ in range(2))]
    uuids = [set(re.findall(r"GPU-[0-9a-f-]{36}", text)) for text in texts]
    assert len(uuids[1]) == len(uuids[2]) == 2
    assert not uuids[1] & uuids[2]


def test_eight_full_gpus_fit_into_a_small_file() -> None:
    """8 GPUs with 64 processes each make less than 300 KB."""
    assert len(captured("crowd", CaptureRedactor.with_new_key()).encode()) < 300_000


def test_a_hanging_call_ends_the_capture_and_hangs_in_the_replay(tmp_path: Path) -> None:
    """What was answered before a call that does not come back is kept, and the replay hangs in the same call."""
    scenario = tmp_path / "hang.yaml"
    scenario.write_text(
        "gpus: [{model: h100, count: 2}]\nfaults: [{kind: hang, gpu: 1, calls: [nvmlDeviceGetMemoryInfo_v2]}]\n"
    )
    text = captured(str(scenario), stuck_seconds=0.3)
    assert "nvmlDeviceGetMemoryInfo_v2 has not come back" in text
    replay = tmp_path / "replay.yaml"
    replay.write_text(text)

    async def states(node: Path) -> list[GpuState]:
        async with rig(str(node), events=False) as stage:
            snapshot = await stage.hasty_tick(5)
            return [gpu.state for gpu in snapshot.gpus]

    assert asyncio.run(states(replay)) == asyncio.run(states(scenario)) == [GpuState.OK, GpuState.STARTING]


def test_a_machine_without_the_library_is_captured() -> None:
    """Without NVML the facts around it are written down, and the code of the initialization."""
    machine = MachineToCapture(_NoLibrary(), RealProc(), str, ManualClock(), sleep=lambda _: None)
    with use(None):
        found = capture(machine, CaptureRedactor.with_new_key(), stuck_seconds=20)
    assert found.gpus == 0
    assert found.problems
    assert 'nvmlInitWithFlags: {"error": "library_not_found"}' in found.text
    assert "kernel:" in found.text


def test_doctor_tells_of_the_captured_host(tmp_path: Path) -> None:
    """`doctor --simulate` of a capture says what the captured host may do, and nothing of this one's."""
    path = tmp_path / "node.yaml"
    path.write_text(
        "gpuagent-capture: 1\nbase: h100\ngpus: [{}]\n"
        "host: {pid_namespace: container, capabilities: '0x20', kernel: Linux 6.1 x86_64,"
        " device_files: [{path: /dev/nvidia0, usable: false}]}\n"
    )
    host = captured_host(str(path))
    assert host is not None
    found = {finding.subject: finding for finding in captured_machine(host)}
    assert found["captured machine"].text == "Linux 6.1 x86_64"
    assert found["pid namespace"].level is Level.WARNING
    assert found["device nodes"].text == "no permission for /dev/nvidia0"
    assert found["capabilities"].text == "without CAP_SYS_PTRACE"
    assert captured_host("healthy") is None
