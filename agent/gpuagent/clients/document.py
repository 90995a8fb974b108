"""The connected apps as JSON: for `GET /api/v1/clients`, `gpuagent blame` and whoever looks."""

from __future__ import annotations

from typing import Any

from gpuagent.clients.connection import Connection
from gpuagent.clients.hub import Hub
from gpuagent.core.metrics.clients import cached_bytes, outside_bytes
from gpuagent.core.snapshot import ClientReading, ProcessReading, Snapshot

SCHEMA = 1

Document = dict[str, Any]


def clients_document(hub: Hub, snapshot: Snapshot | None, now_seconds: float) -> Document:
    """Return all of them, by pid; figures are null where none are known, or only old ones."""
    on: dict[int, list[ProcessReading]] = {}
    for process in snapshot.processes if snapshot else ():
        on.setdefault(process.pid, []).append(process)
    clients = [
        client_document(connection, snapshot.clients.get(pid) if snapshot else None, on.get(pid, []), now_seconds)
        for connection in hub.clients
        if connection.info and (pid := connection.info.id.pid)
    ]
    return {
        "schema": SCHEMA,
        "time_seconds": snapshot.time_seconds if snapshot else None,
        "clients": sorted(clients, key=lambda client: client["pid"]),
        "refused": dict(hub.refusals),
        "dropped": dict(hub.drops),
    }


def client_document(
    connection: Connection, reading: ClientReading | None, processes: list[ProcessReading], now_seconds: float
) -> Document:
    """Return the document of one app."""
    info, hello = connection.info, connection.hello
    assert info is not None and hello is not None  # noqa: S101, PT018  it is a client
    measured = connection.measured_seconds
    return {
        "pid": info.id.pid,
        "app": hello.app,
        "parent_pid": info.parent_pid,
        "process": info.name,
        "user": info.user,
        "uid": info.uid,
        "unit": info.unit,
        "container_id": info.container_id,
        "pod": info.pod,
        "namespace": info.namespace,
        "command": info.command,
        "connected_seconds": max(0.0, now_seconds - connection.since_seconds),
        "age_seconds": None if measured is None else max(0.0, now_seconds - measured),
        "client_version": hello.client_version,
        "torch_version": hello.torch_version,
        "python_version": hello.python_version,
        "backend": hello.backend,
        "frameworks": dict(hello.frameworks),
        "capabilities": list(hello.capabilities),
        "level": connection.level,
        "problem": reading.problem if reading else "",
        "declared_minimum_bytes": hello.declared_minimum_bytes,
        "declared_typical_bytes": hello.declared_typical_bytes,
        "devices": devices_document(reading, processes),
        "events": [
            {"age_seconds": max(0.0, now_seconds - at), "name": event.name, "fields": dict(event.fields)}
            for at, event in connection.events
        ],
    }


def devices_document(reading: ClientReading | None, processes: list[ProcessReading]) -> list[Document]:
    """Return the allocator's figures on each GPU, beside what the driver counts."""
    devices = []
    for uuid, figures in reading.devices.items() if reading else ():
        process = next((process for process in processes if process.gpu_uuid == uuid), None)
        devices.append(
            {
                "gpu": process.gpu_index if process else None,
                "gpu_uuid": uuid,
                "memory_used_bytes": process.used_bytes if process else None,
                "allocated_bytes": figures.allocated_bytes,
                "allocated_peak_bytes": figures.allocated_peak_bytes,
                "reserved_bytes": figures.reserved_bytes,
                "reserved_peak_bytes": figures.reserved_peak_bytes,
                "cached_bytes": cached_bytes(figures),
                "outside_bytes": outside_bytes(process, figures) if process else None,
                "active_bytes": figures.active_bytes,
                "inactive_split_bytes": figures.inactive_split_bytes,
                "segments": figures.segments,
                "alloc_retries": figures.alloc_retries,
                "ooms": figures.ooms,
                "limit_ratio": figures.limit_ratio,
            }
        )
    return devices
