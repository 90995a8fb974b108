"""What the allocator inside a process tells of its memory, in the status document."""

from __future__ import annotations

from gpuagent.core.metrics.clients import cached_bytes, outside_bytes
from gpuagent.core.snapshot import AllocatorReading, ProcessReading, Snapshot


def allocator_status(snapshot: Snapshot, process: ProcessReading) -> dict[str, object]:
    """Of one process on one GPU; all null where no embedded client tells of it."""
    client = snapshot.clients.get(process.pid)
    reading = client.devices.get(process.gpu_uuid) if client else None
    figures = reading or AllocatorReading()
    return {
        "app": client.app if client else None,
        "allocated_bytes": figures.allocated_bytes,
        "reserved_bytes": figures.reserved_bytes,
        "cached_bytes": cached_bytes(figures),
        "outside_bytes": outside_bytes(process, figures),
    }
