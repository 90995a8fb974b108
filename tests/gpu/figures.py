"""Figures of the agent beside those of `nvidia-smi`, and what reading them costs."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

from tests.gpu.report import CannotRun, Report
from tests.gpu.setting import CONTEXT_BYTES, GIB, MIB, Program, Setting, listed
from tests.integration.agent import Agent

HELD_BYTES = 2 * GIB
TOLERANCE_BYTES = 64 * MIB
"""nvidia-smi rounds to MiB, and both look at different moments while a context settles."""
_TRIES = 3
"""Both look at other moments: what moves may differ once, and not three times."""
_NOT_THERE = ("", "[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", "[Insufficient Permissions]")


class Figure(NamedTuple):
    """A field of nvidia-smi's and the family of the agent that has the same."""

    field: str
    family: str
    scale: float = 1.0
    """Factor from nvidia-smi's unit to the agent's."""
    tolerance: float = 0.0
    """In the agent's unit."""
    ratio: float = 0.0
    """Tolerance as a share of nvidia-smi's figure; the larger one of the two holds."""
    labels: str = ""


FIGURES = (
    Figure("memory.total", "memory_total_bytes", MIB, MIB),
    Figure("memory.used", "memory_used_bytes", MIB, TOLERANCE_BYTES),
    Figure("memory.free", "memory_free_bytes", MIB, TOLERANCE_BYTES),
    Figure("memory.reserved", "memory_reserved_bytes", MIB, MIB),
    Figure("utilization.gpu", "utilization_ratio", 0.01, 0.15),
    Figure("utilization.memory", "memory_utilization_ratio", 0.01, 0.2),
    Figure("temperature.gpu", "temperature_celsius", 1, 4),
    Figure("temperature.memory", "memory_temperature_celsius", 1, 4),
    Figure("fan.speed", "fan_speed_ratio", 0.01, 0.1, labels='fan="0"'),
    Figure("power.draw", "power_watts", 1, 15, 0.2),
    Figure("power.limit", "power_limit_watts", 1, 0.1),
    Figure("power.default_limit", "power_default_limit_watts", 1, 0.1),
    Figure("power.max_limit", "power_max_limit_watts", 1, 0.1),
    Figure("clocks.sm", "clock_hertz", 1e6, 0, 0.15, 'domain="sm"'),
    Figure("clocks.gr", "clock_hertz", 1e6, 0, 0.15, 'domain="graphics"'),
    Figure("clocks.mem", "clock_hertz", 1e6, 0, 0.15, 'domain="memory"'),
    Figure("clocks.max.sm", "clock_max_hertz", 1e6, 1, 0, 'domain="sm"'),
    Figure("pstate", "performance_state", 1),
    Figure("pcie.link.gen.current", "pcie_link_generation", 1),
    Figure("pcie.link.gen.max", "pcie_link_generation_max", 1),
    Figure("pcie.link.width.current", "pcie_link_width", 1),
    Figure("ecc.errors.uncorrected.volatile.total", "ecc_errors_total", 1, 0, 0,
           'error="uncorrected",period="volatile"'),
    Figure("remapped_rows.uncorrectable", "remapped_rows", 1, 0, 0, 'error="uncorrected"'),
)  # fmt: skip
_SAMPLE = re.compile(r"^gpuagent_gpu_(\w+)\{gpu=\"\d+\",uuid=\"([^\"]+)\",?([^}]*)\} (\S+)$", re.MULTILINE)
Samples = Mapping[tuple[str, str, str], float]
"""By family, UUID and the other labels."""


def samples(agent: Agent) -> Samples:
    """Return every sample that the agent exports of a GPU."""
    text = agent.get("/metrics").text
    return {(family, uuid, labels): float(value) for family, uuid, labels, value in _SAMPLE.findall(text)}


class Comparison(NamedTuple):
    """What comparing all figures of all GPUs has come to."""

    same: int
    differing: list[str]
    only_agent: list[str]
    values: dict[str, Any]


