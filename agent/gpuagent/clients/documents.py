"""Write JSON documents of the connected apps, and of what a census or a recording in an app has found.

Findings are checked and bounded, for an app may say anything. The app's client decides who holds the memory and words
the verdict; here it is only read, and both are put together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gpuagent.clients.connection import Connection
from gpuagent.clients.registry import ClientRegistry
from gpuagent.core.metrics.clients import cached_bytes, outside_bytes
from gpuagent.core.snapshot import ClientReading, ProcessReading, Snapshot
from gpuagent.procfs.files import printable

SCHEMA = 1

Document = dict[str, Any]


def clients_document(
    registry: ClientRegistry, snapshot: Snapshot | None, now_seconds: float, socket_path: str
) -> Document:
    """Return all of them, by pid; figures are null where none are known, or only old ones.

    `socket_path` is where apps connect, "" while none can.
    """
    on: dict[int, list[ProcessReading]] = {}
    for process in snapshot.processes if snapshot else ():
        on.setdefault(process.pid, []).append(process)
    clients = [
        client_document(connection, snapshot.clients.get(pid) if snapshot else None, on.get(pid, []), now_seconds)
        for connection in registry.clients
        if connection.info and (pid := connection.info.id.pid)
    ]
    return {
        "schema": SCHEMA,
        "time_seconds": snapshot.time_seconds if snapshot else None,
        "clients": sorted(clients, key=lambda client: client["pid"]),
        "refused": dict(registry.refusals),
        "dropped": dict(registry.drops),
        "attach": registry.limits.may_attach,
        "socket": socket_path,
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


_MOST_ROWS = 50
_MOST_NOTES = 20
_TEXT_BYTES = 300
_VERDICT_BYTES = 1500
_MAX_NUMBER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class HolderGroup:
    """Tensors that one thing holds."""

    key: str = ""
    kind: str = ""
    container: str = ""
    path: str = ""
    file: str = ""
    function: str = ""
    cause: str = ""
    remedy: str = ""
    allocated_file: str = ""
    """File of the line that allocated most of it, if that was recorded."""
    allocated_function: str = ""
    allocated_line: int | None = None
    allocated_bytes: int | None = None
    """Bytes that this line allocated of what outlived the window."""
    line: int | None = None
    count: int | None = None
    bytes: int | None = None
    growth_bytes: int | None = None
    container_length: int | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """Memory that one line of the program has allocated."""

    file: str = ""
    function: str = ""
    line: int | None = None
    bytes: int | None = None
    count: int | None = None
    growth_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Findings:
    """Who holds the memory, in words and in figures."""

    verdict: str = ""
    groups: tuple[HolderGroup, ...] = ()
    lines: tuple[Line, ...] = ()
    notes: tuple[str, ...] = ()
    stall_seconds: float | None = None
    """Seconds that the app stood still for it."""
    foretold_stall_seconds: float | None = None
    """Seconds that the app reckoned with before it forked."""

    def document(self) -> dict[str, Any]:
        """Return the findings as JSON has them."""
        found = asdict(self)
        return found | {key: list(found[key]) for key in ("groups", "lines", "notes")}


def read_findings(value: Mapping[str, Any]) -> Findings:
    """Return the findings in an app's answer; what is of the wrong type is left out."""
    given = value.get("notes")
    notes = [_text(note) for note in (given if isinstance(given, list) else [])[:_MOST_NOTES]]
    return Findings(
        verdict=_text(value.get("verdict"), _VERDICT_BYTES),
        groups=tuple(HolderGroup(**_fields(row, HolderGroup)) for row in _rows(value.get("groups"))),
        lines=tuple(Line(**_fields(row, Line)) for row in _rows(value.get("lines"))),
        notes=tuple(note for note in notes if note),
        stall_seconds=_number(value.get("stall_seconds")),
        foretold_stall_seconds=_number(value.get("foretold_stall_seconds")),
    )


def merge_findings(census: Findings | None, lines: Findings | None, notes: tuple[str, ...] = ()) -> Findings:
    """Return one verdict: that of the holder of the memory, else that of the line which allocated it."""
    found = [each for each in (census, lines) if each is not None]
    telling = next((each for each in found if each.groups or each.lines), found[0] if found else Findings())
    stalls = [each.stall_seconds for each in found if each.stall_seconds is not None]
    foretold = [each.foretold_stall_seconds for each in found if each.foretold_stall_seconds is not None]
    return Findings(
        verdict=telling.verdict,
        groups=tuple(group for each in found for group in each.groups),
        lines=tuple(line for each in found for line in each.lines),
        notes=tuple(dict.fromkeys((*(note for each in found for note in each.notes), *notes))),
        stall_seconds=max(stalls, default=None),
        foretold_stall_seconds=max(foretold, default=None),
    )


def _rows(value: object) -> list[Mapping[str, Any]]:
    rows = value if isinstance(value, list) else []
    return [row for row in rows[:_MOST_ROWS] if isinstance(row, dict)]


def _fields(row: Mapping[str, Any], kind: type[HolderGroup | Line]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, field in kind.__dataclass_fields__.items():
        value = row.get(name)
        if field.default == "":
            fields[name] = _text(value)
        elif (number := _number(value)) is not None:
            fields[name] = int(number)
    return fields


def _text(value: object, limit_bytes: int = _TEXT_BYTES) -> str:
    return printable(value, limit_bytes) if isinstance(value, str) else ""


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _MAX_NUMBER:
        return None  # NaN and infinity among them
    return value
