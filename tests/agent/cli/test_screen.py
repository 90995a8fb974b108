"""The status screen: what a person sees at 80 columns, for every kind of node."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from gpuagent.cli.cells import Paint
from gpuagent.cli.ps import process_table
from gpuagent.cli.status import status_screen
from gpuagent.core.growth import Evidence, Growth, MemoryKey, Range, Verdict
from gpuagent.core.hardware import MemoryKind
from gpuagent.core.snapshot import GpuState, NvmlState, ProcessState, Reconciliation, Snapshot
from gpuagent.core.units import GIB
from tests.fakes.any_snapshot import HOSTILE, snapshots, texts
from tests.fakes.documents import document
from tests.fakes.golden import assert_golden
from tests.fakes.readings import NOW, WALL, absent_gpu, gpu, identity, memory, mig_instance, process, snapshot

PLAIN = Paint()


def dead() -> Snapshot:
    """Three GiB of a process that is gone, beside one that is not."""
    split = Reconciliation(int(12.25 * GIB), 3 * GIB, int(4.25 * GIB))
    gone = process(31337, state=ProcessState.DEAD, used_gib=3.0, sm_ratio=None)
    return snapshot([gpu(reconciliation=split)], [process(), gone])


def crowd() -> Snapshot:
    """8 GPUs with 64 processes each."""
    gpus = [gpu(index, used_gib=70 - index, total_gib=79.6, name="NVIDIA H100 80GB HBM3") for index in range(8)]
    processes = [
        process(10_000 + 100 * index + number, gpu_index=index, used_gib=1 - number / 100, unit="worker@3.service")
        for index in range(8)
        for number in range(64)
    ]
    return snapshot(gpus, processes)


def test_a_process_that_preallocates_is_labelled() -> None:
    """A GPU that such a server fills looks full, and is as it should be; the configuration names more of them."""
    known = process(1, name="VLLM::EngineCor", command="VLLM::EngineCore", used_gib=20.0)
    other = process(2, used_gib=2.0, command="python3 jax_serve.py")
    whole = document(snapshot([gpu()], [known, other]))
    named = document(snapshot([gpu()], [known, other]), preallocates=("jax_serve",))

    assert [(one["framework"], one["preallocates"]) for one in whole["processes"]] == [("vllm", True), ("", None)]
    assert named["processes"][1]["framework"] == "configured"
    lines = process_table(whole["processes"], 120, PLAIN)
    assert [line.partition("  preallocates  ")[2] for line in lines] == ["", "VLLM::EngineCore", ""]


def mig() -> Snapshot:
    """An A100 in three parts: one full, one shared by two compute instances."""
    shared = (mig_instance(5, 0.5, 19.5, "1c.2g.20gb"), mig_instance(5, 0.5, 19.5, "1c.2g.20gb", compute=1))
    parts = (mig_instance(1, 4.0), mig_instance(2, 9.7), *shared)
    whole = gpu(used_gib=13.7, total_gib=80, name="NVIDIA A100-SXM4-80GB", utilization=None, mig=parts)
    return snapshot([whole], [process(11, instance=1, used_gib=4.0), process(12, instance=2, used_gib=9.7)])


def unified() -> Snapshot:
    """A GB10, which shares the memory of the machine."""
    whole = gpu(
        identity=identity(name="NVIDIA GB10", memory_kind=MemoryKind.UNIFIED),
        memory=memory(19.5, 119.0),
        reconciliation=Reconciliation(12 * GIB, 0, 0, int(7.5 * GIB)),
    )
    return snapshot([whole], [process(used_gib=12.0)])


def kinds_of_processes() -> Snapshot:
    """Who a process belongs to, from the most to the least telling, and those that cannot be asked."""
    owned = [
        process(1, used_gib=9, slurm_job="4711", unit="slurmd.service"),
        process(2, used_gib=8, pod="whisper-0", namespace="speech", container_id="c" * 64),
        process(3, used_gib=7, unit="whisper.service", user="svc-ml-production"),
        process(4, used_gib=6, container_id="d" * 64, container_runtime="docker"),
    ]
    odd = [
        process(5, gpu_index=1, used_gib=5, kernel_state="Z"),
        process(6, gpu_index=1, used_gib=4, kernel_state="D", kinds="CG"),
        process(7, gpu_index=1, used_gib=None, sm_ratio=None, command=""),
        process(8, gpu_index=1, state=ProcessState.UNRESOLVED, used_gib=None, sm_ratio=None),
    ]
    return snapshot([gpu(0), gpu(1)], owned + odd)


def growth() -> Snapshot:
    """Five processes: one leaks, one grows, one collapses, one caches, one is new."""
    pace = Range(1.2 * GIB / 3600, 0.0, 2 * GIB / 3600)
    why = ("floor of memory rose in 8 of 8 parts of 34 min, did not slow down",)
    leak = Growth(Verdict.LEAKING, Evidence.STRICT, pace, WALL - 7800, Range(8040.0, 4020.0, 12_060.0), why)
    said = {
        1: leak,
        2: replace(leak, verdict=Verdict.GROWING, evidence=None, slope=Range(3000.0, 0.0, 9000.0), exhaustion=None),
        3: Growth(Verdict.STEADY, slope=Range(0.0, 0.0, 0.0), fast=True, fast_exhaustion_seconds=9.4),
        4: Growth(Verdict.CACHED, slope=pace, reasons=("holds 4.0 GiB more than 2 h before, its tensors do not",)),
        5: Growth(Verdict.LEARNING),
    }
    processes = [process(pid, used_gib=6 - pid, unit="whisper.service") for pid in said]
    keyed = {one.key: said[one.pid] for one in processes}
    whole = replace(leak, fast=True, fast_exhaustion_seconds=9.4, reasons=("python3 (pid 3): memory goes fast",))
    return snapshot([gpu()], processes, growth={**keyed, MemoryKey(gpu().identity.uuid): whole})


GOLDEN = {
    "growth": growth(),
    "healthy": snapshot(),
    "lost": snapshot([gpu(0), absent_gpu(1, GpuState.LOST, "the GPU is lost")]),
    "blind": snapshot([absent_gpu(0, GpuState.BLIND, "a call into the driver has not come back"), gpu(1)], []),
    "dead-processes": dead(),
    "mig": mig(),
    "unified-memory": unified(),
    "no-gpus": snapshot([]),
    "no-driver": snapshot(
        [],
        node={
            "nvml_state": NvmlState.FAILED,
            "nvml_reason": "libnvidia-ml.so.1 was not found",
            "driver_version": "",
            "gpus_expected": 2,
        },
        measured_seconds=None,
    ),
    "not-started": None,
    "simulated": snapshot(simulated="leak"),
    "processes": kinds_of_processes(),
    "crowd": crowd(),
}


def screen(of: Snapshot | None, width: int = 80, paint: Paint = PLAIN, now: float = NOW + 0.4) -> str:
    """The screen as text."""
    return "\n".join(status_screen(document(of, now), width, paint, "node7.example")) + "\n"


def check_fits(text: str, width: int) -> None:
    """Every line is one line on the terminal: nothing wraps, and nothing moves the cursor."""
    for line in text.split("\n"):
        assert line.isprintable()
        assert cell_len(line) <= width, line


@pytest.mark.parametrize("name", GOLDEN)
def test_screens(name: str) -> None:
    """GPU-01, PROC-01, PROC-02, PROC-04, NUM-05, EXP-06, EXP-07: each kind of node reads well in 80 columns."""
    text = screen(GOLDEN[name])

    check_fits(text, 80)
    assert_golden(f"status-{name}.txt", text)


def test_stale_figures_are_not_drawn() -> None:
    """EXP-05: when the agent has stopped measuring, the screen says so and draws no bar from the last figures."""
    text = screen(snapshot(), now=NOW + 45)

    assert_golden("status-stale.txt", text)
    assert "STALE" in text.split("\n")[0]
    assert not re.search("[█░]", text)
    assert "19.5" not in text


@pytest.mark.parametrize("name", ["healthy", "mig", "dead-processes", "processes"])
def test_ascii(name: str) -> None:
    """With --ascii no line has a character beyond ASCII, and every line is as wide as it was."""
    plain, ascii_only = screen(GOLDEN[name]), screen(GOLDEN[name], paint=Paint(ascii_only=True))

    assert ascii_only.isascii()
    assert [cell_len(line) for line in ascii_only.split("\n")] == [cell_len(line) for line in plain.split("\n")]


def test_color_carries_no_meaning() -> None:
    """Without its colors the screen has the same words."""
    colored = screen(GOLDEN["lost"], paint=Paint(color=True))

    assert "\x1b[1;31m" in colored
    assert re.sub("\x1b\\[[0-9;]*m", "", colored).replace(" \n", "\n") == screen(GOLDEN["lost"])


def test_a_wider_terminal_is_used() -> None:
    """More room is more of the command and of the history; beyond 160 columns the eye gets lost."""
    narrow, wide, wider = (screen(snapshot(), width) for width in (80, 140, 300))

    assert "python3 train.py --config big.yaml" not in narrow
    assert "python3 train.py --config big.yaml" in wide
    assert max(map(cell_len, wider.split("\n"))) <= 160


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_cannot_break_the_screen(name: str) -> None:
    """PROC-07: escapes, line breaks, overrides of direction and wide characters stay inside their column."""
    here = snapshot([gpu(name=name)], [process(name=name, user=name, command=name, unit=name)], simulated=name)
    text = screen(here)

    check_fits(text, 80)
    assert text.count("\n") == screen(snapshot(simulated="x")).count("\n")


@pytest.mark.slow
@settings(max_examples=50)
@given(here=st.none() | snapshots(), width=st.integers(48, 170), name=texts)
def test_any_node_fits(here: Snapshot | None, width: int, name: str) -> None:
    """NUM-01, PROC-07: whatever was measured, it is drawn within the width, and nothing raises."""
    shown = document(here, 1000.0)

    check_fits("\n".join(status_screen(shown, width, PLAIN, name)), width)
    check_fits("\n".join(status_screen(shown, width, Paint(ascii_only=True), name)), width)
    check_fits("\n".join(process_table(shown["processes"], width, PLAIN)), width)


def test_many_problems_leave_room() -> None:
    """The screen stays one: twelve problems are shown, the rest are counted."""
    gpus = [absent_gpu(index, GpuState.LOST) for index in range(20)]

    assert "+8 more problems: gpuagent status --json" in screen(snapshot(gpus, []))


def test_a_narrow_screen_is_laid_out_anew() -> None:
    """Below 80 cells the vitals have a line of their own, and a leaking process keeps its name and its verdict."""
    lines = status_screen(document(growth()), 60, PLAIN)

    check_fits("\n".join(lines), 60)
    assert any(line.split()[:2] == ["busy", "97"] for line in lines)
    assert any("alice" in line and "python3" in line and "leaking" in line for line in lines)


@pytest.mark.slow
def test_a_pipe_gets_everything() -> None:
    """Without a terminal every problem and process is listed, and no command is cut."""
    long = "python3 train.py " + "--option value " * 40
    gpus = [gpu(0), *(absent_gpu(index, GpuState.LOST, "the GPU is lost") for index in range(1, 20))]
    here = snapshot(gpus, [process(pid, command=long) for pid in range(1, 100)])
    lines = status_screen(document(here), 80, PLAIN, whole=True)

    assert sum(line.endswith(long.strip()) for line in lines) == 99
    assert sum("lost for" in line or "GPU is lost" in line for line in lines) >= 19
    assert not any(line.startswith("+") for line in lines)


@pytest.mark.parametrize(("unit", "shown"), [("", "python3  leaking"), ("emb.service", "python3  leaking  em")])
def test_a_leaker_has_a_name_in_a_narrow_table(unit: str, shown: str) -> None:
    """LEAK-02: at 80 columns the line of the one process that is looked for tells who it is, beside others that do."""
    pace = Range(1e7, 1e7, 1e7)
    growth = Growth(Verdict.LEAKING, Evidence.STRICT, slope=pace, exhaustion=Range(3600.0, 3600.0, 3600.0))
    seen = snapshot([gpu()], [process(4_194_305, used_gib=60.0, command="python3 " + 40 * "x", unit=unit)])
    seen = replace(seen, growth={MemoryKey("GPU-00000000", 4_194_305): growth})
    processes = document(seen)["processes"]
    assert shown in process_table(processes, 80, PLAIN)[1]
    assert "leaking (strict)" in process_table(processes, 170, PLAIN)[1]


def test_numbers_are_never_cut() -> None:
    """The longest numbers there are have room: a pid above the kernel's, 100 %, an age of days, a TiB of memory."""
    longest = process(4_194_999, used_gib=1023.99, sm_ratio=1.0, kinds="CGM", start_time_seconds=WALL - 99.96 * 86_400)
    line = process_table(document(snapshot([gpu()], [longest]))["processes"], 80, PLAIN)[1]

    assert "99 d 23 h" in line
    assert line.split()[:8] == ["0", "4194999", "alice", "1.0", "TiB", "100", "%", "CGM"]
