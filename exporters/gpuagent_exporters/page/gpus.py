"""The GPUs on the page, a card each, the gravest first: memory by process over time, what is wrong, and the figures."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gpuagent.core.growth import MemoryKey
from gpuagent.core.hardware import FULL_RATIO, HIGH_RATIO
from gpuagent.core.identity import NO_INSTANCE
from gpuagent.core.wording import assessment_words, usable_bytes
from gpuagent_exporters.charts import Chart
from gpuagent_exporters.page.headline import severity_rank
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
from gpuagent_exporters.page.memory_chart import memory_chart, plot_of

_GROWS = frozenset({"leaking", "growing"})
_MOST_PROBLEMS = 2
_MEMORY_KEYS = ("memory_used_bytes", "memory_free_bytes", "memory_total_bytes")
_FEW = 2
"""GPUs for which there is always room: they are large, and stand side by side."""


def gravest_first(gpus: Sequence[Document]) -> list[Document]:
    """Sort as a person wants to look: what is lost or worst first, of equals the one that is full soonest."""
    return sorted(
        gpus,
        key=lambda gpu: (
            0 if _is_away(gpu) else severity_rank(gpu.get("severity")),
            gpu["exhaustion_seconds"] if is_number(gpu.get("exhaustion_seconds")) else float("inf"),
        ),
    )


def growing_keys(status: Document) -> frozenset[MemoryKey]:
    """Return the processes that are growing or leaking: a chart shows them, however small they are."""
    return frozenset(
        MemoryKey(
            str(one.get("gpu_uuid") or ""),
            int(one.get("pid") or 0),
            NO_INSTANCE if one.get("gpu_instance_id") is None else int(one["gpu_instance_id"]),
        )
        for one in status.get("processes") or ()
        if one.get("verdict") in _GROWS
    )


def _is_away(gpu: Document) -> bool:
    return gpu.get("state") not in {"ok", "asleep"}


def _severity(gpu: Document) -> str:
    return "critical" if _is_away(gpu) else str(gpu.get("severity") or "")


def _is_grave(gpu: Document) -> bool:
    return _severity(gpu) in SEVERITIES[:2]


def gpus(status: Document, stale_seconds: float, chart: Chart, picker: str = "") -> str:
    """All cards. A reading older than `stale_seconds` is called old on its card."""
    found = gravest_first(status.get("gpus") or ())
    read = {gpu.get("index") for gpu in found if gpu.get("state") == "ok"}
    growing = growing_keys(status)
    cards = [_card(gpu, status, stale_seconds, read, _drawn(gpu, chart, growing)) for gpu in found]
    # A grid of its own for the grave ones, in which all have one size: so they are read in the order that they have.
    large = len(found) if len(found) <= _FEW else sum(map(_is_grave, found))
    body = f'<div class="cards few">{"".join(cards[:large])}</div>' if large else ""
    body += f'<div class="cards">{"".join(cards[large:])}</div>' if cards[large:] else ""
    body = body or "<p>None.</p>"
    return chapter("gpus", "GPUs", body, picker if found else "")


def _drawn(gpu: Document, chart: Chart, growing: frozenset[MemoryKey]) -> str:
    uuid = str(gpu.get("uuid") or "")
    rest = "beside the GPU" if gpu.get("memory_host_bytes") is not None else "held by no process"
    is_read = gpu.get("state") == "ok"
    plot = plot_of(
        chart,
        uuid,
        _usable(gpu),
        growing=growing,
        rest=rest,
        grows=is_read and gpu.get("verdict") in _GROWS,
        full_in_seconds=gpu.get("exhaustion_seconds") if is_read else None,
        is_away=_is_away(gpu),
    )
    return "" if plot is None else memory_chart(plot, f"GPU {gpu.get('index')}")


def _card(gpu: Document, status: Document, stale_seconds: float, read: Collection[object], drawn: str) -> str:
    """Return one card. `read` are the indices of the GPUs that answer: one that does not has lost its index to them."""
    state = str(gpu.get("state") or "unknown")
    former = "formerly " if state != "ok" and gpu.get("index") in read else ""
    severity, grave = _severity(gpu), _is_grave(gpu)
    word = state.upper() if state != "ok" else severity.upper() if grave else ""
    mark = f' <span class="mark">{text(word)}</span>' if word else ""
    name = f' <small title="{attribute(gpu.get("uuid"))}">{text(gpu["name"])}</small>' if gpu.get("name") else ""
    head = f"<h3>{former}GPU {text(gpu.get('index'))}{mark}{name}</h3>"
    if state != "ok":
        lost = gpu.get("lost_seconds")
        body = f"<p>{text(gpu.get('reason') or 'no reason is known')}</p>"
        body += (
            f'<p class="quiet">{f"last read: {_last_read(gpu)}" if lost is None else f"lost for {duration(lost)}"}</p>'
        )
        body += drawn
    else:
        old = (gpu.get("age_seconds") or 0.0) > stale_seconds
        body = f'<p class="old"><b>OLD</b> read {_last_read(gpu)}</p>' if old else ""
        body += f"{_memory(gpu)}{_growth(gpu)}{drawn or _bar(gpu)}{_split(gpu, is_drawn=bool(drawn))}"
        body += f"{_problems(gpu, status)}{_mig(gpu)}"
        body += f"{_facts(gpu)}"
    kind = f"card {severity if grave else ''} {'grave' if grave else ''} {state}"
    uuid = f'<p class="quiet uuid">{text(gpu.get("uuid"))}</p>'
    key = attribute(gpu.get("uuid"))
    return f'<article class="{" ".join(kind.split())}" data-key="{key}">{head}{body}{uuid}</article>'


def _last_read(gpu: Document) -> str:
    age = gpu.get("age_seconds")
    return "never" if age is None else f"{duration(age)} ago"


def _memory(gpu: Document) -> str:
    used, total = gpu.get("memory_used_bytes"), _usable(gpu)
    ratio = used / total if is_number(used) and total else None
    return f'<p class="figure">{size(used)} of {size(total)} · {percent(ratio)}</p>'


def _usable(part: Document) -> float | None:
    """Return the memory that programs can have, as every screen shows it."""
    return usable_bytes({key: part.get(key) for key in _MEMORY_KEYS})


def _split(gpu: Document, *, is_drawn: bool) -> str:
    """Say what no living process holds: of memory that it shares, that is what the machine uses beside it.

    The legend of a chart has all of it but the processes that are dead.
    """
    beside = gpu.get("memory_host_bytes")
    parts = [
        f"dead processes {size(gpu['memory_dead_processes_bytes'])}" if gpu.get("memory_dead_processes_bytes") else "",
        f"beside the GPU {size(beside)}" if beside is not None and not is_drawn else "",
        f"unattributed {size(gpu.get('memory_unattributed_bytes'))}"
        if beside is None and gpu.get("memory_unattributed_bytes") and not is_drawn
        else "",
    ]
    told = " · ".join(filter(None, parts))
    return f'<p class="quiet">{told}</p>' if told else ""


def _bar(gpu: Document) -> str:
    """Render the memory of now, where there is no chart yet."""
    total = _usable(gpu)
    parts = [
        ("used", gpu.get("memory_processes_bytes")),
        ("dead", gpu.get("memory_dead_processes_bytes")),
        ("unknown", gpu.get("memory_host_bytes") or gpu.get("memory_unattributed_bytes")),
    ]
    shares = [(kind, share(part, total)) for kind, part in parts]
    if not any(part for _, part in shares):  # the split is not known: the whole is still worth a bar
        shares = [("used", share(gpu.get("memory_used_bytes"), total))]
    rectangles, start = [], 0.0
    for kind, part in shares:
        width = min(part, 1.0 - start) * 100
        rectangles.append(f'<rect class="{kind}" x="{start * 100:.2f}%" width="{width:.2f}%" height="100%"/>')
        start += width / 100
    label = f"memory used: {percent(gpu.get('memory_used_ratio'))}"
    return f'<svg class="bar" role="img" aria-label="{label}">{"".join(rectangles)}</svg>'


def _growth(gpu: Document) -> str:
    """Describe the growth of the memory as a whole: the verdict, how fast, and when it is full."""
    if gpu.get("verdict") not in _GROWS:
        return ""
    return f'<p class="verdict">{text(assessment_words(gpu))}</p>'


def _problems(gpu: Document, status: Document) -> str:
    """Return what is wrong with this GPU; growth is told by the chart and its words."""
    told = [
        one
        for one in status.get("problems") or ()
        if one.get("gpu") is not None
        and one.get("gpu") == gpu.get("index")
        and one.get("severity") in SEVERITIES[:2]
        and one.get("kind") not in {"leak", "growth", "fast_growth"}
    ]
    prefix = f"GPU {gpu.get('index')}: "
    items = "".join(f"<li>{text(str(one.get('text')).removeprefix(prefix))}</li>" for one in told[:_MOST_PROBLEMS])
    more = f'<li><a href="#problems">{len(told) - _MOST_PROBLEMS} more</a></li>' if told[_MOST_PROBLEMS:] else ""
    return f'<ul class="wrong">{items}{more}</ul>' if items else ""


def _facts(gpu: Document) -> str:
    processes = gpu.get("processes")
    facts = [
        f"busy {percent(gpu.get('utilization_ratio'))}",
        f"{number(gpu.get('temperature_celsius'))} °C",
        f"{number(gpu.get('power_watts'))} of {number(gpu.get('power_limit_watts'))} W",
        f"{UNKNOWN} processes" if processes is None else count(processes, "process"),
    ]
    reasons = gpu.get("throttle_reasons") or ()
    slowed = f'<p class="slowed">Slowed down: {text(", ".join(map(str, reasons)))}</p>' if reasons else ""
    return f'<p class="facts">{text(" · ".join(facts))}</p>{slowed}'


def _mig(gpu: Document) -> str:
    """Render a row for each GPU instance: the memory is its own, and its compute instances share it."""
    found = {mig.get("gpu_instance_id"): mig for mig in gpu.get("mig") or ()}
    items = "".join(_instance(number, mig) for number, mig in found.items())
    return f'<ul class="mig">{items}</ul>' if items else ""


def _instance(number: object, mig: Document) -> str:
    used, free, total = (mig.get(f"memory_{part}_bytes") for part in ("used", "free", "total"))
    profile = str(mig.get("profile") or "").rpartition("c.")[2]  # 1c.3g.40gb is a compute instance in a 3g.40gb
    usable = _usable(mig)
    ratio = share(used, usable) if is_number(used) and usable else None
    taken = 1 - share(free, total) if is_number(free) and total else ratio
    kind = ""
    if taken is not None and taken > HIGH_RATIO and not mig.get("memory_preallocated"):
        kind = ' class="critical"' if taken > FULL_RATIO else ' class="warning"'
    bar = ""
    if ratio is not None:
        bar = f'<svg class="bar" aria-hidden="true"><rect class="used" width="{100 * ratio:.2f}%" height="100%"/></svg>'
    figures = f"{size(used)} of {size(usable)} · {percent(ratio)}"
    return f"<li{kind}>MIG {text(number)} {text(profile)}: <b>{figures}</b>{bar}{_growth(mig)}</li>"
