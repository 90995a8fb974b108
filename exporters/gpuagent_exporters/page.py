"""The page for a person with a browser: the status document as HTML, without a script.

Everything in it may come from a hostile process name, so every value goes through `_text`, and the
Content-Security-Policy forbids whatever would slip through. Widths are SVG attributes, because that
policy forbids inline styles too.
"""

from __future__ import annotations

import base64
import hashlib
import html
import math
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any, TypeGuard

from gpuagent.units import format_bytes, format_duration

REFRESH_SECONDS = 5
_STYLE = files("gpuagent_exporters").joinpath("page.css").read_text(encoding="utf-8")
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_UNKNOWN = "\N{EN DASH}"
_MAX_PROCESSES = 1000
"""A browser redraws this table every few seconds; whoever has more processes wants the JSON."""
_SEVERITIES = ("critical", "warning", "info")

_Document = Mapping[str, Any]


def render(status: _Document, hostname: str = "") -> bytes:
    """The page over a status document, as UTF-8. What is not known shows as a dash."""
    title = html.escape(" · ".join(filter(None, ["gpuagent", hostname])))
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="refresh" content="{REFRESH_SECONDS}">',
        f"<title>{title}</title><style>{_STYLE}</style></head><body>",
        f"<header><h1>{title}</h1>{_node_line(status)}</header><main>",
        *_banners(status),
        _problems(status.get("problems") or ()),
        _cards(status),
        _processes(status.get("processes") or ()),
        "</main><footer><small>",
        f"Refreshes every {REFRESH_SECONDS} s. The same for programs: ",
        '<a href="/metrics">/metrics</a>, <a href="/api/v1/status">/api/v1/status</a>',
        "</small></footer></body></html>\n",
    ]
    return "".join(parts).encode("utf-8", errors="replace")


def _node_line(status: _Document) -> str:
    node, agent = status.get("node") or {}, status.get("agent") or {}
    facts = [
        f"data is {_duration(status.get('age_seconds'))} old",
        f"driver {node.get('driver_version') or _UNKNOWN}",
        f"CUDA {node.get('cuda_version') or _UNKNOWN}",
        f"gpuagent {agent.get('version') or _UNKNOWN}, up {_duration(agent.get('uptime_seconds'))}",
    ]
    return f'<p class="quiet">{_text(" · ".join(facts))}</p>'


def _banners(status: _Document) -> Iterable[str]:
    agent = status.get("agent") or {}
    age, interval = status.get("age_seconds"), agent.get("poll_interval_seconds") or 1.0
    if agent.get("simulated"):
        scenario = _text(agent["simulated"])
        yield f'<p class="banner">SIMULATED: no real GPU is shown here (scenario {scenario}).</p>'
    if age is None:
        yield '<p class="banner">NO DATA: nothing has been measured yet.</p>'
    elif age > max(3 * interval, 5.0):
        yield (
            f'<p class="banner">STALE: the last measurement is {_text(_duration(age))} old; it may no longer be so.</p>'
        )


def _problems(problems: Sequence[_Document]) -> str:
    if not problems:
        return "<h2>Problems</h2><p>None known.</p>"
    return f'<h2>Problems</h2><ul class="problems">{"".join(map(_problem, problems))}</ul>'


def _problem(problem: _Document) -> str:
    severity = problem.get("severity")
    kind = severity if severity in _SEVERITIES else "info"
    advice = problem.get("advice")
    return (
        f'<li class="{kind}"><b>{kind.upper()}</b> {_text(problem.get("text"))}'
        + (f'<br><span class="quiet">{_text(advice)}</span>' if advice else "")
        + "</li>"
    )


def _cards(status: _Document) -> str:
    gpus = status.get("gpus") or ()
    if not gpus:
        return "<h2>GPUs</h2><p>None.</p>"
    return f'<h2>GPUs</h2><div class="cards">{"".join(map(_card, gpus))}</div>'


def _card(gpu: _Document) -> str:
    state = str(gpu.get("state") or "unknown")
    head = f"<h3>GPU {_text(gpu.get('index'))} · {_text(gpu.get('name'))}</h3>"
    uuid = f"<small>{_text(gpu.get('uuid'))}</small>"
    if state != "ok":
        reason = _text(gpu.get("reason") or "no reason is known")
        lines = f'<p class="figure">{_text(state.upper())}</p><p>{reason}</p>'
        return f'<section class="card troubled">{head}{uuid}{lines}</section>'
    return f'<section class="card">{head}{uuid}{_memory(gpu)}{_facts(gpu)}{_mig(gpu)}</section>'


def _memory(gpu: _Document) -> str:
    if gpu.get("unified_memory"):
        shared = _size(gpu.get("memory_processes_bytes"))
        return f'<p class="figure">{shared}</p><p class="quiet">of memory shared with the host</p>'
    used, total = gpu.get("memory_used_bytes"), gpu.get("memory_total_bytes")
    ratio = _percent(gpu.get("memory_used_ratio"))
    figure = f'<p class="figure">{_size(used)} of {_size(total)} · {ratio}</p>'
    parts = [
        ("used", "processes", gpu.get("memory_processes_bytes")),
        ("dead", "dead processes", gpu.get("memory_dead_processes_bytes")),
        ("unknown", "unattributed", gpu.get("memory_unattributed_bytes")),
    ]
    told = " · ".join(f"{label} {_size(size)}" for _, label, size in parts)
    shares = [(kind, _share(size, total)) for kind, _, size in parts]
    if not any(share for _, share in shares):  # the split is not known: the whole is still worth a bar
        shares = [("used", _share(used, total))]
    return f'{figure}{_bar(shares, ratio)}<p class="quiet">{told}</p>{_history(gpu, total)}'


