"""The screen of `gpuagent status`, from the status document: one look, problems first, in words."""

from __future__ import annotations

import platform
from typing import Any

from gpuagent.cli.cells import Paint, cut, fit
from gpuagent.cli.processes import process_table
from gpuagent.units import format_duration

GIB = 1024**3
_WIDEST = 160
_STALE_SECONDS = 5.0
_PER_GPU = 4
_MOST_PROCESSES = 24
_MOST_PROBLEMS = 12

Document = dict[str, Any]


def status_screen(document: Document, width: int, paint: Paint, hostname: str = "") -> list[str]:
    """Lines of at most `width` cells (80 to 160 are used)."""
    width = min(width, _WIDEST)
    lines = _head(document, width, paint, hostname or platform.node())
    lines += _problems(document["problems"], width, paint)
    for gpu in document["gpus"]:
        lines += _gpu(gpu, width, paint)
    lines += _processes(document, width, paint)
    return [paint.text(line.rstrip()) for line in lines]


def _head(document: Document, width: int, paint: Paint, hostname: str) -> list[str]:
    node, agent = document["node"], document["agent"]
    age = document["age_seconds"]
    number = node["gpus"]
    gpus = "GPUs unknown" if number is None else f"{number} GPU{'' if number == 1 else 's'}"
    if number is not None and node["gpus_expected"] and number < node["gpus_expected"]:
        gpus = f"{number} of {node['gpus_expected']} GPUs"
    parts = [f"gpuagent {agent['version']}", gpus]
    if node["driver_version"]:
        parts.append(f"driver {node['driver_version']}")
    if document["source"] == "direct":
        parts.append("no agent")
    read = "nothing read yet" if age is None else f"read {_age(age)} ago"
    stale = age is not None and age > _STALE_SECONDS
    right = f"STALE: {read}" if stale else read
    left = cut("  ".join([hostname, *parts]), width - len(right) - 2)
    lines = [fit(left, width - len(right)) + paint(right, "critical" if stale else "dim")]
    if agent["simulated"]:
        lines.append(paint(cut(f"SIMULATED: scenario {agent['simulated']}, no real GPU", width), "warning"))
    return lines


def _problems(problems: list[Document], width: int, paint: Paint) -> list[str]:
    if not problems:
        return ["", paint("no problem found", "ok"), ""]
    lines = [""]
    for problem in problems[:_MOST_PROBLEMS]:
        severity = problem["severity"]
        where = f"GPU {problem['gpu']}: " if problem["gpu"] is not None else ""
        if problem["pid"] is not None:
            where += f"pid {problem['pid']}: "
        head = f"{severity.upper():8} "
        wrapped = _wrap(where + problem["text"], width - len(head))
        lines.append(paint(head, severity) + wrapped[0])
        lines += [" " * len(head) + more for more in wrapped[1:3]]
        if problem["advice"]:
            lines += [paint(" " * len(head) + more, "dim") for more in _wrap(f"-> {problem['advice']}", width - 9)[:2]]
    if len(problems) > _MOST_PROBLEMS:
        lines.append(f"and {len(problems) - _MOST_PROBLEMS} more problems (--json has all)")
    return [*lines, ""]


def _gpu(gpu: Document, width: int, paint: Paint) -> list[str]:
    state = gpu["state"]
    words = state if state == "ok" else state.upper()
    right = f"  {words}"
    name = fit(f"GPU {gpu['index']}  {gpu['name'] or gpu['uuid'] or 'unknown'}", width - len(right))
    lines = [paint(name, "bold") + paint(right, "ok" if state == "ok" else "critical")]
    if state != "ok":
        return [*lines, cut(f"  {gpu['reason'] or 'no figures'}", width)]
    return [*lines, _memory(gpu, width, paint), *_mig(gpu, width, paint), cut(_vitals(gpu), width)]


def _memory(gpu: Document, width: int, paint: Paint) -> str:
    used, total, ratio = gpu["memory_used_bytes"], gpu["memory_total_bytes"], gpu["memory_used_ratio"]
    if gpu["unified_memory"]:
        return cut("  memory is the host's (unified): see the processes", width)
    if used is None or ratio is None:
        return "  memory -"
    figures = f" {_gib(used)}/{_gib(total)} GiB {ratio * 100:3.0f} %"
    history = gpu.get("memory_used_history_bytes") or []
    seconds = (gpu.get("history_interval_seconds") or 0) * len(history)
    spark_width = min(len(history), max(0, (width - 50) // 2))
    spark = ""
    if spark_width >= 4:
        spark = (
            f"  {paint.sparkline(history, total, spark_width)} {format_duration(seconds * spark_width / len(history))}"
        )
    bar_width = width - 2 - len(figures) - len(spark)
    style = "critical" if ratio > 0.98 else "warning" if ratio > 0.9 else "ok"
    return "  " + paint(paint.bar(ratio, bar_width), style) + figures + paint(spark, "dim")


def _mig(gpu: Document, width: int, paint: Paint) -> list[str]:
    lines = []
    for instance in gpu["mig"]:
        used, total = instance["memory_used_bytes"], instance["memory_total_bytes"]
        head = f"  MIG {instance['gpu_instance_id']}/{instance['compute_instance_id']} "
        left = head + fit(instance["profile"], 12)
        if used is None or not total:
            lines.append(left + " -")
            continue
        figures = f" {_gib(used)}/{_gib(total)} GiB {used / total * 100:3.0f} %"
        lines.append(left + " " + paint.bar(used / total, max(4, width - len(left) - len(figures) - 1)) + figures)
    return lines


def _vitals(gpu: Document) -> str:
    parts = [
        f"busy {_percent(gpu['utilization_ratio'])}",
        _with(gpu["temperature_celsius"], "{:.0f} C"),
        f"{_with(gpu['power_watts'], '{:.0f}')}/{_with(gpu['power_limit_watts'], '{:.0f}')} W",
    ]
    for key, text in (("memory_dead_processes_bytes", "dead"), ("memory_unattributed_bytes", "unattributed")):
        if gpu[key]:
            parts.append(f"{text} {gpu[key] / GIB:.1f} GiB")
    if gpu["throttle_reasons"]:
        parts.append("held by " + ", ".join(reason.replace("_", " ") for reason in gpu["throttle_reasons"]))
    return "  " + "  ".join(parts)


def _processes(document: Document, width: int, paint: Paint) -> list[str]:
    by_gpu: dict[int, list[Document]] = {}
    for process in document["processes"]:
        by_gpu.setdefault(process["gpu"], []).append(process)
    per_gpu = max(1, min(_PER_GPU, _MOST_PROCESSES // max(1, len(by_gpu))))
    shown = [process for group in by_gpu.values() for process in group[:per_gpu]]
    if not shown:
        return []
    lines = ["", *process_table(shown, width, paint)]
    hidden = len(document["processes"]) - len(shown)
    if hidden:
        lines.append(paint(f"and {hidden} more: gpuagent ps", "dim"))
    return lines


def _wrap(text: str, width: int) -> list[str]:
    """Words on lines of at most `width` cells."""
    lines: list[str] = []
    line = ""
    for word in text.split():
        longer = f"{line} {word}" if line else cut(word, width)
        if cut(longer, width) == longer:
            line = longer
        else:
            lines.append(line)
            line = cut(word, width)
    return [*lines, line]


def _age(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else format_duration(seconds)


def _gib(value: float) -> str:
    return f"{value / GIB:.1f}"


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio * 100:.0f} %"


def _with(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