def compare(setting: Setting, agent: Agent, *programs: Program, load: int) -> Comparison:
    """Compare each figure of each GPU. What neither side has is the same on both."""
    found = samples(agent)
    fields = ",".join(figure.field for figure in FIGURES)
    same, differing, only_agent, values = 0, [], [], {}
    for uuid, *cells in setting.smi("gpu", f"uuid,{fields}", *programs, load=load):
        for figure, cell in zip(FIGURES, cells, strict=True):
            own = found.get((figure.family, uuid, figure.labels))
            values[f"{uuid} {figure.field}"] = [own, cell]
            if cell in _NOT_THERE:
                if own is None:
                    same += 1
                else:
                    only_agent.append(figure.field)
                continue
            theirs = float(cell.removeprefix("P")) * figure.scale
            if own is not None and abs(own - theirs) <= max(figure.tolerance, figure.ratio * abs(theirs), 1e-9):
                same += 1
            else:
                differing.append(f"{figure.field}: agent {own}, nvidia-smi {theirs:g}")
    return Comparison(same, differing, only_agent, values)


def compare_with_nvidia_smi(setting: Setting, report: Report) -> None:
    """Compare all figures idle, then under a load that holds a known amount of memory."""
    with setting.agent() as agent:
        document = agent.status()
        uuids = {row[0] for row in setting.smi("gpu", "uuid")}
        failing = [f"{run['collector']}: {run['reason']}" for run in document["collectors"] if not run["ok"]]
        states = [gpu["state"] for gpu in document["gpus"]]
        figures = f"{len(uuids)} GPUs, states {', '.join(states)}; failing: {', '.join(failing) or 'none'}"
        same = {gpu["uuid"] for gpu in document["gpus"]} == uuids
        report.agrees(
            "gpus", same and set(states) == {"ok"} and not failing, figures, collectors=document["collectors"]
        )
    with report.part("idle"):
        _compare_under(setting, report, "idle", load=0)
    with setting.program("matmul", HELD_BYTES, dry_bytes=HELD_BYTES + CONTEXT_BYTES) as program:
        program.send("run", 3600)
        time.sleep(0 if setting.dry else 3)  # clocks, power and the driver's averages follow within seconds
        with report.part("load"):
            _compare_under(setting, report, "load", program, load=95)
        with setting.agent(program, load=95) as agent:
            _compare_sum(agent, report)
            _compare_process(setting, agent, program, report)


def _compare_under(setting: Setting, report: Report, check: str, *programs: Program, load: int) -> None:
    for _ in range(_TRIES):
        with setting.agent(*programs, load=load) as agent:  # a new one reads everything at once
            result = compare(setting, agent, *programs, load=load)
        if not result.differing:
            break
    text = f"{result.same} agree"
    if result.only_agent:
        text += f"; only the agent has {', '.join(sorted(set(result.only_agent)))}"
    if result.differing:
        text += f"; {len(result.differing)} differ: {'; '.join(result.differing)}"
    report.agrees(check, not result.differing and result.same > 0, text, **result.values)


def _compare_sum(agent: Agent, report: Report) -> None:
    parts = ("memory_processes_bytes", "memory_dead_processes_bytes", "memory_unattributed_bytes")
    texts, agree = [], True
    for gpu in agent.status()["gpus"]:
        values = [gpu[part] for part in parts]
        if gpu["memory_used_bytes"] is None or None in values:
            texts.append(f"GPU {gpu['index']}: not known, {dict(zip(parts, values, strict=True))}")
            agree = False
            continue
        agree = agree and sum(values) == gpu["memory_used_bytes"]
        texts.append(
            " + ".join(f"{value / MIB:.0f}" for value in values) + f" = {gpu['memory_used_bytes'] / MIB:.0f} MiB"
        )
    report.agrees("sum", agree, "; ".join(texts))


