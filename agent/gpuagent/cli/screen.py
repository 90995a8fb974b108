"""The screen of `gpuagent status`, from the status document: one look, problems first, in words.

It is drawn from the document alone, so that a running agent, another node and a direct read look the same.
"""

from __future__ import annotations

from typing import Any

from rich.cells import cell_len

from gpuagent.cli.cells import Paint, clean, cut, fit, wrap
from gpuagent.cli.gpu_lines import gpu_lines
from gpuagent.cli.processes import process_table
from gpuagent.core.units import format_duration

_NARROWEST, _WIDEST = 80, 160
_PER_GPU = 4
_MOST_PROCESSES = 24
_MOST_PROBLEMS = 12
_SEVERITY_WIDTH = 9

Document = dict[str, Any]


def status_screen(document: Document, width: int, paint: Paint, hostname: str = "") -> list[str]:
    """Lines of at most `width` cells (80 to 160 are used)."""
    width = max(_NARROWEST, min(width, _WIDEST))
    lines = [_head(document, width, paint, hostname), "", *_problems(document["problems"], width, paint), ""]
    history = any(gpu["memory_used_history_bytes"] for gpu in document["gpus"])
    for gpu in document["gpus"]:
        lines += gpu_lines(gpu, width, paint, history=history, stale=document["stale"])
    lines += _processes(document, width, paint)
    return [paint.text(line.rstrip()) for line in lines]


def _head(document: Document, width: int, paint: Paint, hostname: str) -> str:
    """One line: whether this is real, whose it is, and how old. What has no room any more is left out whole."""
    agent, stale = document["agent"], document["stale"]
    simulated = f"{cut('SIMULATED: ' + str(agent['simulated']), width // 2)}  " if agent["simulated"] else ""
    right = f"  {'STALE: ' if stale else ''}{_read(document['age_seconds'])}"
    left = cut(hostname, width // 4)
    for part in (
        "no agent" if document["source"] == "direct" else f"gpuagent {agent['version']}",
        _count(document["node"]),
        f"driver {document['node']['driver_version'] or '-'}",
    ):
        longer = f"{left}  {part}" if left else part
        left = longer if cell_len(clean(longer)) <= width - cell_len(simulated + right) else left
    left = fit(left, width - cell_len(simulated + right))
    return paint(simulated, "warning") + left + paint(right, "critical" if stale else "dim")


def _read(age: float | None) -> str:
    if age is None:
        return "nothing read yet"
    return f"read {age:.1f} s ago" if age < 9.95 else f"read {format_duration(age)} ago"


def _count(node: Document) -> str:
    number, expected = node["gpus"], node["gpus_expected"]
    if number is None:
        return "GPUs unknown"
    if expected and number < expected:
        return f"{number} of {expected} GPUs"
    return f"{number} GPU{'' if number == 1 else 's'}"


def _problems(problems: list[Document], width: int, paint: Paint) -> list[str]:
    if not problems:
        return [paint("no problem found", "ok")]
    lines = []
    indent = " " * _SEVERITY_WIDTH
    for problem in problems[:_MOST_PROBLEMS]:
        severity = str(problem["severity"])
        text = wrap(problem["text"], width - _SEVERITY_WIDTH)
        advice = wrap(problem["advice"], width - _SEVERITY_WIDTH - 3) if problem["advice"] else []
        lines.append(paint(fit(severity.upper(), _SEVERITY_WIDTH), severity) + text[0])
        lines += [indent + more for more in text[1:]]
        lines += [paint(f"{indent}{'   ' if row else '-> '}{more}", "dim") for row, more in enumerate(advice)]
    if len(problems) > _MOST_PROBLEMS:
        lines.append(f"and {len(problems) - _MOST_PROBLEMS} more problems: gpuagent status --json")
    return lines


def _processes(document: Document, width: int, paint: Paint) -> list[str]:
    """The largest of each GPU, and how many there are beside them."""
    by_gpu: dict[int, list[Document]] = {}
    for process in document["processes"]:
        by_gpu.setdefault(process["gpu"], []).append(process)
    per_gpu = max(1, min(_PER_GPU, _MOST_PROCESSES // max(1, len(by_gpu))))
    shown = [process for group in by_gpu.values() for process in group[:per_gpu]]
    if not shown:
        return []
    lines = [""]
    if document["stale"]:
        lines.append(f"The processes as they were {format_duration(document['age_seconds'])} ago:")
    lines += process_table(shown, width, paint)
    hidden = len(document["processes"]) - len(shown)
    if hidden:
        lines.append(paint(f"and {hidden} more: gpuagent ps", "dim"))
    return lines
