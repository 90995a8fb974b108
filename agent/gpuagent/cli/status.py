"""`gpuagent status`: the node on one screen."""

from __future__ import annotations

import json
import os
import select
import shutil
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Annotated, Any, TextIO

import typer
from rich.cells import cell_len

from gpuagent.cli.agent import EXIT_NO_DATA, Direct, NoData, Socket, Source, Url, get_document, tell
from gpuagent.cli.cells import (
    UNCUT_WIDTH,
    Paint,
    clean,
    cut,
    fit,
    gib_cell,
    percent_cell,
    rounded_cell,
    width_of,
    wrap,
)
from gpuagent.cli.ps import WORTH_A_WORD_BYTES, process_table
from gpuagent.core.hardware import FULL_RATIO, HIGH_RATIO
from gpuagent.core.units import format_duration, format_ratio
from gpuagent.core.wording import assessment_words, unmeasured_words, usable_bytes

_CLEAR = "\x1b[H\x1b[J"
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_LEAST_SECONDS = 0.5


def status(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the status document as JSON, with units in the key names")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Redraw at each reading, until q or Ctrl-C")] = False,
    ascii_only: Annotated[bool, typer.Option("--ascii", help="Print ASCII characters only")] = False,
    socket: Socket = None,
    url: Url = None,
    direct: Direct = False,
) -> None:
    """Show this node: problems first, then each GPU, then who holds the memory.

    Exit status: 0 shown, 3 neither the agent nor the driver answers. Problems of the GPUs do not change it: use
    `gpuagent check` for that.
    """
    source = Source(socket, url, direct)
    if watch and not as_json:
        draw_again(source, sys.stdout, ascii_only=ascii_only)
        return
    try:
        document = get_document(source)
    except NoData as error:
        tell(str(error))
        raise typer.Exit(EXIT_NO_DATA) from None
    if as_json:
        typer.echo(json.dumps(document, indent=1))
    else:
        paint = Paint.for_stream(sys.stdout, ascii_only=ascii_only)
        whole = not sys.stdout.isatty()
        typer.echo("\n".join(status_screen(document, width_of(sys.stdout), paint, source.hostname, whole=whole)))


def draw_again(
    source: Source, stream: TextIO, *, ascii_only: bool = False, wait: Callable[[float], bool | None] | None = None
) -> None:
    """Screen after screen until `q` or Ctrl-C: on the alternate screen, so that the terminal is left as it was.

    When the data ends, that is drawn, never the last figures. `wait` is between two screens, and returns True to end.
    """
    with keys_at_once(sys.stdin) as reads_keys:
        pause = wait or (_wait_for_q if reads_keys else time.sleep)
        _draw_again(source, stream, pause, ascii_only=ascii_only)


