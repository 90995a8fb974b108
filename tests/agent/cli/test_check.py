"""The plugin for Nagios: exit status, the line, and performance data."""

from __future__ import annotations

from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from gpuagent.cli.check import CheckCommand, check, judge
from gpuagent.core.hardware import Ecc, MemoryKind
from gpuagent.core.snapshot import GpuState, NvmlState, Snapshot
from tests.fakes.answering import answering, says
from tests.fakes.documents import document
from tests.fakes.readings import NOW, absent_gpu, gpu, identity, mig_instance, process, snapshot

GIB = 1024**3


def run(*options: str) -> tuple[int, str]:
    """Exit status and output of the command."""
    app = typer.Typer()
    app.command(cls=CheckCommand)(check)
    result = CliRunner().invoke(app, list(options))
    return result.exit_code, result.stdout


def checked(shown: Any, *options: str) -> tuple[int, str]:
    """The same, of an agent that answers with this document."""
    with answering(says(shown)) as place:
        return run("--socket", str(place), *options)


def full(used_gib: float) -> Snapshot:
    """A GPU of 24 GiB."""
    return snapshot([gpu(used_gib=used_gib)], [])


def by_design(used_gib: float) -> Snapshot:
    """The same GPU, held by a server that takes most of it when it starts."""
    return snapshot([gpu(used_gib=used_gib)], [process(name="VLLM::EngineCore", used_gib=used_gib - 0.2)])


NO_DRIVER = {"nvml_state": NvmlState.FAILED, "nvml_reason": "no driver", "gpus_expected": 0}


@pytest.mark.parametrize(
    ("of", "now", "options", "code", "words"),
    [
        (snapshot(), NOW, [], 0, "GPU OK - 1 GPU, nothing wrong"),
        (snapshot([gpu(0), gpu(1)]), NOW, [], 0, "GPU OK - 2 GPUs, nothing wrong"),
        (full(22), NOW, [], 1, "GPU WARNING - GPU 0: 93 % of memory used (22.0 GiB of 23.8 GiB)"),
        (full(23.4), NOW, [], 2, "GPU CRITICAL - GPU 0: 99 % of memory used (23.4 GiB of 23.8 GiB)"),
        (full(23.9), NOW, [], 2, "GPU CRITICAL - GPU 0: 100 % of memory used"),
        (by_design(22), NOW, [], 0, "GPU OK - 1 GPU, nothing wrong"),
        (by_design(23.9), NOW, [], 2, "GPU CRITICAL - GPU 0: 100 % of memory used"),
        (full(23.9), NOW, ["--warning", "100", "--critical", "1.0"], 0, "GPU OK"),
        (full(10), NOW, ["--warning", "20%", "--critical", "40%"], 2, "42 % of memory used"),
        (full(10), NOW, ["-w", "0.2", "-c", "1"], 1, "42 % of memory used"),
        (snapshot([gpu(ecc=Ecc(remap_pending=True))]), NOW, [], 1, "GPU WARNING - GPU 0: bad memory"),
        (snapshot([gpu(), absent_gpu(1, GpuState.LOST)]), NOW, [], 2, "GPU CRITICAL - GPU 1: lost"),
        (snapshot(), NOW + 60, [], 3, "GPU UNKNOWN - no fresh figures: the last are 1 min old"),
        (None, NOW, [], 3, "GPU UNKNOWN - nothing has been measured yet"),
        (snapshot([], node=NO_DRIVER | {"pci_gpus": 0}, measured_seconds=None), NOW, [], 0, "no GPU on this node"),
        (snapshot([], node=NO_DRIVER | {"pci_gpus": 2}, measured_seconds=None), NOW, [], 2, "no driver"),
        (snapshot([], node={"nvml_state": NvmlState.PAUSED}), NOW, [], 1, "paused"),
        (snapshot(simulated="leak"), NOW, [], 0, "GPU OK - SIMULATED (leak): 1 GPU"),
    ],
)
def test_exit_status(of: Snapshot | None, now: float, options: list[str], code: int, words: str) -> None:
    """GPU-01, EXP-05, EXP-07: each state of the node has its status, and the line begins with what is wrong."""
    found, line = checked(document(of, now), *options)

    assert found == code
    assert line.startswith("GPU ")
    assert words in line
    assert line.count("\n") == 1


