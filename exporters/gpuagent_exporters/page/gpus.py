"""The GPUs on the page, a card each with its memory to scale and room for a chart; then the table of processes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from gpuagent.core.identity import format_container
from gpuagent.core.wording import (
    alone_words,
    assessment_words,
    full_in_words,
    growth_words,
    unmeasured_words,
    verdict_words,
)
from gpuagent_exporters.page.html import (
    SEVERITIES,
    UNKNOWN,
    Document,
    attribute,
    chapter,
    count,
    duration,
    is_number,
    number,
    percent,
    share,
    size,
    text,
)


def gpus(status: Document, stale_seconds: float) -> str:
    """All cards. A reading older than `stale_seconds` is called old on its card."""
    found = status.get("gpus") or ()
    read = {gpu.get("index") for gpu in found if gpu.get("state") == "ok"}
    cards = "".join(_card(gpu, stale_seconds, read) for gpu in found)
    return chapter("gpus", "GPUs", f'<div class="cards">{cards}</div>' if found else "<p>None.</p>")


def _card(gpu: Document, stale_seconds: float, read: Collection[object]) -> str:
    """Return one card. `read` are the indices of the GPUs that answer: one that does not has lost its index to them."""
    state = str(gpu.get("state") or "unknown")
    name = f" · {text(gpu['name'])}" if gpu.get("name") else ""
    former = "formerly " if state != "ok" and gpu.get("index") in read else ""
    head = f"<h3>{former}GPU {text(gpu.get('index'))}{name}</h3><small>{text(gpu.get('uuid'))}</small>"
    kind = "card"
    if state != "ok":
        kind = "card" if state == "asleep" else "card troubled"
        body = f'<p class="figure">{text(state.upper())}</p><p>{text(gpu.get("reason") or "no reason is known")}</p>'
        lost = gpu.get("lost_seconds")
        body += f'<p class="quiet">last read: {_last_read(gpu)}</p>' if lost is None else _lost_for(lost)
    else:
        old = (gpu.get("age_seconds") or 0.0) > stale_seconds
        body = f'<p class="old"><b>OLD</b> read {_last_read(gpu)}</p>' if old else ""
        severity = gpu.get("severity")
        if severity in SEVERITIES[:2]:
            kind, body = "card troubled", body + f"<p><b>{severity.upper()}</b></p>"
        body += f"{_memory(gpu)}{_growth(gpu)}{_facts(gpu)}{_mig(gpu)}"
    return f'<article class="{kind}" data-key="{attribute(gpu.get("uuid"))}">{head}{body}{_chart(gpu)}</article>'


def _lost_for(seconds: object) -> str:
    return f'<p class="quiet">lost for {duration(seconds)}</p>'


def _last_read(gpu: Document) -> str:
    age = gpu.get("age_seconds")
    return "never" if age is None else f"{duration(age)} ago"


def _memory(gpu: Document) -> str:
    used, total = gpu.get("memory_used_bytes"), gpu.get("memory_total_bytes")
    ratio = percent(gpu.get("memory_used_ratio"))
    figure = f'<p class="figure">{size(used)} of {size(total)} · {ratio}</p>'
    parts = [
        ("used", "processes", gpu.get("memory_processes_bytes")),
        ("dead", "dead processes", gpu.get("memory_dead_processes_bytes")),
        ("unknown", *_rest(gpu)),
    ]
    told = " ".join(f'<span class="key {kind}">{label} {size(part)}</span>' for kind, label, part in parts)
    shares = [(kind, share(part, total)) for kind, _, part in parts]
    if not any(part for _, part in shares):  # the split is not known: the whole is still worth a bar
        shares = [("used", share(used, total))]
    return f'{figure}{_bar(shares, ratio)}<p class="quiet keys">{told}</p>'


def _rest(gpu: Document) -> tuple[str, object]:
    """Return what no process of the GPU holds: of memory that it shares, that is what the machine uses beside it."""
    if gpu.get("memory_host_bytes") is not None:
        return "beside the GPU", gpu.get("memory_host_bytes")
    return "unattributed", gpu.get("memory_unattributed_bytes")


def _bar(shares: Sequence[tuple[str, float]], label: str) -> str:
    """Widths are SVG attributes, because the page's policy forbids inline styles."""
    rectangles, start = [], 0.0
    for kind, part in shares:
        width = min(part, 1.0 - start) * 100
        rectangles.append(f'<rect class="{kind}" x="{start * 100:.2f}%" width="{width:.2f}%" height="100%"/>')
        start += width / 100
    return f'<svg class="bar" role="img" aria-label="memory used: {label}">{"".join(rectangles)}</svg>'


