"""A table of GPU processes that fits the width it is given."""

from __future__ import annotations

from typing import Any

from gpuagent.cli.cells import Paint, cut, fit
from gpuagent.units import format_duration

_GIB = 1024**3

Document = dict[str, Any]


def process_table(processes: list[Document], width: int, paint: Paint) -> list[str]:
    """A heading and one line per process, of at most `width` cells. The last column takes what is left."""
    mig = any(process["gpu_instance_id"] is not None for process in processes)
    gpu_width = 7 if mig else 3
    head = (
        f"{fit('GPU', gpu_width, right=True)} {fit('PID', 7, right=True)} {fit('USER', 9)} "
        f"{fit('MEMORY', 10, right=True)} {fit('SM', 4, right=True)} {'TYPE':4} {fit('AGE', 8, right=True)}  "
    )
    lines = [paint(cut(f"{head}WHO", width), "dim")]
    for process in processes:
        left = (
            f"{fit(_gpu(process), gpu_width, right=True)} {fit(process['pid'], 7, right=True)} "
            f"{fit(process['user'] or '-', 9)} {fit(_memory(process), 10, right=True)} "
            f"{fit(_sm(process), 4, right=True)} {fit(process['kinds'] or '-', 4)} {fit(_age(process), 8, right=True)}  "
        )
        lines.append(left + cut(who(process), width - len(head)))
    return lines


def who(process: Document) -> str:
    """The most telling name first: a state that matters, then unit, pod, job or container, then what runs."""
    if process["state"] == "dead":
        return "DEAD: no such process, its memory is still held"
    if process["state"] == "unresolved":
        return "unknown: the agent is in another pid namespace"
    parts = []
    letter = process["process_state"]
    if letter in ("Z", "D"):
        parts.append("ZOMBIE" if letter == "Z" else "STUCK (D)")
    if process["pod"]:
        parts.append(f"{process['namespace']}/{process['pod']}")
    elif process["slurm_job"]:
        parts.append(f"job {process['slurm_job']}")
    elif process["container_id"]:
        parts.append(f"{process['container_runtime'] or 'container'} {process['container_id'][:12]}")
    elif process["unit"]:
        parts.append(process["unit"])
    parts.append(process["command"] or process["process"] or "?")
    return "  ".join(parts)


def _gpu(process: Document) -> str:
    instance = process["gpu_instance_id"]
    return str(process["gpu"]) if instance is None else f"{process['gpu']}:{instance}/{process['compute_instance_id']}"


def _memory(process: Document) -> str:
    used = process["memory_used_bytes"]
    return "-" if used is None else f"{used / _GIB:.2f} GiB"


def _sm(process: Document) -> str:
    ratio = process["sm_utilization_ratio"]
    return "-" if ratio is None else f"{ratio * 100:.0f}%"


def _age(process: Document) -> str:
    age = process["age_seconds"]
    return "-" if age is None else format_duration(age)