@contextmanager
def keys_at_once(stream: TextIO) -> Iterator[bool]:
    """Have a terminal hand over each key as it is pressed, and not show it; yield whether this is one."""
    try:
        descriptor = stream.fileno()
        before = termios.tcgetattr(descriptor)
    except (OSError, ValueError, termios.error):  # no terminal
        yield False
        return
    try:
        tty.setcbreak(descriptor)
        yield True
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _wait_for_q(seconds: float) -> bool:
    """Wait, and return whether `q` was pressed meanwhile."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if not select.select([sys.stdin], [], [], left)[0]:
            break
        key = os.read(sys.stdin.fileno(), 1)
        if key in {b"q", b"Q"}:
            return True
        if not key:  # the terminal is gone
            return True
    return False


def _draw_again(source: Source, stream: TextIO, wait: Callable[[float], bool | None], *, ascii_only: bool) -> None:
    paint = Paint.for_stream(stream, ascii_only=ascii_only)
    terminal = stream.isatty()
    stream.write(_ENTER if terminal else "")
    try:
        while True:
            lines, seconds = _screen(source, paint, width_of(stream))
            if terminal:
                lines = lines[: shutil.get_terminal_size().lines - 1]
            stream.write((_CLEAR if terminal else "") + "\n".join(lines) + "\n")
            stream.flush()
            if wait(max(seconds, _LEAST_SECONDS)):
                break
    except KeyboardInterrupt:
        pass
    finally:
        stream.write(_LEAVE if terminal else "")
        stream.flush()


def _screen(source: Source, paint: Paint, width: int) -> tuple[list[str], float]:
    """Return what to draw, and for how long."""
    notes: list[str] = []
    try:
        document = get_document(source, note=notes.append)
    except NoData as error:
        return [paint.text(line) for line in wrap(f"no data: {error}", width)], 1.0
    lines = [paint.text(line) for note in notes for line in wrap(note, width)]
    lines += status_screen(document, width, paint, source.hostname)
    return lines, document["agent"]["poll_interval_seconds"] or 1.0


_NARROWEST, _NARROW, _WIDEST = 48, 80, 160
"""Cells: the fewest that are used, those below which lines are laid out anew, the most that are used."""
_PER_GPU = 4
_MOST_PROCESSES = 24
_MOST_PROBLEMS = 12
_SEVERITY_WIDTH = 9

Document = dict[str, Any]


def status_screen(
    document: Document, width: int, paint: Paint, hostname: str = "", *, whole: bool = False
) -> list[str]:
    """Return lines of at most `width` cells (48 to 160 are used).

    `whole`: for a file or a pipe. All problems and processes are listed, and no line is cut.
    """
    width = max(_NARROWEST, min(width, _WIDEST))
    # Whoever searches a file for words wants a sentence in one line.
    problems = _problems(document["problems"], UNCUT_WIDTH if whole else width, paint, whole=whole)
    lines = [_head(document, width, paint, hostname), "", *problems, ""]
    history = any(gpu["memory_used_history_bytes"] for gpu in document["gpus"])
    read = {gpu["index"] for gpu in document["gpus"] if gpu["state"] == "ok"}
    for gpu in document["gpus"]:
        has_lost_index = gpu["state"] != "ok" and gpu["index"] in read
        lines += gpu_lines(
            gpu,
            width,
            paint,
            history=history,
            stale=document["stale"],
            prefix="formerly " * has_lost_index,
            whole=whole,
        )
    lines += _processes(document, width, paint, whole=whole)
    return [paint.text(line.rstrip()) for line in lines]


def _head(document: Document, width: int, paint: Paint, hostname: str) -> str:
    """One line: whether this is real, whose it is, and how old. What has no room any more is left out whole."""
    agent, stale = document["agent"], document["stale"]
    right = f"  {'STALE: ' if stale else ''}{read_words(document['age_seconds'])}"
    room = min(width // 2, width - cell_len(right) - 2)
    simulated = f"{cut('SIMULATED: ' + str(agent['simulated']), room)}  " if agent["simulated"] else ""
    left = cut(hostname, width // 4)
    for part in (
        "no agent" if document["source"] == "direct" else f"gpuagent {agent['version']}",
        gpu_count_words(document["node"]),
        f"driver {document['node']['driver_version'] or '-'}",
    ):
        longer = f"{left}  {part}" if left else part
        left = longer if cell_len(clean(longer)) <= width - cell_len(simulated + right) else left
    left = fit(left, width - cell_len(simulated + right))
    return paint(simulated, "warning") + left + paint(right, "critical" if stale else "dim")


def read_words(age: float | None) -> str:
    """Return how old a reading is; `age` in seconds."""
    if age is None:
        return "nothing read yet"
    return f"read {age:.1f} s ago" if age < 9.95 else f"read {format_duration(age)} ago"


def gpu_count_words(node: Document) -> str:
    """Return how many GPUs the node has, of how many that it should have."""
    number, expected = node["gpus"], node["gpus_expected"]
    if number is None:
        return "GPUs unknown"
    if expected and number < expected:
        return f"{number} of {expected} GPUs"
    return f"{number} GPU{'' if number == 1 else 's'}"


def _problems(problems: list[Document], width: int, paint: Paint, *, whole: bool) -> list[str]:
    if not problems:
        return [paint("no problem found", "ok")]
    lines = []
    indent = " " * _SEVERITY_WIDTH
    most = len(problems) if whole else _MOST_PROBLEMS
    for problem in problems[:most]:
        severity = str(problem["severity"])
        text = wrap(problem["text"], width - _SEVERITY_WIDTH)
        advice = wrap(problem["advice"], width - _SEVERITY_WIDTH - 3) if problem["advice"] else []
        lines.append(paint(fit(severity.upper(), _SEVERITY_WIDTH), severity) + text[0])
        lines += [indent + more for more in text[1:]]
        lines += [paint(f"{indent}{'   ' if row else '-> '}{more}", "dim") for row, more in enumerate(advice)]
    if len(problems) > most:
        lines.append(f"+{len(problems) - most} more problems: gpuagent status --json")
    return lines


def _processes(document: Document, width: int, paint: Paint, *, whole: bool) -> list[str]:
    """Return the largest of each GPU, and how many there are beside them."""
    by_gpu: dict[int, list[Document]] = {}
    for process in document["processes"]:
        by_gpu.setdefault(process["gpu"], []).append(process)
    per_gpu = max(1, min(_PER_GPU, _MOST_PROCESSES // max(1, len(by_gpu))))
    if whole:
        width, per_gpu = UNCUT_WIDTH, len(document["processes"])
    shown = [process for group in by_gpu.values() for process in group[:per_gpu]]
    last_known = _last_known(document.get("last_known"), shown, width, paint, whole=whole)
    if not shown:
        return last_known
    lines = [""]
    if document["stale"]:
        lines += wrap(f"The processes as they were {format_duration(document['age_seconds'])} ago:", width)
    lines += process_table(shown, width, paint, beside=(document.get("last_known") or {}).get("processes", ()))
    hidden = len(document["processes"]) - len(shown)
    if hidden:
        lines.append(paint(f"+{hidden} more: gpuagent ps", "dim"))
    return [*lines, *last_known]


def _last_known(known: Document | None, beside: list[Document], width: int, paint: Paint, *, whole: bool) -> list[str]:
    """Return the processes of GPUs that are not measured now, with that mark, in the columns of those `beside`."""
    if known is None or not known["processes"]:
        return []
    most = len(known["processes"]) if whole else _MOST_PROCESSES
    # The sentence above says when it was: no column for that.
    earlier = [dict(one, sm_utilization_ratio=None) for one in known["processes"][:most]]
    head, *rows = process_table(earlier, width, paint, beside=beside)
    table = [head, *(paint(row, "dim") for row in rows)]
    hidden = len(known["processes"]) - most
    more = [paint(f"+{hidden} more: gpuagent ps", "dim")] if hidden > 0 else []
    return ["", cut(unmeasured_words(known), UNCUT_WIDTH if whole else width), *table, *more]


_GRAVE = frozenset({"critical", "warning"})
_INDENT = "  "
_FIGURES_WIDTH = 22  # " 141.0/143.8 GiB 100 %"
_LABEL_WIDTH = 6  # "10 min"
_MOST_POINTS = 30


def gpu_lines(
    gpu: Document,
    width: int,
    paint: Paint,
    *,
    history: bool = False,
    stale: bool = False,
    prefix: str = "",
    whole: bool = False,
) -> list[str]:
    """Return lines of at most `width` cells. Figures are drawn only while they are the GPU's present ones.

    Below 80 cells utilization, temperature and power have a line of their own. `whole`: words are not cut.

    `history` keeps room for the sparkline, on every GPU if one has it, so that the bars stay comparable.
    """
    state = str(gpu["state"])
    readable = state == "ok" and not stale
    words = fit(_word(gpu) if readable else "STALE" if state == "ok" else state.upper(), 8, right=True)
    vitals = _vitals(gpu) if readable else ""
    narrow = width < _NARROW
    right = "  " if narrow else f"{vitals}  "
    name = fit(
        f"{prefix}GPU {gpu['index']}  {gpu['name'] or gpu['uuid'] or 'unknown'}", width - len(right) - len(words)
    )
    style = _style(gpu) if readable else "dim" if state == "asleep" else "critical"
    lines = [paint(name, "bold") + right + paint(words, style)]
    edge = UNCUT_WIDTH if whole else width
    if not readable:
        return [*lines, cut(_INDENT + no_figures_words(gpu), edge)]
    if narrow:
        lines.append(cut(vitals, width))
        history = False
    room = width - (_spark_width(width) + _LABEL_WIDTH + 3 if history else 0)
    lines += [_memory(gpu, width, room, paint), *_instances(gpu["mig"], room, paint)]
    unusual = unusual_words(gpu)
    return [*lines, cut(_INDENT + unusual, edge)] if unusual else lines


def _word(gpu: Document) -> str:
    """`ok`, or how grave its gravest problem is."""
    return str(gpu["severity"]).upper() if gpu.get("severity") in _GRAVE else "ok"


def _style(gpu: Document) -> str:
    return str(gpu["severity"]) if gpu.get("severity") in _GRAVE else "ok"


def no_figures_words(gpu: Document) -> str:
    """Return why the figures of a GPU are not there, and since when."""
    age, lost = gpu["age_seconds"], gpu.get("lost_seconds")
    since = "never read" if age is None else f"last read {format_duration(age)} ago"
    if lost is not None:
        since = f"lost for {format_duration(lost)}"
    return f"no figures, {since}: {gpu['reason']}" if gpu["reason"] else f"no figures, {since}"


def _vitals(gpu: Document) -> str:
    return (
        f"  busy {fit(percent_cell(gpu['utilization_ratio']), 5, right=True)}"
        f"  {fit(rounded_cell(gpu['temperature_celsius']), 3, right=True)} C"
        f"  {fit(rounded_cell(gpu['power_watts']) + '/' + rounded_cell(gpu['power_limit_watts']), 9, right=True)} W"
    )


def _memory(gpu: Document, width: int, room: int, paint: Paint) -> str:
    """Return the bar with its figures in `room`, and the sparkline in what is left of `width`."""
    used, total, ratio = gpu["memory_used_bytes"], usable_bytes(gpu), gpu["memory_used_ratio"]
    if ratio is None or not total:
        return f"{_INDENT}memory {gib_cell(used)}/{gib_cell(total)} GiB"
    line = _bar(_INDENT, used, total, room, paint, fill_style(gpu) or "ok")
    return line + paint(_spark(gpu, total, _spark_width(width), paint), "dim") if room < width else line


def fill_style(part: Document) -> str:
    """Return `critical` for the memory of a GPU, or MIG instance, that is full, `warning` for what is high, else ""."""
    free, used, total = part["memory_free_bytes"], part["memory_used_bytes"], part["memory_total_bytes"]
    if not total or used is None:
        return ""
    taken = used / total if free is None else 1 - free / total
    if taken > FULL_RATIO:
        return "critical"
    return "warning" if taken > HIGH_RATIO and not part.get("memory_preallocated") else ""


def _instances(mig: Sequence[Document], room: int, paint: Paint) -> Iterator[str]:
    """Yield a line for each GPU instance: the memory is its own, and its compute instances share it."""
    for number, instance in {instance["gpu_instance_id"]: instance for instance in mig}.items():
        profile = str(instance["profile"]).rpartition("c.")[2]  # 1c.3g.40gb is a compute instance in a 3g.40gb
        head = f"{_INDENT}MIG {number:<2} {fit(profile, 10)} "
        used, total = instance["memory_used_bytes"], usable_bytes(instance)
        known = used is not None and total
        style = fill_style(instance) or "ok"
        yield (
            _bar(head, used, total, room, paint, style)
            if known and total
            else f"{head}{gib_cell(used)}/{gib_cell(total)} GiB"
        )


def _bar(head: str, used: float, total: float, room: int, paint: Paint, style: str = "") -> str:
    figures = f"{gib_cell(used)}/{gib_cell(total)} GiB {format_ratio(used / total):>5}".rjust(_FIGURES_WIDTH)
    return head + paint(paint.bar(used / total, room - cell_len(head) - len(figures)), style) + figures


def _spark_width(width: int) -> int:
    return min(_MOST_POINTS, width // 6)


def _spark(gpu: Document, total: float, width: int, paint: Paint) -> str:
    """Return the used memory of the last minutes against the total, and how long that was."""
    points = gpu["memory_used_history_bytes"]
    if not points:
        return ""
    seconds = len(points) * gpu["history_interval_seconds"]
    label = format_duration(seconds if seconds < 60 else round(seconds / 60) * 60)
    return f"  {paint.sparkline(peaks(points, width), total, width)} {label[:_LABEL_WIDTH]}"


def peaks(points: Sequence[float | None], most: int) -> list[float | None]:
    """Return the same history in at most `most` points: a peak is what runs into the wall, so the highest is kept.

    >>> peaks([1, 5, None, None, 2, 3], 3), peaks([1, None], 3)
    ([5, None, 3], [1, None])
    """
    if len(points) <= most:
        return list(points)
    edges = [len(points) * edge // most for edge in range(most + 1)]
    parts = ([point for point in points[start:end] if point is not None] for start, end in pairwise(edges))
    return [max(part, default=None) for part in parts]


def unusual_words(gpu: Document) -> str:
    """Return what is worth a word about a GPU; "" where all is as usual."""
    parts = []
    if gpu["memory_dead_processes_bytes"]:
        parts.append(f"dead processes {gib_cell(gpu['memory_dead_processes_bytes'])} GiB")
    if (gpu["memory_unattributed_bytes"] or 0) >= WORTH_A_WORD_BYTES:
        parts.append(f"unattributed {gib_cell(gpu['memory_unattributed_bytes'])} GiB")
    if gpu["memory_host_bytes"] is not None:
        parts.append(f"shared with the CPU: {gib_cell(gpu['memory_host_bytes'])} GiB used beside the GPU")
    parts += _growth(gpu, "")
    for number, instance in {instance["gpu_instance_id"]: instance for instance in gpu["mig"]}.items():
        parts += _growth(instance, f"MIG {number} ")
    if gpu["throttle_reasons"]:
        parts.append("held back by " + ", ".join(str(reason).replace("_", " ") for reason in gpu["throttle_reasons"]))
    return "  ".join(parts)


def _growth(part: Document, whose: str) -> Iterator[str]:
    """Yield what is said of memory as a whole, where it grows."""
    if part.get("verdict") in {"growing", "leaking"}:
        yield whose + assessment_words(part)