def _growth(gpu: Document) -> str:
    """Describe the growth of the memory as a whole: the verdict, how fast, and when it is full."""
    if gpu.get("verdict") not in {"leaking", "growing"}:
        return ""
    return f"<p>{text(assessment_words(gpu))}</p>"


def _facts(gpu: Document) -> str:
    processes = gpu.get("processes")
    facts = [
        f"busy {percent(gpu.get('utilization_ratio'))}",
        f"{number(gpu.get('temperature_celsius'))} °C",
        f"{number(gpu.get('power_watts'))} of {number(gpu.get('power_limit_watts'))} W",
        f"{UNKNOWN} processes" if processes is None else count(processes, "process"),
    ]
    reasons = gpu.get("throttle_reasons") or ()
    slowed = f"<p>Slowed down: {text(', '.join(map(str, reasons)))}</p>" if reasons else ""
    return f"<p>{text(' · '.join(facts))}</p>{slowed}"


def _mig(gpu: Document) -> str:
    instances = [
        f"<li>{text(mig.get('profile'))}: {size(mig.get('memory_used_bytes'))} "
        f"of {size(mig.get('memory_total_bytes'))}{_growth(mig)}</li>"
        for mig in gpu.get("mig") or ()
    ]
    return f"<ul>{''.join(instances)}</ul>" if instances else ""


def _chart(gpu: Document) -> str:
    """Without a script the last minutes as a line; with one the last hour, which the script keeps up to date.

    A lost GPU has no figures, but what led to the loss is worth looking at.
    """
    if not gpu.get("uuid"):
        return ""
    total = gpu.get("memory_total_bytes")
    line = _history(gpu, total) if gpu.get("state") == "ok" else ""
    about = f'data-gpu="{attribute(gpu.get("uuid"))}" data-index="{attribute(gpu.get("index"))}"'
    return f'<figure class="chart" data-keep {about} data-total="{attribute(total)}">{line}</figure>'


def _history(gpu: Document, total: object) -> str:
    """Draw used memory over time, oldest left; what was not measured is a gap, not a zero."""
    points = gpu.get("memory_used_history_bytes") or ()
    runs: list[list[str]] = [[]]
    for place, used in enumerate(points):
        if used is None or not total:
            runs.append([])
        else:
            runs[-1].append(f"{place},{100 - share(used, total) * 100:.1f}")
    lines = "".join(f'<polyline points="{" ".join(run)}"/>' for run in runs if len(run) > 1)
    if not lines:
        return ""
    view = f'viewBox="0 0 {len(points) - 1} 100" preserveAspectRatio="none"'
    return f'<svg class="history" {view} aria-hidden="true">{lines}</svg>'


MOST = 1000
"""A browser redraws this table every few seconds; whoever has more processes wants the JSON."""

"""As `docker ps` and `crictl ps` show it."""


class _Column(NamedTuple):
    head: str
    cell: Callable[[Document], str]
    """As HTML."""
    figure: Callable[[Document], object] | None = None
    """What a column of numbers is sorted by; a column without it is sorted by its text."""
    kind: str = ""


def processes(found: Sequence[Document], *, hidden: bool, known: Document | None = None) -> str:
    """Render the table. `hidden`: whoever looks must not see users and commands, so there are no columns for them.

    `known` are the processes of GPUs that are not measured now, told with that mark.
    """
    mark = f"<p>{text(unmeasured_words(known))}</p>" if known is not None else ""
    if not found and known is not None:
        table = _table(known["processes"], hidden=hidden) if known["processes"] else ""
        return chapter("processes", "Processes", mark + table)
    if not found:
        return chapter("processes", "Processes", "<p>No process uses a GPU.</p>")
    last = mark + _table(known["processes"], hidden=hidden) if known is not None and known["processes"] else mark
    return chapter("processes", "Processes", _table(found, hidden=hidden) + last)


def _table(found: Sequence[Document], *, hidden: bool) -> str:
    columns = [column for column in _COLUMNS if not (hidden and column.head in _PRIVATE)]
    if not any(process.get("reserved_bytes") is not None for process in found):
        columns = [column for column in columns if column.head != "allocator"]
    heads = "".join(
        f'<th scope="col" data-sort class="{"number" if column.figure else ""}">{column.head}</th>'
        for column in columns
    )
    rows = "".join(_row(process, columns) for process in found[:MOST])
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    notes = []
    if len(found) > MOST:
        notes.append(f"{len(found) - MOST} more in /api/v1/processes")
    if hidden:
        notes.append("Users and commands are shown on loopback, or to who gives a password.")
    region = f'<div class="scroll" role="region" aria-label="Table of processes" tabindex="0">{table}</div>'
    return region + "".join(f'<p class="quiet">{note}</p>' for note in notes)


