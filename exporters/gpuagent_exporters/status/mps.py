"""Memory that is shared through MPS: counted as the server's where the driver does not list the server's clients.

The names of processes are their own choice: they are shown here, and nothing is acted on by them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpuagent.core.snapshot import GpuReading, ProcessReading
from gpuagent.core.units import GIB, format_bytes
from gpuagent.core.xids import Severity
from gpuagent_exporters.status.severity import Problem

_SERVER = "nvidia-cuda-mps"
"""What the kernel leaves of `nvidia-cuda-mps-server`: 15 bytes."""
_LEAST_SHARED_BYTES = GIB
"""A server without clients holds some hundred MiB at most: its own context."""


def shared_servers(processes: Iterable[ProcessReading]) -> frozenset[tuple[str, int]]:
    """Return GPU and pid of each MPS server that holds more than its own on a GPU on which no client is listed."""
    listed = list(processes)
    with_clients = {process.gpu_uuid for process in listed if "M" in process.kinds}
    return frozenset(
        (process.gpu_uuid, process.pid)
        for process in listed
        if process.info is not None
        and process.info.name.startswith(_SERVER)
        and (process.used_bytes or 0) >= _LEAST_SHARED_BYTES
        and process.gpu_uuid not in with_clients
    )


def mps_problems(gpu: GpuReading, processes: Iterable[ProcessReading]) -> Iterator[Problem]:
    """Yield which memory of a GPU is that of clients whom the driver does not list."""
    listed = list(processes)
    shared = shared_servers(listed)
    for process in listed:
        if (process.gpu_uuid, process.pid) in shared:
            yield Problem(
                Severity.INFO,
                "mps_shared",
                f"{format_bytes(process.used_bytes or 0)} shared through MPS: the driver counts the clients' memory as "
                f"that of the server (pid {process.pid}), and lists no client",
                "The server itself is never ended. `echo ps | nvidia-cuda-mps-control` lists its clients.",
                gpu=gpu.identity.index,
                uuid=gpu.identity.uuid,
                pid=process.pid,
            )
