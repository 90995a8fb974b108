"""The columns of the processes: what each shows, what it sorts by, and which goes first where there is no room."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from rich.cells import cell_len

from gpuagent.cli.ps import (
    age_cell,
    allocator_cell,
    full_in_cell,
    gpu_cell,
    growth_cell,
    memory_cell,
    sm_cell,
    who,
)
from gpuagent.core.process_filter import container_of, owner
from gpuagent.core.units import format_bytes, format_ratio

Document = dict[str, Any]


class Column(NamedTuple):
    """One column of the table."""

    key: str
    head: str
    width: int
    cell: Callable[[Document], str]
    sort_value: Callable[[Document], Any]
    """None where there is nothing to sort by: such a process comes last, whichever way it is sorted."""
    about: str
    right: bool = True
    descends: bool = True
    """Largest first, when it is chosen."""
    rank: int = 0
    """What goes first where there is no room has the highest number; 0 always stays."""


def name_of(process: Document) -> str:
    """Return its name and what runs, with a state that matters; who it belongs to is another column."""
    if process.get("state") != "live" or process.get("process_state") in {"Z", "D"} or process.get("holder_unproven"):
        return who(process)
    return who({"state": "live", "process": process.get("process"), "command": process.get("command")})


def verdict_of(process: Document) -> str:
    """Return the verdict on its memory in as few words as a column has."""
    return str(process.get("verdict") or "-")


def _text(key: str) -> Callable[[Document], Any]:
    return lambda process: process.get(key) or None


def _percent(key: str) -> Callable[[Document], str]:
    return lambda process: "-" if process.get(key) is None else format_ratio(process[key])


def _bytes(key: str) -> Callable[[Document], str]:
    return lambda process: "-" if process.get(key) is None else format_bytes(process[key])


def _gpu_order(process: Document) -> Any:
    return (process["gpu"], process.get("gpu_instance_id") or 0)


def _full_seconds(process: Document) -> Any:
    return process.get("gpu_exhaustion_seconds", process.get("exhaustion_seconds")) if process.get("verdict") else None


_VERDICTS = ("leaking", "growing", "cached", "levelled off", "steady", "learning")


def _verdict_order(process: Document) -> Any:
    verdict = process.get("verdict")
    return -_VERDICTS.index(verdict) if verdict in _VERDICTS else None


COLUMNS: Sequence[Column] = (
    Column("gpu", "GPU", 4, gpu_cell, _gpu_order, "GPU, with MIG instances below it", descends=False),
    Column("pid", "PID", 7, lambda process: str(process["pid"]), _text("pid"), "Process ID", descends=False),
    Column("user", "USER", 9, lambda one: one.get("user") or "-", _text("user"), "User", False, False, rank=2),
    Column("memory", "MEMORY", 9, memory_cell, _text("memory_used_bytes"), "GPU memory it holds"),
    Column("sm", "SM", 5, sm_cell, _text("sm_utilization_ratio"), "Share of time it kept the GPU busy", rank=6),
    Column("growth", "GROWTH", 12, growth_cell, _text("growth_bytes_per_second"), "Pace of its baseline", rank=4),
    Column(
        "full_in",
        "FULL IN",
        11,
        full_in_cell,
        _full_seconds,
        "When its GPU is full at this pace",
        descends=False,
        rank=1,
    ),
    Column("verdict", "VERDICT", 12, verdict_of, _verdict_order, "What its memory does", right=False, rank=3),
    Column(
        "allocator",
        "TENSORS + CACHE",
        15,
        allocator_cell,
        _text("reserved_bytes"),
        "Held by tensors, and kept by the allocator, in GiB; needs the client",
        rank=9,
    ),
    Column("age", "AGE", 11, age_cell, _text("age_seconds"), "Since its start", rank=7),
    Column(
        "owner",
        "OWNER",
        22,
        lambda one: owner(one) or "-",
        lambda one: owner(one) or None,
        "Job, pod, unit or container",
        False,
        False,
        rank=5,
    ),
    Column(
        "unit", "UNIT", 22, lambda one: one.get("unit") or "-", _text("unit"), "systemd unit", False, False, rank=12
    ),
    Column(
        "job", "JOB", 9, lambda one: one.get("slurm_job") or "-", _text("slurm_job"), "Slurm job", False, False, rank=12
    ),
    Column(
        "container",
        "CONTAINER",
        20,
        lambda one: container_of(one) or "-",
        lambda one: container_of(one) or None,
        "Container or pod",
        False,
        False,
        rank=12,
    ),
    Column(
        "kinds",
        "TYPE",
        4,
        lambda one: one.get("kinds") or "-",
        _text("kinds"),
        "Compute, graphics, MPS",
        False,
        False,
        rank=11,
    ),
    Column(
        "memory_busy",
        "MEM%",
        5,
        _percent("memory_utilization_ratio"),
        _text("memory_utilization_ratio"),
        "Share of time it kept the memory busy",
        rank=10,
    ),
    Column(
        "encoder",
        "ENC",
        5,
        _percent("encoder_utilization_ratio"),
        _text("encoder_utilization_ratio"),
        "Video encoder",
        rank=11,
    ),
    Column(
        "decoder",
        "DEC",
        5,
        _percent("decoder_utilization_ratio"),
        _text("decoder_utilization_ratio"),
        "Video decoder",
        rank=11,
    ),
    Column(
        "host_memory",
        "HOST MEM",
        10,
        _bytes("host_memory_bytes"),
        _text("host_memory_bytes"),
        "Resident host memory",
        rank=10,
    ),
)
BY_KEY = {column.key: column for column in COLUMNS}
USUAL = ("gpu", "pid", "user", "memory", "sm", "growth", "full_in", "verdict", "age", "owner")
"""What is shown until somebody chooses otherwise; the command always comes last."""
_IDLE_RANK = 20
LEAST_COMMAND = 12
"""Cells that the command has at least, on the narrowest screens; a fifth of the wider ones."""


def fitting(keys: Iterable[str], processes: Sequence[Document], width: int) -> list[Column]:
    """Return the chosen columns that fit beside the command. Growth and forecast go first where nothing grows."""
    chosen = [BY_KEY[key] for key in keys if key in BY_KEY]
    grows = any(process.get("growth_bytes_per_second") for process in processes)
    for key, cell in (("gpu", gpu_cell), ("memory", memory_cell)):
        widest = max((cell_len(cell(process)) for process in processes), default=0)
        chosen = [one._replace(width=max(one.width, widest)) if one.key == key else one for one in chosen]
    idle = {"growth", "full_in"} if not grows else set()

    def rank(column: Column) -> int:
        return column.rank + (_IDLE_RANK if column.key in idle else 0)

    room = width - max(LEAST_COMMAND, width // 5)
    kept: set[str] = set()
    for column in sorted(chosen, key=rank):
        if column.rank == 0 or column.width + 1 <= room:
            kept.add(column.key)
            room -= column.width + 1
    return [column for column in chosen if column.key in kept]
