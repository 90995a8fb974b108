"""The upper half of the screen as lines: what the node is, what is wrong, and each GPU with its memory by process."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.text import Text

from gpuagent.cli.cells import Paint, clean, cut, fit, gib_cell, percent_cell, rounded_cell, wrap
from gpuagent.cli.status import fill_style, gpu_count_words, no_figures_words, peaks, read_words, unusual_words
from gpuagent.core.units import format_duration, format_ratio
from gpuagent.core.wording import assessment_words, forecast_words, pace_words, usable_bytes
from gpuagent.top.look import BAR_MARKS, SEVERITY_STYLES, TEXT_STYLES, ProcessColors

Document = dict[str, Any]

_GRAVE = ("critical", "warning")
_LABEL = 6  # "GPU 0 "
_INSTANCE = 18  # "   MIG 9  1g.10gb"
_MEMORY = 22  # " 141.0/143.8 GiB 100 %"
_WORD = 9
_MOST_POINTS = 120
_MOST_CRITICAL = 10
"""Critical problems that all have a line, whatever room that takes."""


class VitalsHistory:
    """The last readings of utilization, power and temperature of each GPU, as far as this screen has seen them."""

    def __init__(self) -> None:
        self._points: dict[str, dict[str, deque[float | None]]] = {}

    def add(self, gpus: Sequence[Document]) -> None:
        """Keep one reading; GPUs that are gone are forgotten."""
        self._points = {gpu["uuid"]: self._points.get(gpu["uuid"], {}) for gpu in gpus}
        for gpu in gpus:
            for key in ("utilization_ratio", "power_watts", "temperature_celsius"):
                points = self._points[gpu["uuid"]].setdefault(key, deque(maxlen=_MOST_POINTS))
                points.append(gpu[key] if gpu["state"] == "ok" else None)

    def of(self, gpu: Document, key: str) -> list[float | None]:
        """Return the points, oldest first."""
        return list(self._points.get(gpu["uuid"], {}).get(key, ()))


def head_line(status: Document, width: int, hostname: str, right: str, right_style: str) -> Text:
    """Return one line: whose figures these are, and how old."""
    agent = status["agent"]
    simulated = f" SIMULATED: {cut(agent['simulated'], width // 3)} " if agent["simulated"] else ""
    left = cut(hostname, width // 4)
    for part in (
        "no agent" if status["source"] == "direct" else f"gpuagent {agent['version']}",
        gpu_count_words(status["node"]),
        f"driver {status['node']['driver_version'] or '-'}",
    ):
        longer = f"{left}  {part}" if left else part
        left = longer if cell_len(clean(longer)) <= width - cell_len(simulated + right) - 3 else left
    line = Text(end="", no_wrap=True)
    line.append(simulated, SEVERITY_STYLES["simulated"])
    line.append(fit(f" {left}", max(0, width - cell_len(simulated) - cell_len(right) - 1)), "bold")
    line.append(cut(right, max(0, width - cell_len(simulated))), right_style)
    return line


def age_words(status: Document) -> str:
    """Return how old the newest measurement was when the document came."""
    return f"{'STALE: ' if status['stale'] else ''}{read_words(status['age_seconds'])}"


def open_incidents(alerts: Document | None, problems: Sequence[Document]) -> list[Document]:
    """Return the incidents that no problem tells of already."""
    pids = {problem["pid"] for problem in problems if problem["pid"] is not None}
    gpus = {problem["gpu"] for problem in problems if problem["gpu"] is not None}
    found = []
    for incident in (alerts or {}).get("incidents", ()):
        labels = incident["labels"]
        told = int(labels["pid"]) in pids if _is_number(labels.get("pid")) else False
        told = told or (_is_number(labels.get("gpu")) and int(labels["gpu"]) in gpus)
        if incident["ends_at_seconds"] is None and incident["severity"] in {*_GRAVE, "info"} and not told:
            found.append(incident)
    return found


def _is_number(text: object) -> bool:
    return isinstance(text, str) and text.isascii() and text.isdigit()


def problem_lines(
    status: Document, alerts: Document | None, width: int, most: int, *, outdated: bool = False, evidence: bool = False
) -> list[Text]:
    """Return at most `most` lines, the gravest problem first, and all that is critical, however many lines that takes.

    Each has one line at least, then its advice, then the rest of its text. Where more are hidden, the last line says
    how many. `outdated`: the agent does not answer, so that nothing is known of the present; `evidence`: with that
    of each leak.
    """
    found = [
        (str(one["severity"]), str(one["text"]) if evidence else brief_text(one, status), str(one["advice"] or ""))
        for one in status["problems"]
    ]
    for incident in open_incidents(alerts, status["problems"]):
        severity = str(incident["severity"])
        headline = str(incident.get("headline") or incident["kind"]).removeprefix(f"{severity.upper()} ")
        if incident.get("ending"):  # nothing of it is true any more: no trouble, as in the status document
            severity, headline = "info", f"ending: {headline}"
        found.append((severity, f"{headline} ({incident['key']})", ""))
    if not found:
        if outdated:
            return [Text(cut(" problems not known", width), SEVERITY_STYLES["warning"], end="", no_wrap=True)]
        return [Text(cut(" no problem found", width), SEVERITY_STYLES["ok"], end="", no_wrap=True)]
    ranks = {severity: rank for rank, severity in enumerate(("critical", "warning", "info"))}
    found.sort(key=lambda one: ranks.get(one[0], len(ranks)))
    critical = min(sum(one[0] == "critical" for one in found), _MOST_CRITICAL)
    most = max(most, critical + (critical < len(found)))
    shown = found if len(found) <= most else found[: max(1, most - 1)]
    hidden = len(found) - len(shown)
    room = max(10, width - _WORD - 2)
    parts = [([cut(brief, room)], wrap(f"-> {advice}", room) if advice else []) for _, brief, advice in shown]
    spare = most - len(shown) - (hidden > 0)
    texts = [first for first, _ in parts]
    advice_lines: list[list[str]] = [[] for _ in parts]
    for number, (_, advice) in enumerate(parts):
        if 0 < len(advice) <= spare:
            advice_lines[number] = advice
            spare -= len(advice)
    for number, (_, brief, _) in enumerate(shown):
        whole = wrap(brief, room)
        if len(whole) - 1 <= spare:
            texts[number] = whole
            spare -= len(whole) - 1
    lines = [
        line
        for (severity, *_), text, advice in zip(shown, texts, advice_lines, strict=True)
        for line in _problem(severity, text, advice)
    ]
    if hidden:
        lines.append(Text(cut(f" +{hidden} more problems: p shows them all", width), "dim", end="", no_wrap=True))
    return lines


def brief_text(problem: Document, status: Document) -> str:
    """Return a problem in a sentence: of a leak, when the memory is full, then who takes it; evidence is in details."""
    text = str(problem["text"])
    process = next(
        (one for one in status["processes"] if (one["gpu"], one["pid"]) == (problem["gpu"], problem["pid"])), None
    )
    if problem["kind"] != "leak" or process is None or process.get("verdict") != "leaking":
        return text
    who = f"{process['process'] or '?'} ({', '.join(filter(None, (process['user'], str(process['pid']))))})"
    forecast = f" {forecast_words(process)}" if forecast_words(process) else ""
    pace = f" {pace_words(process)}" if pace_words(process) else " memory"
    return f"GPU {problem['gpu']}{forecast}: {who} leaks{pace}"


def _problem(severity: str, text: Sequence[str], advice: Sequence[str]) -> Iterator[Text]:
    """Yield the lines of a problem and of its advice."""
    style = SEVERITY_STYLES.get(severity, "")
    shown = [(piece, "bold" if severity in _GRAVE else "") for piece in text] + [(piece, "dim") for piece in advice]
    for number, (piece, look) in enumerate(shown):
        line = Text(" ", end="", no_wrap=True)
        line.append(fit(f" {severity.upper()}" if not number else "", _WORD), style if not number else "")
        line.append(f" {piece}", look)
        yield line


def gpu_block(
    gpu: Document,
    processes: Sequence[Document],
    width: int,
    colors: ProcessColors,
    vitals: VitalsHistory,
    *,
    rows: int,
    stale: bool = False,
) -> list[Text]:
    """Return one GPU in `rows` lines, and a line for each MIG instance. From three on there are charts below."""
    if gpu["state"] != "ok" or stale:
        return [_no_figures(gpu, width, stale=stale)]
    severity = str(gpu.get("severity"))
    word = severity.upper() if severity in _GRAVE else ""
    line = Text(end="", no_wrap=True)
    line.append(fit(f" GPU {gpu['index']}", _LABEL), f"bold {SEVERITY_STYLES[severity]}" if word else "bold")
    tail = Text(end="", no_wrap=True)
    if rows == 1:
        tail.append_text(_vitals_short(gpu, width))
    curve = 0 if rows > 2 else min(40, max(0, (width - 80) // 3)) if rows > 1 else max(0, min(24, (width - 112) // 2))
    if curve >= 8 and gpu["memory_used_history_bytes"]:
        tail.append("  ")
        tail.append_text(_curve(peaks(gpu["memory_used_history_bytes"], curve), usable_bytes(gpu), curve))
        tail.append(f" {_span(gpu)}", "dim")
    if width >= 72:
        tail.append("  ").append(f"{f' {word} ' if word else '':<10}", SEVERITY_STYLES[severity] if word else "")
    bar = width - cell_len(line.plain) - _MEMORY - cell_len(tail.plain) - 2
    line.append(" ")
    line.append_text(stacked_bar(gpu, processes, bar, colors))
    line.append_text(_memory_figures(gpu))
    line.append_text(tail)
    lines = [line, *_instances(gpu, processes, bar, colors)]
    if rows > 1:
        lines.insert(1, _second_line(gpu, width, vitals))
    if rows > 2:
        lines += _charts(gpu, width, rows - 2, vitals)
    return [_clipped(each, width) for each in lines]


def _clipped(line: Text, width: int) -> Text:
    if cell_len(line.plain) > width:
        line.truncate(width, overflow="ellipsis")
    return line


def _no_figures(gpu: Document, width: int, *, stale: bool) -> Text:
    state = "STALE" if stale and gpu["state"] == "ok" else str(gpu["state"]).upper()
    style = "dim" if state in {"ASLEEP", "STALE"} else SEVERITY_STYLES["critical"]
    line = Text(end="", no_wrap=True)
    line.append(fit(f" GPU {gpu['index']}", _LABEL), "bold").append(" ")
    line.append(f" {state} ", style)
    line.append(cut(f" {no_figures_words(gpu)}", max(0, width - cell_len(line.plain))))
    return line


def stacked_bar(gpu: Document, processes: Sequence[Document], width: int, colors: ProcessColors) -> Text:
    """Return the memory of a GPU as a bar: a piece for each process, the largest first, then the rest, then free."""
    bar = Text(end="", no_wrap=True)
    total, used = usable_bytes(gpu), gpu["memory_used_bytes"]
    if width < 3:
        return bar
    if not total or used is None:
        return bar.append(" " * width)
    held = sorted((one for one in processes if one["memory_used_bytes"]), key=lambda one: -one["memory_used_bytes"])
    pieces = [
        (colors.style_of(one), colors.mark_of(number), one["memory_used_bytes"]) for number, one in enumerate(held)
    ]
    known = sum(size for _, _, size in pieces)
    if gpu.get("memory_host_bytes"):
        pieces.append((colors.rest, BAR_MARKS.host, gpu["memory_host_bytes"]))
        known += gpu["memory_host_bytes"]
    if used > known:
        pieces.append((colors.rest, BAR_MARKS.rest, used - known))
    begin, position = 0, 0.0
    for style, mark, size in pieces:
        position += size / total * width
        end = min(width, round(position))
        bar.append(mark * max(0, end - begin), style)
        begin = max(begin, end)
    return bar.append(BAR_MARKS.free * (width - begin), colors.free)


def _memory_figures(part: Document) -> Text:
    """Return the figures of a GPU or of a MIG instance, red where it is full."""
    used, total = part["memory_used_bytes"], usable_bytes(part)
    percent = "" if used is None or not total else format_ratio(used / total)
    text = f"{gib_cell(used)}/{gib_cell(total)} GiB {percent:>5}"
    style = SEVERITY_STYLES["critical"] if fill_style(part) == "critical" else "bold"
    return Text(" " * (_MEMORY - len(text)), end="", no_wrap=True).append(text, style)


def _vitals_short(gpu: Document, width: int) -> Text:
    line = Text(end="", no_wrap=True)
    line.append(f"  {percent_cell(gpu['utilization_ratio']):>5}")
    if width >= 72:
        line.append(" busy", "dim")
    line.append(f" {rounded_cell(gpu['temperature_celsius']):>3} C")
    if width >= 72:
        line.append(f" {rounded_cell(gpu['power_watts']):>4}")
        line.append(f"/{rounded_cell(gpu['power_limit_watts'])} W" if width >= 100 else " W")
    return line


def _second_line(gpu: Document, width: int, vitals: VitalsHistory) -> Text:
    """Return the curves of utilization, power and temperature, and what is unusual."""
    line = Text(" " * (_LABEL + 1), end="", no_wrap=True)
    curve = 8 if width < 100 else 14 if width < 150 else 24
    limit = gpu["power_limit_watts"]
    parts = (
        ("busy", "utilization_ratio", 1.0, f"{percent_cell(gpu['utilization_ratio']):>5}"),
        ("power", "power_watts", limit or 1000.0, f"{rounded_cell(gpu['power_watts'])}/{rounded_cell(limit)} W"),
        ("temp", "temperature_celsius", 100.0, f"{rounded_cell(gpu['temperature_celsius'])} C"),
    )
    for name, key, highest, text in parts:
        if width < 80 and name != "busy":
            line.append(f"{text}  ")
            continue
        line.append(f"{name} ", "dim")
        line.append_text(_curve(vitals.of(gpu, key)[-curve:], highest, curve))
        line.append(f" {text}   " if width >= 100 else f" {text}  ")
    said = unusual_words(gpu) or ("" if width < 100 else str(gpu["name"] or ""))
    room = width - cell_len(line.plain)
    if room > 8:
        is_cause = gpu.get("verdict") in {"leaking", "growing"} and said == assessment_words(gpu)
        line.append(cut(said, room), TEXT_STYLES.get(str(gpu.get("severity")), "dim") if is_cause else "dim")
    return line


def _curve(points: Sequence[float | None], highest: float | None, width: int) -> Text:
    """Return a sparkline; a gap where there was no reading."""
    drawn = Paint().sparkline(points, highest or 1.0, width)
    missing = max(0, width - len(points))
    line = Text(end="", no_wrap=True)
    return line.append(BAR_MARKS.free * missing, ProcessColors.free).append(drawn[missing:], BAR_MARKS.curve_style)


def _charts(gpu: Document, width: int, rows: int, vitals: VitalsHistory) -> Iterator[Text]:
    """Yield the history of memory, and beside it that of utilization, as areas `rows` lines high."""
    indent = _LABEL + 1
    half = (width - indent - 4) // 2 - 11
    history = _stretched(peaks(gpu["memory_used_history_bytes"], half), half)
    memory = _area(history, usable_bytes(gpu) or 1.0, half, rows)
    busy = _area(vitals.of(gpu, "utilization_ratio")[-half:], 1.0, half, rows)
    labels = (f"{gib_cell(usable_bytes(gpu))} GiB", "100 %")
    spans = (_span(gpu) if gpu["memory_used_history_bytes"] else "", "busy")
    for row in range(rows):
        line = Text(" " * indent, end="", no_wrap=True)
        drawn = (
            (memory, labels[0], spans[0], BAR_MARKS.curve_style),
            (busy, labels[1], spans[1], BAR_MARKS.curve_style),
        )
        for area, label, span, style in drawn:
            text = label if not row else span if row == rows - 1 else ""
            line.append(f"{text[:9]:>9} ", "dim").append("▏", "dim")
            line.append(area[row], style).append("  ")
        yield line


def _stretched(points: Sequence[float | None], width: int) -> Sequence[float | None]:
    """Return a point for each of `width` cells: the span that is written below is that of all of them.

    >>> _stretched([1.0, 2.0], 4)
    [1.0, 1.0, 2.0, 2.0]
    """
    return [points[cell * len(points) // width] for cell in range(width)] if points else points


def _area(points: Sequence[float | None], highest: float, width: int, rows: int) -> list[str]:
    """Return the points as columns of eighths, the newest on the right, from the top line to the bottom one.

    >>> _area([0.5, None, 1.0], 1.0, 4, 2)
    ['   █', ' █ █']
    """
    eighths = [
        None if point is None else round(min(1.0, max(0.0, point / highest)) * rows * 8) for point in points[-width:]
    ]
    lines = []
    for row in range(rows):
        below = (rows - 1 - row) * 8
        cells = (" " if value is None else " ▁▂▃▄▅▆▇█"[max(0, min(8, value - below))] for value in eighths)
        lines.append("".join(cells).rjust(width))
    return lines


def _span(gpu: Document) -> str:
    seconds = len(gpu["memory_used_history_bytes"]) * gpu["history_interval_seconds"]
    return format_duration(seconds if seconds < 60 else round(seconds / 60) * 60)


def _instances(gpu: Document, processes: Sequence[Document], bar: int, colors: ProcessColors) -> Iterator[Text]:
    """Yield a line for each MIG instance, in the columns of its GPU and the colors of its processes."""
    shown: Mapping[int, Document] = {one["gpu_instance_id"]: one for one in gpu["mig"]}
    for number, instance in shown.items():
        profile = str(instance["profile"]).rpartition("c.")[2]
        head = fit(f"   MIG {number:<2} {profile}", _INSTANCE)
        line = Text(head, end="", no_wrap=True).append(" ")
        within = [one for one in processes if one.get("gpu_instance_id") == number]
        line.append_text(stacked_bar(instance, within, max(0, bar - (_INSTANCE - _LABEL)), colors))
        missing = max(0, _LABEL + 1 + bar - cell_len(line.plain))
        yield line.append(" " * missing).append_text(_memory_figures(instance))