def _compare_process(setting: Setting, agent: Agent, program: Program, report: Report) -> None:
    own = listed(agent, program)["memory_used_bytes"]
    rows = {row[0]: row[1] for row in setting.smi("compute-apps", "pid,used_memory", program, load=95)}
    said = rows.get(str(program.pid), "")
    if own is None or not said.isdigit():
        raise CannotRun(f"memory of the process: agent {own}, nvidia-smi {said or 'does not list it'}")
    theirs = int(said) * MIB
    taken = program.ready["taken_bytes"]
    text = f"agent {own / MIB:.0f} MiB, nvidia-smi {theirs / MIB:.0f} MiB, taken {taken / MIB:.0f} MiB"
    report.agrees("process", abs(own - theirs) <= TOLERANCE_BYTES and own >= taken, text, agent_bytes=own,
                  nvidia_smi_bytes=theirs, taken_bytes=taken)  # fmt: skip


@contextmanager
def monitored(setting: Setting) -> Iterator[Any]:
    """The agent's own monitor in this process, over the driver or the simulator."""
    from gpuagent.collector.tick import Monitor, TickTimeouts
    from gpuagent.config.models import Config
    from gpuagent.node import real_node, simulated_node

    path = setting.scenario()
    node = real_node(Config(), keep_inventory=False) if path is None else simulated_node(Config(), str(path))
    pace = TickTimeouts(fresh_seconds=5.0, deadline_seconds=5.0)
    monitor = Monitor(node.driver, node.processes, node.clock, pace, node.place)
    with asyncio.Runner() as runner:
        runner.run(monitor.tick())

        def tick() -> Any:
            monitor.request_slow()
            return runner.run(monitor.tick())

        try:
            yield tick
        finally:
            runner.run(monitor.close())


class _Timed:
    """Wraps `Library.call` and `raw`, and keeps how long each entry point took and what it refused."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)
        self.refused: dict[str, str] = {}

    def wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        from gpuagent.driver.nvml.library import NvmlFailure

        def timed(library: object, name: str, *args: Any) -> Any:
            began = time.perf_counter()
            try:
                answer = original(library, name, *args)
            except NvmlFailure as failure:
                self.refused[name] = failure.text
                raise
            finally:
                self.seconds[name].append(time.perf_counter() - began)
            if original.__name__ == "raw" and answer:
                self.refused[name] = NvmlFailure(name, answer).text
            return answer

        return timed


_TICKS = 30


def time_nvml(setting: Setting, report: Report) -> None:
    """Time every call that the agent makes, a tick that reads everything, and the agent's own process."""
    from gpuagent.driver.nvml.library import Library

    calls, ticks = _Timed(), []
    originals = Library.call, Library.raw
    Library.call, Library.raw = calls.wrap(originals[0]), calls.wrap(originals[1])  # type: ignore[method-assign]
    try:
        with monitored(setting) as tick:
            for _ in range(_TICKS):
                began = time.perf_counter()
                snapshot = tick()
                ticks.append(time.perf_counter() - began)
    finally:
        Library.call, Library.raw = originals  # type: ignore[method-assign]
    taken = ((median(took), name) for name, took in calls.seconds.items() if "EventSetWait" not in name)  # it waits
    worst = sorted(taken, reverse=True)
    text = ", ".join(f"{name} {seconds * 1e3:.2f} ms" for seconds, name in worst[:5])
    refused = ", ".join(f"{name} ({text})" for name, text in sorted(calls.refused.items()))
    report.measured(
        "calls", f"{len(worst)} calls, the slowest by median: {text}; refused: {refused or 'none'}",
        median_seconds={name: seconds for seconds, name in worst}, refused=calls.refused,
        most_seconds={name: max(took) for name, took in calls.seconds.items()},
    )  # fmt: skip
    runs = [run for part in (snapshot, *snapshot.gpus) for run in part.runs]
    slowest = sorted(runs, key=lambda run: -run.duration_seconds)[:3]
    report.measured(
        "tick", f"all collectors: median {median(ticks) * 1e3:.1f} ms,"
        f" 95 % below {quantiles(ticks, n=20)[-1] * 1e3:.1f} ms"
        + "".join(f", {run.collector} {run.duration_seconds * 1e3:.1f} ms" for run in slowest), seconds=ticks,
    )  # fmt: skip
    _time_agent(setting, report)


