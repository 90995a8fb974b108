"""A table of GPU processes that fits the width it is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len

from gpuagent.cli.cells import Paint, cut, fit

_GIB = 1024**3

Document = dict[str, Any]


def process_table(processes: list[Document], width: int, paint: Paint) -> list[str]:
    """A heading and one line per process, of at most `width` cells. The last column takes what is left.

    Numbers are never cut: their columns have room for the largest pid (4194304, and what is simulated above) and age.
    """
    mig = any(process["gpu_instance_id"] is not None for process in processes)
    gpu_width = 7 if mig else 3
    heads = ("GPU", "PID", "USER", "MEMORY", "SM", "TYPE", "AGE")
    lines = [paint(cut(f"{_columns(heads, gpu_width)}WHO", width), "dim")]
    for process in processes:
        left = _columns(
            (
                _gpu(process),
                process["pid"],
                process["user"] or "-",
                _memory(process),
                _sm(process),
                process["kinds"] or "-",
                _age(process["age_seconds"]),
            ),
            gpu_width,
        )
        lines.append(left + cut(who(process), width - cell_len(left)))
    return lines


def _columns(values: Sequence[object], gpu_width: int) -> str:
    gpu, pid, user, memory, sm, kinds, age = values
    return (
        f"{fit(gpu, gpu_width, right=True)} {fit(pid, 7, right=True)} {fit(user, 9)} {fit(memory, 10, right=True)} "
        f"{fit(sm, 4, right=True)} {fit(kinds, 4)} {fit(age, 6, right=True)}  "
    )


def who(process: Document) -> str:
    """The most telling name first: a state that matters, then job, pod, unit or container, then what runs."""
    if process["state"] == "dead":
        return "DEAD, memory still held"
    if process["state"] == "unresolved":
        return "in another pid namespace"
    state = {"Z": "ZOMBIE", "D": "STUCK (D)"}.get(process["process_state"], "")
    parts = (state, owner(process), process["command"] or process["process"] or "?")
    return "  ".join(part for part in parts if part)


def owner(process: Document) -> str:
    """What the process belongs to: the name under which somebody can be asked, or something be restarted."""
    if process["slurm_job"]:
        return f"job {process['slurm_job']}"
    if process["pod"]:
        return f"{process['namespace']}/{process['pod']}"
    if process["pod_uid"]:
        return f"pod {process['pod_uid'][:8]}"
    if process["unit"]:
        return str(process["unit"])
    if process["container_id"]:
        return f"{process['container_runtime'] or 'container'} {process['container_id'][:12]}"
    return ""


def _gpu(process: Document) -> str:
    instance, compute = process["gpu_instance_id"], process["compute_instance_id"]
    if instance is None:
        return str(process["gpu"])
    return f"{process['gpu']}:{instance}" + ("" if compute is None else f"/{compute}")


def _memory(process: Document) -> str:
    """At most ten cells up to 256 TiB: the larger, the fewer decimals."""
    used = process["memory_used_bytes"]
    if used is None:
        return "-"
    gib = used / _GIB
    decimals = 2 if gib < 999.995 else 1 if gib < 9999.95 else 0
    return f"{gib:.{decimals}f} GiB"


def _sm(process: Document) -> str:
    ratio = process["sm_utilization_ratio"]
    return "-" if ratio is None else f"{ratio * 100:.0f}%"


def _age(seconds: float | None) -> str:
    """At most six cells, and the precision that is of interest at that age.

    >>> _age(None), _age(59), _age(8040), _age(86_400 * 9 + 7200), _age(86_400 * 400)
    ('-', '59s', '2h14m', '9d2h', '400d')
    """
    if seconds is None:
        return "-"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest}s" if minutes else f"{rest}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h{minutes}m"
    days, hours = divmod(hours, 24)
    return f"{days}d{hours}h" if days < 100 else f"{days}d"
