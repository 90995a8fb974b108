"""Families of what apps and model servers say of themselves, and of the connections of embedded clients.

The allocator's view of a process's memory has torch's names
(https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.memory_stats.html). Model servers say what their
memory is for; the bytes themselves are NVML's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuagent.core.metrics.family import Family, LabeledValue, MetricType, Value, single
from gpuagent.core.metrics.process import PROCESS_LABELS
from gpuagent.core.snapshot import AllocatorReading, ClientReading, ProcessReading


class Allocator(NamedTuple):
    """One process on one GPU as the driver sees it, and as the allocator inside does."""

    process: ProcessReading
    client: ClientReading
    reading: AllocatorReading


def cached_bytes(reading: AllocatorReading) -> int | None:
    """Return the bytes taken from the driver and not handed out: what a release can give back at most."""
    if reading.reserved_bytes is None or reading.allocated_bytes is None:
        return None
    return max(0, reading.reserved_bytes - reading.allocated_bytes)


def outside_bytes(process: ProcessReading, reading: AllocatorReading) -> int | None:
    """Return what the driver counts and torch does not know: context, libraries, other allocators.

    Less than nothing is none: reserved address space may be unmapped (vLLM's sleep, vllm-project/vllm#17117), and the
    two are not read at the same moment.
    """
    if process.used_bytes is None or reading.reserved_bytes is None or process.used_bytes < reading.reserved_bytes:
        return None
    return process.used_bytes - reading.reserved_bytes


def _allocator(
    name: str, text: str, value: Callable[[Allocator], Value], kind: MetricType = MetricType.GAUGE
) -> Family[Allocator]:  # fmt: skip
    def of(allocator: Allocator) -> Iterable[LabeledValue]:
        return (((allocator.client.app,), value(allocator)),)

    return Family(f"gpuagent_torch_{name}", kind, text, "processes", (*PROCESS_LABELS, "app"), of)


def _reported(
    name: str, text: str, field: str, kind: MetricType = MetricType.GAUGE
) -> Family[Allocator]:  # fmt: skip
    """Return a figure as the client reports it."""
    return _allocator(name, text, lambda allocator: getattr(allocator.reading, field), kind)


def _allocator_info(allocator: Allocator) -> Iterable[LabeledValue]:
    client = allocator.client
    own = (client.app, client.backend, client.torch_version, client.python_version, client.client_version)
    return ((own, 1),)


TORCH_FAMILIES: tuple[Family[Allocator], ...] = (
    _reported("memory_allocated_bytes", "Handed out to tensors.", "allocated_bytes"),
    _reported("memory_allocated_peak_bytes", "Most that was handed out since the app last reset its peaks.",
          "allocated_peak_bytes"),
    _reported("memory_reserved_bytes", "Taken from the driver by torch's allocator.", "reserved_bytes"),
    _reported("memory_reserved_peak_bytes", "Most that was taken from the driver since the app last reset its peaks.",
          "reserved_peak_bytes"),
    _reported("memory_active_bytes", "Handed out, or freed and still in use on another stream.", "active_bytes"),
    _reported("memory_inactive_split_bytes",
          "Free pieces of segments that are partly in use, which cannot go back; expandable segments do not count.",
          "inactive_split_bytes"),
    _allocator("memory_cached_bytes", "Reserved and not allocated: what a release can give back at most.",
            lambda allocator: cached_bytes(allocator.reading)),
    _allocator("memory_outside_bytes",
            "What the driver counts and torch does not: context, libraries, other allocators; absent if below 0.",
            lambda allocator: outside_bytes(allocator.process, allocator.reading)),
    _reported("memory_limit_ratio", "Share of the GPU that the process may take, where it has been limited.",
          "limit_ratio"),
    _reported("memory_segments", "Pieces that the allocator has taken from the driver.", "segments"),
    _reported("alloc_retries_total", "Allocations that succeeded only after the cache was emptied.", "alloc_retries",
          MetricType.COUNTER),
    _reported("ooms_total", "Allocations that failed for lack of memory.", "ooms", MetricType.COUNTER),
    _allocator("memory_declared_minimum_bytes", "What the app declares it needs at least.",
            lambda allocator: allocator.client.declared_minimum_bytes),
    _allocator("memory_declared_typical_bytes", "What the app declares it usually needs.",
            lambda allocator: allocator.client.declared_typical_bytes),
    Family("gpuagent_torch_info", MetricType.GAUGE, "Allocator and versions; always 1.", "processes",
           (*PROCESS_LABELS, "app", "backend", "torch_version", "python_version", "client_version"), _allocator_info),
)  # fmt: skip
"""Labels begin with `PROCESS_LABELS`, then `app`."""


@dataclass(frozen=True, slots=True)
class ServerReading:
    """Last reading of one server. What it does not report is None."""

    source: str
    kind: str
    up: bool = False
    problem: str = ""
    """Reason why it could not be read."""
    kv_cache_usage_ratio: float | None = None
    """Used share of the cache that it took when it started: the rest is idle, and is not given back."""
    requests_running: int | None = None
    requests_waiting: int | None = None
    memory_bytes: Mapping[str, int] = field(default_factory=dict)
    """Bytes by purpose: weights, kv_cache, graphs, pinned."""
    model_bytes: Mapping[str, int] = field(default_factory=dict)
    """Bytes on GPUs by model."""


Servers = tuple[ServerReading, ...]
ServerFamily = Family[Servers]

_SERVER_LABELS = ("source", "kind")


def _of_servers(read: Callable[[ServerReading], Value]) -> Callable[[Servers], Iterable[LabeledValue]]:
    return lambda servers: (((server.source, server.kind), read(server)) for server in servers)


def _parts_of_servers(
    read: Callable[[ServerReading], Mapping[str, int]],
) -> Callable[[Servers], Iterable[LabeledValue]]:
    return lambda servers: (
        ((server.source, server.kind, part), size) for server in servers for part, size in read(server).items()
    )


def _server(
    name: str, text: str, of: Callable[[Servers], Iterable[LabeledValue]], labels: tuple[str, ...] = _SERVER_LABELS
) -> ServerFamily:
    return Family(f"gpuagent_source_{name}", MetricType.GAUGE, text, "sources", labels, of)


SOURCE_FAMILIES: tuple[ServerFamily, ...] = (
    _server("up", "1 if the model server told of itself when it was last asked.",
            _of_servers(lambda server: server.up)),
    _server("kv_cache_usage_ratio", "Share of its key-value cache that the server uses, 0 to 1: the rest is idle.",
            _of_servers(lambda server: server.kv_cache_usage_ratio)),
    _server("requests_running", "Requests that the server works on.",
            _of_servers(lambda server: server.requests_running)),
    _server("requests_waiting", "Requests that wait.", _of_servers(lambda server: server.requests_waiting)),
    _server("memory_bytes", "What the server says its memory is for: weights, kv_cache, graphs, pinned (of the host).",
            _parts_of_servers(lambda server: server.memory_bytes), (*_SERVER_LABELS, "part")),
    _server("model_memory_bytes", "What the server reckons a loaded model takes on GPUs.",
            _parts_of_servers(lambda server: server.model_bytes), (*_SERVER_LABELS, "model")),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ClientFigures:
    """The clients' door at a moment."""

    listening: bool
    clients: int = 0
    accepted: int = 0
    lines: int = 0
    events: int = 0
    throttlings: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    """Connections that never became a client, by reason."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Connections that the agent ended, by reason."""
    commands: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Number of commands by command and outcome."""


ClientFamily = Family[ClientFigures]


def _by_reason(read: Callable[[ClientFigures], Mapping[str, int]]) -> Callable[[ClientFigures], Iterable[LabeledValue]]:
    return lambda figures: (((reason,), count) for reason, count in read(figures).items())


def _commands(figures: ClientFigures) -> Iterable[LabeledValue]:
    return (((command, outcome), count) for (command, outcome), count in figures.commands.items())


def _client_counter(name: str, text: str, read: Callable[[ClientFigures], Value]) -> ClientFamily:
    return _client(name, text, single(read), kind=MetricType.COUNTER)


def _client(
    name: str, text: str, of: Callable[[ClientFigures], Iterable[LabeledValue]], labels: tuple[str, ...] = (),
    kind: MetricType = MetricType.GAUGE,
) -> ClientFamily:  # fmt: skip
    return Family(f"gpuagent_{name}", kind, text, "clients", labels, of)


CLIENT_FAMILIES: tuple[ClientFamily, ...] = (
    _client("client_socket_up", "1 while apps with the embedded client can connect.",
            single(lambda figures: figures.listening)),
    _client("clients", "Apps with the embedded client that are connected.", single(lambda figures: figures.clients)),
    _client_counter("client_connections_total", "Connections of embedded clients.", lambda figures: figures.accepted),
    _client("client_connections_refused_total", "Connections that were not taken: of too many, of a false pid...",
            _by_reason(lambda figures: figures.refused), ("reason",), MetricType.COUNTER),
    _client("client_connections_dropped_total", "Connections that the agent ended: malformed lines, stalled...",
            _by_reason(lambda figures: figures.dropped), ("reason",), MetricType.COUNTER),
    _client_counter("client_lines_total", "Lines that embedded clients sent.", lambda figures: figures.lines),
    _client_counter("client_events_total", "Events that apps reported.", lambda figures: figures.events),
    _client_counter("client_throttlings_total", "Times that a client sent more than its share and had to wait.",
           lambda figures: figures.throttlings),
    _client("client_commands_total", "Commands to apps, by what became of them.", _commands, ("command", "outcome"),
            MetricType.COUNTER),
)  # fmt: skip
