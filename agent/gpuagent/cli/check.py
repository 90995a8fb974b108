"""`gpuagent check`: a line, details where it is not enough, and an exit status for Nagios, Icinga and the like.

https://nagios-plugins.org/doc/guidelines.html
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand

from gpuagent.cli.agent import Direct, NoData, Socket, Source, Url, get_document
from gpuagent.cli.cells import clean, cut
from gpuagent.core.hardware import FULL_RATIO
from gpuagent.core.units import format_bytes, format_duration, format_ratio
from gpuagent.core.wording import usable_bytes

OK, WARNING, CRITICAL, UNKNOWN = 0, 1, 2, 3
_NAMES = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
_LEVELS = {"critical": CRITICAL, "warning": WARNING}
_LINE, _LABEL = 120, 40
"""Characters of a first line beside the status, and of an alert in it."""
_UNREAD = frozenset({"gpu_lost", "gpu_blind", "gpu_gone", "gpu_failed", "gpu_missing", "nvml_failed"})
"""Problems of GPUs that are not there to work with: they come before what has little room."""
_LABELS = {"gpu_lost": "lost", "gpu_blind": "not responding", "gpu_gone": "gone", "gpu_failed": "cannot be read"}
_JUDGED_HERE = frozenset({"memory_full", "stale"})
"""Problems that the agent judges by its own limits; this command has the caller's."""


class _Wall(NamedTuple):
    """Memory that somebody may run into."""

    name: str
    label: str
    used_bytes: int
    total_bytes: int
    taken_bytes: int
    """What is not free: used, and reserved by the driver."""
    usable_bytes: int
    """What is not reserved by the driver."""
    is_intended: bool
    """Servers that preallocate have taken it: above `--warning` is then its normal state."""


