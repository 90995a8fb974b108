"""A cgroup of version 2 as a machine: its limit is all the memory there is, so a test can put it under load."""

from __future__ import annotations

from pathlib import Path

from gpuagent.core.hardware import HostMemory, MemoryPressure
from gpuagent.procfs.host_memory import read_pressure, sum_counters


def read_cgroup_memory(folder: Path) -> tuple[HostMemory, MemoryPressure] | None:
    """Memory and pressure within the limit of a cgroup; None where it has no limit or no figures.

    The smaller one of `memory.high` and `memory.max` is the machine. `pgscan_direct` stands for direct reclaim.
    """
    limits = [each for name in ("memory.high", "memory.max") if (each := _number(folder / name)) is not None]
    current = _number(folder / "memory.current")
    pressure = read_pressure(folder / "memory.pressure", sum_counters(folder / "memory.stat", ("pgscan_direct",)))
    if not limits or current is None or pressure is None:
        return None
    total = min(limits)
    cache = sum_counters(folder / "memory.stat", ("active_file", "inactive_file")) or 0
    free = max(0, total - current)
    kernel = sum_counters(folder / "memory.stat", ("slab_unreclaimable",)) or 0
    return HostMemory(total, min(total, free + cache), free, cache, kernel), pressure


def _number(path: Path) -> int | None:
    """The number in a file; None where there is another word, such as `max`, or nothing."""
    try:
        return int(path.read_text("ascii"))
    except (OSError, ValueError):
        return None
