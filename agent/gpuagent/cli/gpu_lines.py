"""One GPU on the screen: two lines, and a third for what is unusual. What is not known is a `-`, never a zero."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from rich.cells import cell_len

from gpuagent.cli.cells import Paint, cut, fit
from gpuagent.growth_words import assessment_words
from gpuagent.units import GIB, format_duration, format_ratio

_FULL_CRITICAL, _FULL_WARNING = 0.98, 0.90
_WORTH_A_WORD_BYTES = GIB // 10
"""Unattributed memory below this is the driver's own, on every GPU."""
_GRAVE = frozenset({"critical", "warning"})
_INDENT = "  "
_FIGURES_WIDTH = 22  # " 141.0/143.8 GiB 100 %"
_LABEL_WIDTH = 6  # "10 min"
_MOST_POINTS = 30

Document = dict[str, Any]


def gpu_lines(gpu: Document, width: int, paint: Paint, *, history: bool = False, stale: bool = False) -> list[str]:
    """Lines of at most `width` cells. Figures are drawn only while they are the GPU's present ones.

    `history` keeps room for the sparkline, on every GPU if one has it, so that the bars stay comparable.
    """
    state = str(gpu["state"])
    readable = state == "ok" and not stale
    words = fit(_word(gpu) if readable else "STALE" if state == "ok" else state.upper(), 8, right=True)
    right = f"{_vitals(gpu) if readable else ''}  "
    name = fit(f"GPU {gpu['index']}  {gpu['name'] or gpu['uuid'] or 'unknown'}", width - len(right) - len(words))
    lines = [paint(name, "bold") + right + paint(words, _style(gpu) if readable else "critical")]
    if not readable:
        return [*lines, cut(_INDENT + _why_no_figures(gpu), width)]
    room = width - (_spark_width(width) + _LABEL_WIDTH + 3 if history else 0)
    lines += [_memory(gpu, width, room, paint), *_instances(gpu["mig"], room, paint)]
    unusual = _unusual(gpu)
    return [*lines, cut(_INDENT + unusual, width)] if unusual else lines


def _word(gpu: Document) -> str:
    """`ok`, or how grave its gravest problem is."""
    return str(gpu["severity"]).upper() if gpu.get("severity") in _GRAVE else "ok"


def _style(gpu: Document) -> str:
    return str(gpu["severity"]) if gpu.get("severity") in _GRAVE else "ok"


def _why_no_figures(gpu: Document) -> str:
    age, lost = gpu["age_seconds"], gpu.get("lost_seconds")
    since = "never read" if age is None else f"last read {format_duration(age)} ago"
    if lost is not None:
        since = f"lost for {format_duration(lost)}"
    return f"no figures, {since}: {gpu['reason']}" if gpu["reason"] else f"no figures, {since}"


def _vitals(gpu: Document) -> str:
    return (
        f"  busy {fit(_percent(gpu['utilization_ratio']), 5, right=True)}"
        f"  {fit(_rounded(gpu['temperature_celsius']), 3, right=True)} C"
        f"  {fit(_rounded(gpu['power_watts']) + '/' + _rounded(gpu['power_limit_watts']), 9, right=True)} W"
    )


def _memory(gpu: Document, width: int, room: int, paint: Paint) -> str:
    """The bar with its figures in `room`, and the sparkline in what is left of `width`."""
    if gpu["unified_memory"]:
        held = gpu["memory_processes_bytes"]
        return f"{_INDENT}memory shared with the host; GPU processes hold {_gib(held)} GiB"
    used, total, ratio = gpu["memory_used_bytes"], gpu["memory_total_bytes"], gpu["memory_used_ratio"]
    if ratio is None:
        return f"{_INDENT}memory {_gib(used)}/{_gib(total)} GiB"
    style = "critical" if ratio > _FULL_CRITICAL else "warning" if ratio > _FULL_WARNING else "ok"
    line = _bar(_INDENT, used, total, room, paint, style)
    return line + paint(_spark(gpu, total, _spark_width(width), paint), "dim") if room < width else line


def _instances(mig: Sequence[Document], room: int, paint: Paint) -> Iterator[str]:
    """A line for each GPU instance: the memory is its own, and its compute instances share it."""
    for number, instance in {instance["gpu_instance_id"]: instance for instance in mig}.items():
        profile = str(instance["profile"]).rpartition("c.")[2]  # 1c.3g.40gb is a compute instance in a 3g.40gb
        head = f"{_INDENT}MIG {number:<2} {fit(profile, 10)} "
        used, total = instance["memory_used_bytes"], instance["memory_total_bytes"]
        known = used is not None and total
        yield _bar(head, used, total, room, paint) if known else f"{head}{_gib(used)}/{_gib(total)} GiB"


def _bar(head: str, used: float, total: float, room: int, paint: Paint, style: str = "") -> str:
    figures = f"{_gib(used)}/{_gib(total)} GiB {format_ratio(used / total):>5}".rjust(_FIGURES_WIDTH)
    return head + paint(paint.bar(used / total, room - cell_len(head) - len(figures)), style) + figures


def _spark_width(width: int) -> int:
    return min(_MOST_POINTS, width // 6)


def _spark(gpu: Document, total: float, width: int, paint: Paint) -> str:
    """The used memory of the last minutes against the total, and how long that was."""
    points = gpu["memory_used_history_bytes"]
    if not points:
        return ""
    seconds = len(points) * gpu["history_interval_seconds"]
    label = format_duration(seconds if seconds < 60 else round(seconds / 60) * 60)
    return f"  {paint.sparkline(peaks(points, width), total, width)} {label[:_LABEL_WIDTH]}"


def peaks(points: Sequence[float | None], most: int) -> list[float | None]:
    """The same history in at most `most` points: a peak is what runs into the wall, so the highest is kept.

    >>> peaks([1, 5, None, None, 2, 3], 3), peaks([1, None], 3)
    ([5, None, 3], [1, None])
    """
    if len(points) <= most:
        return list(points)
    edges = [len(points) * edge // most for edge in range(most + 1)]
    parts = ([point for point in points[start:end] if point is not None] for start, end in pairwise(edges))
    return [max(part, default=None) for part in parts]


def _unusual(gpu: Document) -> str:
    parts = []
    if gpu["memory_dead_processes_bytes"]:
        parts.append(f"dead processes {_gib(gpu['memory_dead_processes_bytes'])} GiB")
    if (gpu["memory_unattributed_bytes"] or 0) >= _WORTH_A_WORD_BYTES and not gpu["unified_memory"]:
        parts.append(f"unattributed {_gib(gpu['memory_unattributed_bytes'])} GiB")
    parts += _growth(gpu, "")
    for number, instance in {instance["gpu_instance_id"]: instance for instance in gpu["mig"]}.items():
        parts += _growth(instance, f"MIG {number} ")
    if gpu["throttle_reasons"]:
        parts.append("held back by " + ", ".join(str(reason).replace("_", " ") for reason in gpu["throttle_reasons"]))
    return "  ".join(parts)


def _growth(part: Document, whose: str) -> Iterator[str]:
    """What is said of memory as a whole, where it grows."""
    if part.get("verdict") in {"growing", "leaking"}:
        yield whose + assessment_words(part)


def _gib(value: float | None) -> str:
    return "-" if value is None else f"{value / GIB:.1f}"


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else format_ratio(ratio)


def _rounded(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"
