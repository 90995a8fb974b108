"""Whether this host has the memory for a forked child, and whether this process may have one."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from gpuagent_client.blame.request import Refused

# Measured on CPython 3.11 with torch 2.13: what a child dirties (copy on write) while it looks.
BASE_BYTES = 42 << 20
PER_OBJECT_BYTES = 100
PER_TENSOR_BYTES = 1024
# pymalloc's blocks are a bound on the objects, counted without touching them.
MARGIN = 2
NO_LIMIT_BYTES = 1 << 60


class Size(NamedTuple):
    """How much a look has to go through."""

    objects: int
    tensors: int


def estimate_bytes(known: Size | None) -> int:
    """What a child will dirty, from the size of the look before, or roughly."""
    size = known or Size(sys.getallocatedblocks(), 0)
    return BASE_BYTES + PER_OBJECT_BYTES * size.objects + PER_TENSOR_BYTES * size.tensors


def available_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Free memory of the host or of this cgroup, whichever is less; very much if neither can be read."""
    fields = dict(line.split(":", 1) for line in _lines(proc / "meminfo") if ":" in line)
    available = [int(fields["MemAvailable"].split()[0]) * 1024] if "MemAvailable" in fields else [NO_LIMIT_BYTES]
    for line in _lines(proc / "self" / "cgroup"):
        number, _, path = line.partition("::")
        if number == "0":  # version 2: one line, "0::/path"
            folder = cgroups / path.strip().lstrip("/")
            for level in (folder, *folder.parents):
                if level == cgroups.parent:
                    break
                available.extend(_left_in(level))
    return min(available)


def _left_in(folder: Path) -> Iterable[int]:
    """What one level of the hierarchy still allows; the page cache in it can be taken back."""
    limit, used = _lines(folder / "memory.max"), _lines(folder / "memory.current")
    if limit and used and limit[0].strip().isdigit():
        cached = sum(
            int(line.split()[1]) for line in _lines(folder / "memory.stat") if line.startswith("inactive_file ")
        )
        yield int(limit[0]) - int(used[0]) + cached


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []


def refuse_without_memory(known: Size | None, available: int) -> None:
    """A census must not be what brings the out-of-memory killer.

    Raises:
        Refused: less than twice the estimate is free.
    """
    needed = MARGIN * estimate_bytes(known)
    if available < needed:
        raise Refused(f"{available >> 20} MiB of host memory are free, and a census wants {needed >> 20} MiB")


def refuse_in_gunicorn_master(frames: Iterable[FrameType]) -> None:
    """The master waits for any child, and would take ours for a worker that died.

    Raises:
        Refused: one of these frames is the master's loop, and none the start of a worker.
    """
    arbiter = {frame.f_code.co_name for frame in frames if frame.f_code.co_filename.endswith(("gunicorn/arbiter.py",))}
    if arbiter and "spawn_worker" not in arbiter:
        raise Refused("this is gunicorn's master: ask one of its workers")
