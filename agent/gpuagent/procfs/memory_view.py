"""Whether /proc/meminfo is the machine's, or the view that a container has of it.

LXCFS mounts a file of its own over /proc/meminfo, which has the limit of the container's cgroup as its total
(https://github.com/lxc/lxcfs). /sys/devices/system/node tells what the kernel has given each node, in every container.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

from gpuagent.core.hardware import HostMemory
from gpuagent.core.units import format_bytes
from gpuagent.procfs.cgroup import path_in_hierarchy, systemd_hierarchies
from gpuagent.procfs.host_memory import read_host_memory

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
        lines = os.fsdecode(mountinfo.read_bytes()).splitlines()
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
