"""Read the memory of the machine, which is the GPU's too where the two share it, and how much programs wait for it.

From /proc/meminfo, /proc/pressure and /proc/vmstat.

LXCFS mounts a file of its own over /proc/meminfo, which has the limit of the container's cgroup as its total
(https://github.com/lxc/lxcfs). /sys/devices/system/node tells what the kernel has given each node, in every container.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from gpuagent.core.hardware import HostMemory, MemoryPressure
from gpuagent.core.units import format_bytes
from gpuagent.procfs.cgroup import path_in_hierarchy, systemd_hierarchies

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
    """Return the pressure of the machine; None on kernels without it (PSI, Documentation/accounting/psi.rst).

    Of /proc/vmstat, `allocstall_*` counts direct reclaim and `compact_stall` direct compaction. The kernel counts
    neither for the limit of a cgroup (mm/vmscan.c, `do_try_to_free_pages`).
    """
    return read_pressure(
        Path(root, "pressure/memory"), sum_counters(Path(root, "vmstat"), ("allocstall", "compact_stall"))
    )


def read_pressure(path: Path, direct_reclaims: int | None) -> MemoryPressure | None:
    """Return what a file of PSI says, with this count beside it; None where it says nothing."""
    try:
        lines = path.read_text("ascii").splitlines()
        (some, some_seconds), (full, full_seconds) = (_stalls(line) for line in lines[:2])
    except (OSError, ValueError, KeyError):
        return None
    return MemoryPressure(some, full, some_seconds, full_seconds, direct_reclaims)


def _stalls(line: str) -> tuple[float, float | None]:
    """Return ratio and seconds of a line such as `some avg10=0.12 avg60=... total=MICROSECONDS`."""
    fields = dict(field.split("=", 1) for field in line.split()[1:])
    return float(fields["avg10"]) / 100, int(fields["total"]) / 1e6 if "total" in fields else None


def sum_counters(path: Path, prefixes: tuple[str, ...]) -> int | None:
    """Return the sum of counters whose names begin so, a line each; None where there is none."""
    try:
        lines = path.read_text("ascii").splitlines()
        found = [int(line.split()[1]) for line in lines if line.startswith(prefixes)]
    except (OSError, ValueError, IndexError):
        return None
    return sum(found) if found else None


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


_NODE_TOTAL = re.compile(r"MemTotal:\s*(\d+) kB")
_LEAST_SHARE = 0.95
"""The totals of the nodes add up to the machine's; of memory that is plugged in, one may tell before the other."""


def limited_view(proc: str | Path = "/proc", nodes: str | Path = "/sys/devices/system/node") -> str:
    """Return why /proc/meminfo is not the machine's; "" where nothing says so."""
    over = _mounted_over(Path(proc, "self/mountinfo"))
    if over:
        return f"{over} is mounted over /proc/meminfo: it tells a container's share of the memory, not the machine's"
    total, host = _total_of_nodes(Path(nodes)), read_host_memory(proc)
    if total and host is not None and host.total_bytes < _LEAST_SHARE * total:
        return (
            f"/proc/meminfo tells {format_bytes(host.total_bytes)} in total, and /sys/devices/system/node "
            f"{format_bytes(total)}: it is a container's share of the memory"
        )
    return ""


def read_whole_memory() -> HostMemory | None:
    """Return the memory of the machine; None where /proc does not tell it, or tells a container's share of it."""
    return None if _own_view() else read_host_memory()


@cache
def _own_view() -> str:
    """Return `limited_view()` as it was at first: what is mounted over /proc was so before the agent started."""
    return limited_view()


def own_cgroup_folder(proc: str | Path = "/proc") -> str:
    """Return the folder of this process' cgroup of version 2; "" where it is not mounted, or not to be seen."""
    try:
        mountinfo, own = (Path(proc, "self", name).read_bytes() for name in ("mountinfo", "cgroup"))
    except OSError:
        return ""
    path = path_in_hierarchy(own, "")
    if path is None or ".." in path.split("/"):
        return ""
    roots = [hierarchy for hierarchy in systemd_hierarchies(mountinfo) if not hierarchy.controllers]
    return str(roots[0].folder(path)) if roots else ""


def _mounted_over(mountinfo: Path) -> str:
    """Return the type of the file system on /proc/meminfo; "" where /proc itself has that file."""
    try:
        lines = os.fsdecode(mountinfo.read_bytes()).split("\n")
    except OSError:
        return ""
    for line in reversed(lines):
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) > 4 and fields[4] == "/proc/meminfo":
            return after.split(" ", 1)[0] or "a file"
    return ""


def _total_of_nodes(nodes: Path) -> int:
    """Return the sum over all NUMA nodes in bytes; 0 where one cannot be read."""
    total = 0
    try:
        for folder in nodes.glob("node[0-9]*"):
            found = _NODE_TOTAL.search((folder / "meminfo").read_text("ascii"))
            if found is None:
                return 0
            total += int(found[1]) * 1024
    except (OSError, ValueError):
        return 0
    return total
