"""`gpuagent check`: one line and an exit status for Nagios, Icinga and the like.

https://nagios-plugins.org/doc/guidelines.html
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand

from gpuagent.cli.agent import Direct, NoData, Socket, Source, Url, get_document
from gpuagent.cli.cells import clean
from gpuagent.core.units import format_bytes, format_duration, format_ratio

OK, WARNING, CRITICAL, UNKNOWN = 0, 1, 2, 3
_NAMES = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
_LEVELS = {"critical": CRITICAL, "warning": WARNING}
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


def judge(document: Any, warning: float, critical: float) -> tuple[int, str, list[str]]:
    """Exit status, what is wrong (the gravest first), and performance data. The limits are shares, from 0 to 1."""
    fresh = document["age_seconds"] is not None and not document["stale"]
    walls = [wall for gpu in document["gpus"] for wall in _walls(gpu)] if fresh else []
    found = [*_memory(walls, warning, critical), *_problems(document["problems"])]
    without_gpus = any(problem["kind"] == "no_gpu" for problem in document["problems"])
    if not found and not fresh and not without_gpus:  # what is wrong is known, however old the figures are
        found = [(UNKNOWN, _no_figures(document["age_seconds"]))]
    code = max((level for level, _ in found), default=OK)
    texts = [text for _, text in sorted(found, key=lambda item: -item[0])]
    simulated = document["agent"]["simulated"]
    noted = [problem["text"] for problem in document["problems"] if _is_noted(problem)]
    told = "; ".join([*(texts or [_calm(document["gpus"])]), *noted])
    text = f"SIMULATED ({simulated}): {told}" if simulated else told
    return code, text, [_performance(wall, warning, critical) for wall in walls]


def _is_noted(problem: Any) -> bool:
    """Return whether a problem is told although it changes no status."""
    return bool(problem["kind"] == "mps_shared" or (problem["kind"] == "alert" and problem["severity"] == "info"))


def _line(code: int, text: str, data: list[str] | None = None) -> str:
    """One line; what follows a bar is performance data, so the text has none."""
    words = clean(text.replace("\n", " ").replace("|", "/"))
    return f"GPU {_NAMES[code]} - {words}" + (f"|{' '.join(data)}" if data else "")


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
            yield _Wall(whose, f"{label}_memory", used, total, taken, bool(part.get("memory_preallocated")))


def _performance(wall: _Wall, warning: float, critical: float) -> str:
    """Return the used memory with its limits, which leave out what is reserved."""
    total, reserved = wall.total_bytes, wall.taken_bytes - wall.used_bytes
    limits = (max(0, round(limit * total) - reserved) for limit in (warning, critical))
    return f"'{wall.label}'={wall.used_bytes}B;{';'.join(map(str, limits))};0;{total}"


def _memory(walls: Iterable[_Wall], warning: float, critical: float) -> Iterator[tuple[int, str]]:
    for wall in walls:
        ratio = wall.taken_bytes / wall.total_bytes
        if ratio > (critical if wall.is_intended else warning):
            sizes = f"{format_bytes(wall.taken_bytes)} of {format_bytes(wall.total_bytes)}"
            yield (
                CRITICAL if ratio > critical else WARNING,
                f"{wall.name}: {format_ratio(ratio)} of memory used ({sizes})",
            )


def _problems(problems: Any) -> Iterator[tuple[int, str]]:
    for problem in problems:
        level = _LEVELS.get(problem["severity"])
        if level and problem["kind"] not in _JUDGED_HERE:
            yield level, problem["text"]


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