class CheckCommand(TyperCommand):
    """A wrong option is UNKNOWN: the usual exit status 2 would page somebody as CRITICAL."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except typer.TyperException as error:
            typer.echo(_line(UNKNOWN, error.format_message()))
            raise typer.Exit(UNKNOWN) from None


def check(
    warning: Annotated[
        str,
        typer.Option(
            "--warning",
            "-w",
            help="WARNING above this share of used GPU memory, except where servers that preallocate hold it",
        ),
    ] = "90%",
    critical: Annotated[
        str, typer.Option("--critical", "-c", help="CRITICAL above this share of used GPU memory")
    ] = "98%",
    socket: Socket = None,
    url: Url = None,
    direct: Direct = False,
) -> None:
    """Check memory and health of all GPUs, as a Nagios plugin.

    Exit status: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN (no agent, no fresh data, or bad arguments).
    """
    try:
        limits = _share(warning), _share(critical)
        if limits[0] > limits[1]:
            raise ValueError("--warning is above --critical")
        # An agent that does not run is a finding: nothing stands in for it unless asked to.
        document = get_document(Source(socket, url, direct), fall_back=False)
    except (ValueError, NoData) as error:
        typer.echo(_line(UNKNOWN, str(error)))
        raise typer.Exit(UNKNOWN) from None
    code, text, data = judge(document, *limits)
    typer.echo(_line(code, text, data))
    raise typer.Exit(code)


class _Finding(NamedTuple):
    """What is wrong, as a sentence and in a few words."""

    level: int
    text: str
    label: str


def judge(document: Any, warning: float, critical: float) -> tuple[int, str, list[str]]:
    """Exit status, what is wrong (the gravest first), and performance data. The limits are shares, from 0 to 1.

    Of several findings that have no room in one line, the first line has the number and a few words on each; the
    sentences follow, a line each (the long output of a plugin).
    """
    fresh = document["age_seconds"] is not None and not document["stale"]
    walls = [wall for gpu in document["gpus"] for wall in _walls(gpu)] if fresh else []
    found = [*_problems(document["problems"], unread=True), *_memory(walls, warning, critical)]
    found += _problems(document["problems"], unread=False)
    without_gpus = any(problem["kind"] == "no_gpu" for problem in document["problems"])
    if not found and not fresh and not without_gpus:  # what is wrong is known, however old the figures are
        found = [_Finding(UNKNOWN, _no_figures(document["age_seconds"]), "")]
    code = max((one.level for one in found), default=OK)
    found.sort(key=lambda one: -one.level)
    simulated = document["agent"]["simulated"]
    noted = [problem["text"] for problem in document["problems"] if _is_noted(problem)]
    texts = [*([one.text for one in found] or [_calm(document["gpus"])]), *noted]
    head = f"SIMULATED ({simulated}): " if simulated else ""
    text = head + "; ".join(texts)
    if len(text) > _LINE and len(found) > 1:
        text = "\n".join([cut(head + _summary(found), _LINE), *texts])
    return code, text, [_performance(wall, warning, critical) for wall in walls]


def _summary(found: Sequence[_Finding]) -> str:
    """Return how many findings of each severity there are, and each in a few words, once."""
    numbers = [(sum(one.level == level for one in found), name) for name, level in _LEVELS.items()]
    counts = ", ".join(f"{number} {name}" for number, name in numbers if number)
    return f"{counts}: {'; '.join(dict.fromkeys(one.label for one in found))}"


def _is_noted(problem: Any) -> bool:
    """Return whether a problem is told although it changes no status."""
    return bool(problem["kind"] == "mps_shared" or (problem["kind"] == "alert" and problem["severity"] == "info"))


def _line(code: int, text: str, data: list[str] | None = None) -> str:
    """Return the first line, with performance data behind a bar, and further lines."""
    first, *more = [clean(line.replace("|", "/")) for line in text.split("\n")]
    return "\n".join([f"GPU {_NAMES[code]} - {first}" + (f"|{' '.join(data)}" if data else ""), *more])


def _walls(gpu: Any) -> Iterator[_Wall]:
    """Yield a GPU and each of its MIG instances: a full one has no room though its GPU may."""
    name = f"GPU {gpu['index']}"
    parts = [(name, f"gpu{gpu['index']}", gpu)]
    instances = {instance["gpu_instance_id"]: instance for instance in gpu["mig"]}  # what shares memory counts once
    for number, instance in instances.items():
        parts.append((f"{name} MIG {number}", f"gpu{gpu['index']}_mig{number}", instance))
    for whose, label, part in parts:
        if part["memory_used_bytes"] is not None and part["memory_total_bytes"]:
            used, free, total = part["memory_used_bytes"], part["memory_free_bytes"], part["memory_total_bytes"]
            taken = used if free is None else total - free
            usable = int(usable_bytes(part) or total)
            yield _Wall(whose, f"{label}_memory", used, total, taken, usable, bool(part.get("memory_preallocated")))


def _performance(wall: _Wall, warning: float, critical: float) -> str:
    """Return the used memory with its limits, which leave out what is reserved."""
    total, reserved = wall.total_bytes, wall.taken_bytes - wall.used_bytes
    limits = (max(0, round(limit * total) - reserved) for limit in (warning, critical))
    return f"'{wall.label}'={wall.used_bytes}B;{';'.join(map(str, limits))};0;{total}"


def _memory(walls: Iterable[_Wall], warning: float, critical: float) -> Iterator[_Finding]:
    for wall in walls:
        ratio = wall.taken_bytes / wall.total_bytes
        if ratio > (critical if wall.is_intended else warning):
            shown = format_ratio(min(1.0, wall.used_bytes / wall.usable_bytes))
            sizes = f"{format_bytes(wall.used_bytes)} of {format_bytes(wall.usable_bytes)}"
            level = CRITICAL if ratio > critical else WARNING
            label = f"{wall.name} full" if ratio > FULL_RATIO else f"{wall.name} {shown} full"
            yield _Finding(level, f"{wall.name}: {shown} of memory used ({sizes})", label)


def _problems(problems: Any, *, unread: bool) -> Iterator[_Finding]:
    """Yield the problems of GPUs that are not there to work with, or all others."""
    for problem in problems:
        level = _LEVELS.get(problem["severity"])
        kind = str(problem["kind"])
        if level and kind not in _JUDGED_HERE and (kind in _UNREAD) is unread:
            place = "" if problem["gpu"] is None else f"GPU {problem['gpu']} "
            label = place + _LABELS.get(kind, kind.replace("_", " "))
            text = problem["text"].replace("\n", " ")
            yield _Finding(level, text, cut(text, _LABEL) if kind == "alert" else label)


def _no_figures(age_seconds: float | None) -> str:
    if age_seconds is None:
        return "nothing has been measured yet"
    return f"no fresh figures: the last are {format_duration(age_seconds)} old"


def _calm(gpus: Any) -> str:
    return f"{len(gpus)} GPU{'' if len(gpus) == 1 else 's'}, nothing wrong" if gpus else "no GPU on this node"


def _share(text: str) -> float:
    """`90%`, `90` or `0.9`.

    >>> _share("90%"), _share("90"), _share("0.9"), _share("1%")
    (0.9, 0.9, 0.9, 0.01)
    """
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        raise ValueError(f"{text!r} is not a share such as 90%") from None
    share = number / 100 if text.endswith("%") or number > 1 else number
    if not 0 <= share <= 1:
        raise ValueError(f"{text!r} is not between 0% and 100%")
    return share
