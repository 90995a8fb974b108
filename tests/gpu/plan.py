"""The experiments of the suite, the most telling and cheapest first, and every check that each has promised.

A check that an experiment does not report is in the table all the same, as one that did not run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

NO_TORCH_CUDA = "needs torch on a real GPU"
NO_LIMITS = "needs root, cgroup version 2 and a driver with memory limits (615)"


@dataclass(frozen=True)
class Check:
    """One thing that is compared or measured."""

    name: str
    compared: str
    dry: str = ""
    """Why it cannot be done over the simulator; "" where it can."""


@dataclass(frozen=True)
class Experiment:
    """A function `module:function` of (Setting, Report) that runs in a process of its own."""

    name: str
    function: str
    seconds: float
    """Longest time that it may take; most take a quarter of it."""
    checks: tuple[Check, ...] = field(default=())

    def compared(self) -> dict[str, str]:
        """Return what each check compares, by its name."""
        return {check.name: check.compared for check in self.checks}


LEAKS = ("outputs", "no_grad", "cache", "hook", "exception")
MODES = {
    "native": "the default allocator",
    "expandable": "expandable_segments",
    "async": "cudaMallocAsync",
    "graphs": "private pools of CUDA graphs",
    "pinned": "pinned host memory",
    "streams": "four streams",
}
SIGNALS = ("sigterm", "sigkill")

EXPERIMENTS = (
    Experiment("figures", "figures:compare_with_nvidia_smi", 60, (
        Check("gpus", "GPUs of the agent beside those of `nvidia-smi`, and collectors that fail"),
        Check("idle", "each figure of each GPU beside `nvidia-smi`, idle"),
        Check("load", "each figure beside `nvidia-smi`, under load"),
        Check("process", "memory of a process: agent, `nvidia-smi`, what it took"),
        Check("sum", "used memory of the GPU as the sum of processes, dead processes and the rest"),
    )),
    Experiment("nvml", "figures:time_nvml", 40, (
        Check("calls", "latency of each NVML call, and which the driver refuses"),
        Check("tick", "duration of a tick and of each collector"),
        Check("agent", "CPU time of the agent, beside a loop of three NVML calls a second"),
    )),
    Experiment("capture", "ending:capture", 40, (
        Check("capture", "`gpuagent doctor --capture`, replayed as a simulated node: the same GPUs"),
    )),
    Experiment("context", "figures:measure_context", 40, (
        Check("reserved", "memory of a process beside `torch.cuda.memory_reserved`: the rest is its context"),
        Check("free", "free memory of the agent beside `torch.cuda.mem_get_info`", NO_TORCH_CUDA),
    )),
    Experiment("ladder", "ending:end_processes", 80, (
        *(Check(name, f"a CUDA process that `gpuagent kill` ends by {name.upper()}: the memory that came back")
          for name in SIGNALS),
        *(Check(f"{name} return", f"how long the memory takes to come back after {name.upper()}") for name in SIGNALS),
        Check("dead", "what is left as dead processes and as unattributed memory after both"),
    )),
    Experiment("fork", "blaming:fork_with_cuda", 70, (
        Check("results", "results of the GPU before, during and after `gpuagent blame` forks: the same bits"),
        Check("answer", "`gpuagent blame` answers with a live CUDA context, and what the app stood still for"),
    )),
    Experiment("allocators", "allocators:compare_modes", 110, tuple(
        Check(name, f"{text}: client, `memory_stats`, `mem_get_info` and driver",
              "" if name == "native" else NO_TORCH_CUDA)
        for name, text in MODES.items()
    )),
    Experiment("leaks", "blaming:find_leaks", 150, (
        *(Check(f"{name} line", f"`gpuagent blame` names the line that leaks: {name}",
                "" if name == "cache" else "tests/client/blame asks for it on the CPU") for name in LEAKS),
        *(Check(f"{name} verdict", f"verdict and forecast for {name}: its trace, stretched 30 times", NO_TORCH_CUDA)
          for name in LEAKS),
        Check("healthy line", "`gpuagent blame` blames nothing in a server with a bounded cache"),
        Check("healthy verdict", "no leak in a server with a bounded cache", NO_TORCH_CUDA),
        Check("release", "`gpuagent release`: what the app says, and what the driver saw come back", NO_TORCH_CUDA),
        Check("traces", "traces of torch's CUDA allocator recorded for tests/data/leaks"),
    )),
    Experiment("oom", "ending:run_out_of_memory", 45, (
        Check("told", "an out-of-memory error of torch, as the client and the agent tell it", NO_TORCH_CUDA),
        Check("full", "the GPU while it is full, and the memory given back after it"),
    )),
    Experiment("limits", "limits:cap", 60, (
        Check("count", "a memory limit on the cgroup of a process: what the driver counts against it", NO_LIMITS),
        Check("refused", "a process beyond its memory limit, and its neighbor: who meets an OOM error", NO_LIMITS),
        Check("lifted", "the same process once its memory limit is lifted", NO_LIMITS),
    )),
    Experiment("polling", "figures:poll_beside_work", 50, (
        Check("1 s", "time of a matrix product beside the agent at 1 s, and without it"),
        Check("10 Hz", "time of a matrix product beside the agent's collectors at 10 Hz, and without them"),
    )),
    Experiment("client", "allocators:time_client", 40, (
        Check("request", "time of a request with the middleware, and without it"),
        Check("reading", "time of one reading of the allocator"),
    )),
    Experiment("preallocation", "ending:preallocate", 40, (
        Check("recognized", "a process that looks like vLLM takes most of the GPU: recognized, and no alert of it"),
    )),
    Experiment("jax", "ending:run_jax", 60, (
        Check("accounted", "a process of JAX: memory in the agent, and its framework", "needs JAX on a real GPU"),
    )),
    Experiment("cupy", "ending:run_cupy", 40, (
        Check("accounted", "a process of CuPy: memory in the agent beside its pool", "needs CuPy on a real GPU"),
    )),
)  # fmt: skip


def named(name: str) -> Experiment:
    """Return the experiment of this name. Raises KeyError."""
    return {experiment.name: experiment for experiment in EXPERIMENTS}[name]


def every_check() -> Iterator[tuple[Experiment, Check]]:
    """Yield each check with its experiment, in the order of the table."""
    for experiment in EXPERIMENTS:
        for check in experiment.checks:
            yield experiment, check
