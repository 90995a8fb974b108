"""Who uses the network or the IPC of a container from outside of it, and is cut off with it.

With `docker run --network container:web` another container is in the network namespace of web. Once the first process
of web has ended, be it by a signal or by a restart, its runtime takes the network down, and nothing is connected there
any more. In a pod these namespaces are the pause container's, and outlive the others. Of the host's own, and the
agent's, nobody is cut off.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

from gpuagent.procfs.files import ProcFiles

_HOST_INIT = 1


def network_of(pid: int, root: Path = Path("/proc")) -> int:
    """Return the number of a process's network namespace in /proc, to compare; 0 where it has none, or has gone.

    Whatever lies below /proc/PID/net has one inode in each namespace, which everybody may ask for; the link ns/net
    takes the right to trace the process.
    """
    try:
        return os.stat(root / str(pid) / "net" / "unix").st_ino  # noqa: PTH116
    except OSError:
        return 0


def used_by_others(
    files: ProcFiles,
    target: int,
    inside: Collection[int],
    pids: Iterable[int],
    network: Callable[[int], int] = network_of,
) -> Iterator[tuple[int, str]]:
    """Yield each process that is not `inside` and uses the network or the IPC of the target, and which of them.

    IPC is compared where that may be seen.
    """
    of_target = _namespaces(files, target, network)
    hosts = [_namespaces(files, pid, network) for pid in (_HOST_INIT, os.getpid())]
    shared = {name for name, value in of_target.items() if value and all(value != each[name] for each in hosts)}
    for pid in pids if shared else ():
        if pid in inside:
            continue
        found = _namespaces(files, pid, network)
        if used := [name for name in sorted(shared) if found[name] == of_target[name]]:
            yield pid, used[0]


def _namespaces(files: ProcFiles, pid: int, network: Callable[[int], int]) -> dict[str, int | str]:
    try:
        ipc = files.link(pid, "ns/ipc")
    except OSError:
        ipc = ""
    return {"network": network(pid), "IPC": ipc}