def _bar(shares: Sequence[tuple[str, float]], label: str) -> str:
    rectangles, start = [], 0.0
    for kind, share in shares:
        width = min(share, 1.0 - start) * 100
        rectangles.append(f'<rect class="{kind}" x="{start * 100:.2f}%" width="{width:.2f}%" height="100%"/>')
        start += width / 100
    return f'<svg class="bar" role="img" aria-label="memory used: {label}">{"".join(rectangles)}</svg>'


def _history(gpu: _Document, total: float | None) -> str:
    """Used memory over time, oldest left; what was not measured is a gap, not a zero."""
    points = gpu.get("memory_used_history_bytes") or ()
    runs: list[list[str]] = [[]]
    for place, used in enumerate(points):
        share = _share(used, total)
        if used is None or not total:
            runs.append([])
        else:
            runs[-1].append(f"{place},{100 - share * 100:.1f}")
    lines = "".join(f'<polyline points="{" ".join(run)}"/>' for run in runs if len(run) > 1)
    if not lines:
        return ""
    view = f'viewBox="0 0 {len(points) - 1} 100" preserveAspectRatio="none"'
    return f'<svg class="history" {view} aria-hidden="true">{lines}</svg>'


def _facts(gpu: _Document) -> str:
    facts = [
        f"busy {_percent(gpu.get('utilization_ratio'))}",
        f"{_number(gpu.get('temperature_celsius'))} °C",
        f"{_number(gpu.get('power_watts'))} of {_number(gpu.get('power_limit_watts'))} W",
        f"{_number(gpu.get('processes'))} process{'' if gpu.get('processes') == 1 else 'es'}",
    ]
    reasons = gpu.get("throttle_reasons") or ()
    slowed = f"<p>Slowed down: {_text(', '.join(map(str, reasons)))}</p>" if reasons else ""
    return f"<p>{_text(' · '.join(facts))}</p>{slowed}"


def _mig(gpu: _Document) -> str:
    instances = [
        f"<li>{_text(mig.get('profile'))}: {_size(mig.get('memory_used_bytes'))} "
        f"of {_size(mig.get('memory_total_bytes'))}</li>"
        for mig in gpu.get("mig") or ()
    ]
    return f"<ul>{''.join(instances)}</ul>" if instances else ""


def _processes(processes: Sequence[_Document]) -> str:
    if not processes:
        return "<h2>Processes</h2><p>No process uses a GPU.</p>"
    rows = "".join(map(_process, processes[:_MAX_PROCESSES]))
    more = len(processes) - _MAX_PROCESSES
    note = f'<p class="quiet">{more} more in /api/v1/processes</p>' if more > 0 else ""
    heads = (
        '<th class="number">GPU</th><th class="number">PID</th><th>process</th><th>user</th>'
        '<th class="number">memory</th><th class="number">busy</th>'
        "<th>belongs to</th><th>command</th>"
    )
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<h2>Processes</h2><div class="scroll">{table}</div>{note}'


def _process(process: _Document) -> str:
    name, state = process.get("process") or _UNKNOWN, process.get("state")
    if state not in {None, "live"}:
        name = f"{name} ({state})"
    belongs = next(
        (process[key] for key in ("slurm_job", "pod", "unit", "container_id") if process.get(key)),
        "",
    )
    return (
        f'<tr><td class="number">{_text(process.get("gpu"))}</td>'
        f'<td class="number">{_text(process.get("pid"))}</td>'
        f"<td>{_text(name)}</td><td>{_text(process.get('user') or _UNKNOWN)}</td>"
        f'<td class="number">{_size(process.get("memory_used_bytes"))}</td>'
        f'<td class="number">{_percent(process.get("sm_utilization_ratio"))}</td>'
        f'<td>{_text(belongs)}</td><td class="command">{_text(process.get("command"))}</td></tr>'
    )


def _text(value: object) -> str:
    """A value as harmless HTML, kept apart: right-to-left marks must not turn its neighbours."""
    return "" if value is None or value == "" else f"<bdi>{html.escape(str(value))}</bdi>"


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and math.isfinite(value) and value >= 0


def _size(value: object) -> str:
    return format_bytes(value) if _is_number(value) else _UNKNOWN


def _duration(value: object) -> str:
    return format_duration(value) if _is_number(value) else _UNKNOWN


def _percent(value: object) -> str:
    return f"{value * 100:.0f} %" if _is_number(value) else _UNKNOWN


def _number(value: object) -> str:
    return f"{value:.0f}" if _is_number(value) else _UNKNOWN


def _share(part: object, whole: object) -> float:
    return min(part / whole, 1.0) if _is_number(part) and _is_number(whole) and whole else 0.0
