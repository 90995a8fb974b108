"""`gpuagent workers`: how many worker processes of a model server fit on this machine, and which there are."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from gpuagent.cli.agent import EXIT_NO_DATA, Direct, NoData, Socket, Source, Url, fetch_clients, get_document, tell
from gpuagent.cli.cells import clean, cut, fit, width_of
from gpuagent.core.api_client import AgentUnreachable
from gpuagent.core.units import format_bytes, format_duration, parse_bytes

VARIABLE = "GPUAGENT_WORKERS"


def _size(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


class WorkerCount(NamedTuple):
    """How many, and what bounds them."""

    workers: int
    by_memory: int
    by_cores: int
    total_bytes: int
    gpus: tuple[int, ...]
    overridden: bool = False


def workers(
    typical: Annotated[
        int | None, typer.Option(parser=_size, metavar="SIZE", help="GPU memory that one worker typically uses")
    ] = None,
    minimum: Annotated[
        int | None, typer.Option(parser=_size, metavar="SIZE", help="Memory that a GPU must have to count")
    ] = None,
    gpu: Annotated[str, typer.Option(metavar="INDICES", help="GPUs to use: indices such as 0,1, or all")] = "all",
    pid: Annotated[int | None, typer.Option(help="Use the sizes that this app declares", metavar="PID")] = None,
    app: Annotated[
        str | None, typer.Option(help="Use the sizes that the app of this name declares", metavar="NAME")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the running workers instead")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON document with the figures behind the number")
    ] = False,
    socket: Socket = None,
    url: Url = None,
    direct: Direct = False,
) -> None:
    """Print how many workers fit: the smaller of 2 x cores + 1, and GPU memory divided by the size of one worker.

    GPUAGENT_WORKERS overrides it. Use it as `gunicorn --workers $(gpuagent workers --typical 6GiB)`: standard output is
    the number alone. Exit status: 0 printed, 1 not even one fits, 2 no size given, 3 neither agent nor driver answers.

    --list shows processes with gpuagent-client, grouped by server: the process that started the workers of gunicorn or
    uvicorn.
    """
    if listed:
        _list(chosen(_ask_for_clients(socket, url), app=app, pid=pid), as_json=as_json)
        return
    own = _override(os.environ)
    if own is not None:
        _print(WorkerCount(own, own, own, 0, (), overridden=True), as_json=as_json)
        return
    if pid is not None or app is not None:
        declared_minimum, declared = _declared(socket, url, pid, app)
        typical, minimum = typical or declared, minimum or declared_minimum
    if not typical:
        raise typer.BadParameter("give --typical SIZE, or --pid or --app of an app that declares it")
    try:
        document = get_document(Source(socket, url, direct))
    except NoData as error:
        tell(str(error))
        raise typer.Exit(EXIT_NO_DATA) from None
    fit = fitting(document["gpus"], typical, minimum or 0, cores=len(os.sched_getaffinity(0)), only=_indices(gpu))
    _print(fit, as_json=as_json)
    if not fit.workers:
        tell(f"Not even one worker of {format_bytes(typical)} fits on {_shown(fit.gpus)}")
        raise typer.Exit(1)


def fitting(
    gpus: Sequence[Mapping[str, Any]], typical_bytes: int, minimum_bytes: int, *, cores: int,
    only: frozenset[int] | None = None,
) -> WorkerCount:  # fmt: skip
    """Return how many workers fit: a worker lives on one GPU, so each GPU is counted by itself."""
    usable = [
        gpu
        for gpu in gpus
        if (only is None or gpu["index"] in only) and (gpu["memory_total_bytes"] or 0) >= max(minimum_bytes, 1)
    ]
    totals = [gpu["memory_total_bytes"] for gpu in usable]
    by_memory, by_cores = sum(total // typical_bytes for total in totals), 2 * cores + 1
    return WorkerCount(
        min(by_memory, by_cores), by_memory, by_cores, sum(totals), tuple(gpu["index"] for gpu in usable)
    )


def _override(environ: Mapping[str, str]) -> int | None:
    text = environ.get(VARIABLE, "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= 10_000):
        raise typer.BadParameter(f"{VARIABLE} must be a whole number above 0")
    return int(text)


def _indices(text: str) -> frozenset[int] | None:
    if text == "all":
        return None
    words = text.split(",")
    if not all(word.isascii() and word.isdigit() and len(word) < 6 for word in words):
        raise typer.BadParameter("--gpu must be all, or indices such as 0,1")
    return frozenset(int(word) for word in words)


def _declared(socket: Path | None, url: str | None, pid: int | None, app: str | None) -> tuple[int | None, int | None]:
    """Return what the app declares as its minimum and usual need; the largest of several workers."""
    found = [
        client
        for client in _ask_for_clients(socket, url)
        if (pid is None or client["pid"] == pid) and (app is None or client["app"] == app)
    ]
    _need(found)
    largest = [
        max((client[key] for client in found if client[key] is not None), default=None)
        for key in ("declared_minimum_bytes", "declared_typical_bytes")
    ]
    return largest[0], largest[1]


def _ask_for_clients(socket: Path | None, url: str | None) -> Sequence[Mapping[str, Any]]:
    try:
        document = fetch_clients(socket, url)
    except AgentUnreachable as error:
        tell(str(error))
        raise typer.Exit(EXIT_NO_DATA) from None
    clients: Sequence[Mapping[str, Any]] = document["clients"]
    return clients


def _need(found: Sequence[Mapping[str, Any]]) -> None:
    if not found:
        tell("No such app is connected. In the app: import gpuagent_client; gpuagent_client.start()")
        raise typer.Exit(EXIT_NO_DATA)


def _list(found: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(found, indent=1))
        return
    _need(found)
    for line in worker_lines(found, width_of(sys.stdout)):
        typer.echo(line)


def _shown(gpus: Sequence[int]) -> str:
    return f"GPU {', '.join(map(str, gpus))}" if gpus else "any GPU"


def _print(fit: WorkerCount, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(fit._asdict() | {"gpus": list(fit.gpus)}, indent=1))
        return
    typer.echo(fit.workers)
    if sys.stdout.isatty() and not fit.overridden:
        tell(f"{fit.by_memory} by memory ({format_bytes(fit.total_bytes)} on {_shown(fit.gpus)}), "
             f"{fit.by_cores} by cores")  # fmt: skip


Document = Mapping[str, Any]

_HEAD = ("PID", "GPU MEMORY", "TENSORS", "DECLARED", "CONNECTED")
_WIDTHS = (9, 11, 11, 11, 12)


def chosen(clients: Sequence[Document], *, app: str | None, pid: int | None) -> list[Document]:
    """Return those of this name or pid, by app and by the server that started them."""
    found = [each for each in clients if (app is None or each["app"] == app) and (pid is None or each["pid"] == pid)]
    return sorted(found, key=lambda each: (each["app"], each["parent_pid"], each["pid"]))


def worker_lines(clients: Sequence[Document], width: int) -> Iterator[str]:
    """Yield a paragraph for each server: its workers, and above them what they have in common."""
    parents = {each["parent_pid"] for each in clients}
    # A gunicorn that was preloaded, or started from outside, is a client too, and serves nobody itself.
    masters = {each["pid"] for each in clients if each["pid"] in parents and not each["devices"]}
    workers = [each for each in clients if each["pid"] not in masters]
    for (app, parent), group in groupby(workers, key=lambda each: (each["app"], each["parent_pid"])):
        own = list(group)
        whose = f" of process {parent}" if len(own) > 1 or parent in masters else ""
        noun = "worker" if len(own) == 1 else "workers"
        yield cut(f"{clean(app) or '(no name)'}: {len(own)} {noun}{whose}", width)
        yield cut(_line(_HEAD) + "  COMMAND", width)
        for each in own:
            yield cut(f"{_line(_cells(each))}  {clean(each['command'] or each['process'])}", width)


def _cells(client: Document) -> tuple[str, ...]:
    return (
        str(client["pid"]),
        _sum(client["devices"], "memory_used_bytes"),
        _sum(client["devices"], "allocated_bytes"),
        _bytes(client["declared_typical_bytes"]),
        format_duration(client["connected_seconds"]),
    )


def _sum(devices: Sequence[Document], key: str) -> str:
    """Over its GPUs; `-` where nothing is known."""
    known = [device[key] for device in devices if device[key] is not None]
    return _bytes(sum(known) if known else None)


def _bytes(count: int | None) -> str:
    return "-" if count is None else format_bytes(count)


def _line(cells: Sequence[str]) -> str:
    return " ".join(fit(cell, width, right=True) for cell, width in zip(cells, _WIDTHS, strict=True))