def _row(process: Document, columns: Sequence[_Column]) -> str:
    key = "/".join(str(process.get(part)) for part in ("gpu_uuid", "gpu", "gpu_instance_id", "pid"))
    return f'<tr data-key="{attribute(key)}">{"".join(_cell(process, column) for column in columns)}</tr>'


def _cell(process: Document, column: _Column) -> str:
    kind = f' class="{column.kind or "number"}"' if column.kind or column.figure else ""
    value = column.figure(process) if column.figure else None
    sort = f' data-value="{attribute(value)}"' if is_number(value) else ""
    return f"<td{kind}{sort}>{column.cell(process)}</td>"


def _name(process: Document) -> str:
    name, state = process.get("process") or UNKNOWN, process.get("state")
    if process.get("holder_unproven"):
        state = "unproven"
    return text(name if state in {None, "live"} else f"{name} ({state})")


def _allocator(process: Document) -> str:
    """Render what the allocator has reserved, and how much of that is in use."""
    if process.get("reserved_bytes") is None:
        return ""
    parts = [f"{size(process.get('allocated_bytes'))} of {size(process['reserved_bytes'])} reserved"]
    if is_number(process.get("cached_bytes")):
        parts.append(f"{size(process['cached_bytes'])} cached")
    if is_number(process.get("outside_bytes")):
        parts.append(f"{size(process['outside_bytes'])} outside")
    return ", ".join(parts)


def _verdict(process: Document) -> str:
    """With its evidence and its severity, in the words of every surface."""
    words = text(verdict_words(process)) or UNKNOWN
    severity = process.get("severity")
    return f"<b>{words}</b>" if severity in {"critical", "warning"} else words


def _full_in(process: Document) -> str:
    """With the range that the figure may lie in, where the detector tells one."""
    low, high = process.get("exhaustion_range_seconds") or (None, None)
    value = text(full_in_words(process)) or UNKNOWN
    if alone := alone_words(process):  # the figure is its GPU's, and so is no range of its own
        return f'{value}<br><span class="quiet">{text(alone)}</span>'
    if (
        process.get("fast_exhaustion_seconds") is not None
        or not is_number(low)
        or not process.get("exhaustion_seconds")
        or value.startswith("about")  # it is a range
    ):
        return value
    # What may never come has no upper end.
    until = f"to {duration(high)}" if is_number(high) else "or later"
    return f'{value}<br><span class="quiet">{duration(low)} {until}</span>'


def _belongs(process: Document) -> str:
    """Return the nearest owner that a person can act on."""
    if process.get("slurm_job"):
        return f"job {text(process['slurm_job'])}"
    if process.get("pod"):
        return f"pod {text(process['pod'])}"
    if process.get("unit"):
        return text(process["unit"])
    if process.get("container_id"):
        named = process.get("container_name") or format_container(str(process["container_id"]))
        return f"container {text(named)}"
    return ""


_COLUMNS = (
    _Column("GPU", lambda process: text(process.get("gpu")), lambda process: process.get("gpu")),
    _Column("PID", lambda process: text(process.get("pid")), lambda process: process.get("pid")),
    _Column("process", _name),
    _Column("user", lambda process: text(process.get("user") or UNKNOWN)),
    _Column(
        "memory",
        lambda process: size(process.get("memory_used_bytes")),
        lambda process: process.get("memory_used_bytes"),
    ),
    _Column("allocator", _allocator, kind="detail"),
    _Column(
        "busy",
        lambda process: percent(process.get("sm_utilization_ratio")),
        lambda process: process.get("sm_utilization_ratio"),
    ),
    _Column(
        "growth",
        lambda process: text(growth_words(process)) or UNKNOWN,
        lambda process: process.get("growth_bytes_per_second"),
    ),
    _Column("verdict", _verdict),
    _Column("full in", _full_in, lambda process: process.get("gpu_exhaustion_seconds")),
    _Column("belongs to", _belongs, kind="owner"),
    _Column("command", lambda process: text(process.get("command")), kind="command"),
)
_PRIVATE = frozenset({"user", "command"})
