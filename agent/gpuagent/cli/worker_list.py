"""The workers that serve now, as `gpuagent workers --list` shows them: apps with the client, by server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from gpuagent.cli.cells import clean, cut, fit
from gpuagent.core.units import format_bytes, format_duration

Document = Mapping[str, Any]

_HEAD = ("PID", "GPU MEMORY", "TENSORS", "DECLARED", "CONNECTED")
_WIDTHS = (9, 11, 11, 11, 12)


def chosen(clients: Sequence[Document], *, app: str | None, pid: int | None) -> list[Document]:
    """Those of this name or pid, by app and by the server that started them."""
    found = [each for each in clients if (app is None or each["app"] == app) and (pid is None or each["pid"] == pid)]
    return sorted(found, key=lambda each: (each["app"], each["parent_pid"], each["pid"]))


def worker_lines(clients: Sequence[Document], width: int) -> Iterator[str]:
    """A paragraph for each server: its workers, and above them what they have in common."""
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
