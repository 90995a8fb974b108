"""The GPUs on the page: a card each, with its memory to scale, and room for the chart that the script draws."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gpuagent.core.wording import assessment_words
from gpuagent_exporters.page_html import (
    SEVERITIES,
    UNKNOWN,
    Document,
    attribute,
    chapter,
    count,
    duration,
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
        kind = "card troubled"
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
    if gpu.get("unified_memory"):
        shared = size(gpu.get("memory_processes_bytes"))
        return f'<p class="figure">{shared}</p><p class="quiet">of memory shared with the host</p>'
    used, total = gpu.get("memory_used_bytes"), gpu.get("memory_total_bytes")
    ratio = percent(gpu.get("memory_used_ratio"))
    figure = f'<p class="figure">{size(used)} of {size(total)} · {ratio}</p>'
    parts = [
        ("used", "processes", gpu.get("memory_processes_bytes")),
        ("dead", "dead processes", gpu.get("memory_dead_processes_bytes")),
        ("unknown", "unattributed", gpu.get("memory_unattributed_bytes")),
    ]
    told = " ".join(f'<span class="key {kind}">{label} {size(part)}</span>' for kind, label, part in parts)
    shares = [(kind, share(part, total)) for kind, _, part in parts]
    if not any(part for _, part in shares):  # the split is not known: the whole is still worth a bar
        shares = [("used", share(used, total))]
    return f'{figure}{_bar(shares, ratio)}<p class="quiet keys">{told}</p>'


def _bar(shares: Sequence[tuple[str, float]], label: str) -> str:
    """Widths are SVG attributes, because the page's policy forbids inline styles."""
    rectangles, start = [], 0.0
    for kind, part in shares:
        width = min(part, 1.0 - start) * 100
        rectangles.append(f'<rect class="{kind}" x="{start * 100:.2f}%" width="{width:.2f}%" height="100%"/>')
        start += width / 100
    return f'<svg class="bar" role="img" aria-label="memory used: {label}">{"".join(rectangles)}</svg>'


def _growth(gpu: Document) -> str:
    """What is said of the memory as a whole: the verdict, how fast, and when it is full."""
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
    if gpu.get("unified_memory") or not gpu.get("uuid"):
        return ""
    total = gpu.get("memory_total_bytes")
    line = _history(gpu, total) if gpu.get("state") == "ok" else ""
    about = f'data-gpu="{attribute(gpu.get("uuid"))}" data-index="{attribute(gpu.get("index"))}"'
    return f'<figure class="chart" data-keep {about} data-total="{attribute(total)}">{line}</figure>'


def _history(gpu: Document, total: object) -> str:
    """Used memory over time, oldest left; what was not measured is a gap, not a zero."""
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