def _time_agent(setting: Setting, report: Report) -> None:
    """CPU seconds a second of the agent, and of the three calls that a loop with pynvml makes."""
    import pynvml

    seconds = 2 if setting.dry else 12
    with setting.agent() as agent:
        time.sleep(0 if setting.dry else 3)  # what a start costs is over
        before = cpu_seconds(agent.process.pid)
        time.sleep(seconds)
        own = (cpu_seconds(agent.process.pid) - before) / seconds
    loop = None
    if not setting.dry:
        pynvml.nvmlInit()
        gpus = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        began, rounds = time.process_time(), 100
        for _ in range(rounds):
            for gpu in gpus:
                pynvml.nvmlDeviceGetMemoryInfo(gpu)
                pynvml.nvmlDeviceGetUtilizationRates(gpu)
                pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)
        loop = (time.process_time() - began) / rounds
        pynvml.nvmlShutdown()
    beside = "not measured dry" if loop is None else f"{loop * 1e3:.2f} ms"
    report.measured("agent", f"agent {own * 1e3:.1f} ms of CPU a second, loop {beside}", agent=own, loop=loop)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process so far, with the kernel's share of it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure_context(setting: Setting, report: Report) -> None:
    """What the driver counts for a process beyond torch's memory is its CUDA context."""
    size = 4 * GIB
    with setting.agent() as agent:
        before = sum(gpu["memory_used_bytes"] for gpu in agent.status()["gpus"])
    with (
        setting.program("hold", size, dry_bytes=size + CONTEXT_BYTES) as program,
        setting.agent(program) as agent,
    ):
        stats = program.ask("stats")
        free = agent.status()["gpus"][0]["memory_free_bytes"]
        if stats.get("free_bytes") is not None:
            text = f"agent {free / MIB:.0f} MiB, torch {stats['free_bytes'] / MIB:.0f} MiB"
            report.agrees("free", abs(free - stats["free_bytes"]) <= TOLERANCE_BYTES, text)
        whose = "process"
        try:
            own = listed(agent, program)["memory_used_bytes"]
        except CannotRun:
            whose = "the driver lists nobody under its pid; the GPUs grew by"
            own = sum(gpu["memory_used_bytes"] for gpu in agent.status()["gpus"]) - before
        reserved = stats["torch"]["reserved_bytes"]
        context = own - reserved
        text = f"{whose} {own / MIB:.0f} MiB, reserved {reserved / MIB:.0f} MiB, rest {context / MIB:.0f} MiB"
        # A context takes 200 MiB to 2 GiB, by card, driver and loaded kernels.
        report.agrees("reserved", 0 <= context < 3 * GIB, text, process_bytes=own, context_bytes=context)


def poll_beside_work(setting: Setting, report: Report) -> None:
    """Time a running matrix product alone, beside the agent, alone again, and beside its collectors at 10 Hz."""
    seconds = 0.5 if setting.dry else 6
    with setting.program("matmul", GIB) as program:
        program.ask("run", seconds)  # warm: clocks, kernels
        alone = [program.ask("run", seconds)["median_seconds"]]
        with setting.agent(program):
            slow = program.ask("run", seconds)["median_seconds"]
        alone.append(program.ask("run", seconds)["median_seconds"])
        with monitored(setting) as tick:
            program.send("run", seconds)
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                due = time.monotonic() + 0.1
                tick()
                time.sleep(max(0.0, due - time.monotonic()))
            fast = program.answer()["median_seconds"]
    noise = abs(alone[0] - alone[1]) / min(alone)
    for check, beside in (("1 s", slow), ("10 Hz", fast)):
        change = beside / median(alone) - 1
        text = f"{median(alone) * 1e3:.2f} ms alone, {beside * 1e3:.2f} ms beside it: {change:+.1%}"
        text += f" (two runs alone: {noise:.1%})"
        if setting.dry:
            report.measured(check, text)
        else:
            report.agrees(check, change <= max(0.01, noise), text, change=change, noise=noise)