def test_performance_data() -> None:
    """Each GPU's used memory is there with the limits that were asked for, in bytes, less what the driver reserves."""
    _, line = checked(document(snapshot([gpu(0, used_gib=10), gpu(1, used_gib=0)])), "--warning", "50%")

    total, reserved = 24 * GIB, GIB // 4
    limits = f"{total // 2 - reserved};{round(0.98 * total) - reserved}"
    assert line.rstrip().partition("|")[2] == (
        f"'gpu0_memory'={10 * GIB}B;{limits};0;{total} 'gpu1_memory'=0B;{limits};0;{total}"
    )


def test_what_cannot_be_known_has_no_performance_data() -> None:
    """EXP-05, NUM-05: lost GPUs, memory that nobody tells and stale figures are no points in a graph."""
    unified = gpu(1, identity=identity(1, memory_kind=MemoryKind.UNIFIED), memory=None)
    lost = snapshot([absent_gpu(0, GpuState.LOST), unified], [])

    assert "|" not in checked(document(lost))[1]
    assert "|" not in checked(document(full(23.9), NOW + 60))[1]


def test_a_full_instance() -> None:
    """PROC-09: a MIG instance at its wall is found, though its GPU has room, and by the caller's limits."""
    shown = document(
        snapshot([gpu(used_gib=9.7, total_gib=80, mig=(mig_instance(3, 9.7), mig_instance(3, 9.7, compute=1)))], [])
    )
    code, line = checked(shown)

    assert (code, "GPU 0 MIG 3: 99 % of memory used" in line, "'gpu0_mig3_memory'=" in line) == (2, True, True)
    assert line.count("gpu0_mig3_memory") == line.count("GPU 0 MIG 3") == 1
    assert checked(shown, "--warning", "100%", "--critical", "100%")[0] == 0


def test_the_gravest_first() -> None:
    """A pager shows forty characters."""
    here = snapshot([gpu(0, used_gib=22), absent_gpu(1, GpuState.LOST)], [])
    _, line = checked(document(here))

    assert line.index("GPU 1: lost") < line.index("GPU 0: 93 %")


def test_many_findings_have_a_line_each() -> None:
    """A pager shows how many there are and what they are in 120 characters; the sentences follow."""
    here = snapshot([gpu(0, used_gib=22), gpu(1, used_gib=23.9), absent_gpu(2, GpuState.LOST)], [])
    shown = document(here)
    shown["problems"].append(
        {"severity": "critical", "kind": "leak", "gpu": 3, "pid": 7, "text": "GPU 3: " + "leaks " * 20}
    )
    first, *more = checked(shown)[1].splitlines()
    words, _, data = first.partition("|")

    assert words == ("GPU CRITICAL - 3 critical, 1 warning: GPU 2 lost; GPU 1 full; GPU 3 leak; GPU 0 93 % full")
    assert "gpu1_memory" in data
    assert [line.partition(":")[0] for line in more] == ["GPU 2", "GPU 1", "GPU 3", "GPU 0"]


@pytest.mark.parametrize(
    "options",
    [
        ["--warning", "much"],
        ["--warning", "nan"],
        ["--critical", "101%"],
        ["--warning", "99%", "--critical", "90%"],
        ["--no-such-option"],
        ["surplus"],
    ],
)
def test_bad_arguments_are_unknown(options: list[str]) -> None:
    """A typing error pages nobody: 2 would be CRITICAL."""
    code, line = checked(document(snapshot()), *options)

    assert code == 3
    assert line.startswith("GPU UNKNOWN - ")


def test_no_agent_is_unknown() -> None:
    """An agent that is gone is not covered up by reading the GPUs some other way."""
    code, line = run("--socket", "/nowhere/control.sock")

    assert code == 3
    assert "Cannot reach the agent: /nowhere/control.sock: No such file or directory" in line


def test_hostile_text_stays_in_its_place() -> None:
    """PROC-07: a bar would begin performance data, and a line break a second line."""
    shown = document(snapshot())
    shown["problems"] = [{"severity": "warning", "kind": "x", "gpu": 0, "pid": None, "text": "a|b\nc\x1b[2J"}]
    code, line = checked(shown)

    assert code == 1
    assert line.startswith("GPU WARNING - a/b c|'gpu0_memory'=")


def test_what_is_only_good_to_know_is_in_the_line() -> None:
    """An alert of severity info that fires is told, and the exit status stays 0."""
    idle = {"kind": "alert", "severity": "info", "text": "GPU 0: python3 has done nothing for an hour"}
    document = {
        "age_seconds": 1.0, "stale": False, "gpus": [], "problems": [idle], "agent": {"simulated": ""},
    }  # fmt: skip
    code, text, _ = judge(document, 0.9, 0.98)
    assert (code, text) == (0, "no GPU on this node; GPU 0: python3 has done nothing for an hour")
