"""Read the memory of the machine, which is the GPU's too where the two share it: /proc/meminfo and /proc/pressure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gpuagent.core.hardware import HostMemory, MemoryPressure

_KIB = 1024


def read_host_memory(root: str | Path = "/proc") -> HostMemory | None:
    """Return the memory of the machine; None where /proc does not tell it.

    `MemAvailable` is the kernel's own estimate of what can be had without swapping, less the low watermarks of its
    zones (Documentation/filesystems/proc.rst). Page cache is what it calls "Cached" and "Buffers" without shared
    memory, which cannot be reclaimed; the kernel's own are slabs that cannot be reclaimed, page tables and stacks.
    """
    found = _sizes(Path(root, "meminfo"))
    total, available = found.get("MemTotal"), found.get("MemAvailable")
    if not total or available is None or available > total:
        return None
    cached = found.get("Cached", 0) + found.get("Buffers", 0) - found.get("Shmem", 0)
    return HostMemory(
        total_bytes=total,
        available_bytes=available,
        free_bytes=found.get("MemFree", 0),
        page_cache_bytes=max(0, cached),
        kernel_bytes=sum(found.get(name, 0) for name in ("SUnreclaim", "KernelStack", "PageTables", "Percpu")),
        swap_total_bytes=found.get("SwapTotal", 0),
        swap_free_bytes=found.get("SwapFree", 0),
        huge_pages_free_bytes=found.get("HugePages_Free", 0) // _KIB * found.get("Hugepagesize", 0),
    )


def read_memory_pressure(root: str | Path = "/proc") -> MemoryPressure | None:
    """Return the pressure of the last 10 s; None on kernels without it (PSI, Documentation/accounting/psi.rst)."""
    try:
        lines = Path(root, "pressure/memory").read_text("ascii").splitlines()
        some, full = (_ten_seconds(line) for line in lines[:2])
    except (OSError, ValueError, KeyError):
        return None
    return MemoryPressure(some, full)


def _ten_seconds(line: str) -> float:
    """Return the ratio of a line such as `some avg10=0.12 avg60=... total=...`."""
    fields = dict(field.split("=", 1) for field in line.split()[1:])
    return float(fields["avg10"]) / 100


def _sizes(path: Path) -> Mapping[str, int]:
    """Return the fields in bytes; counts, which have no unit, as if they were in KiB."""
    found = {}
    try:
        for line in path.read_text("ascii").splitlines():
            name, _, rest = line.partition(":")
            number = rest.split()
            if number and number[0].isdigit():
                found[name] = int(number[0]) * _KIB
    except (OSError, ValueError):
        return {}
    return found
