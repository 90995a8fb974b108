"""Families of what model servers tell of themselves: what their memory is for. The bytes themselves are NVML's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from gpuagent.catalogue.family import Family, Kind, Labelled, Value


@dataclass(frozen=True, slots=True)
class ServerReading:
    """What one server told last. What it does not tell is None."""

    source: str
    kind: str
    up: bool = False
    problem: str = ""
    """Why it could not be read."""
    kv_cache_usage_ratio: float | None = None
    """Of the cache that it took when it started: the rest is idle, and is not given back."""
    requests_running: int | None = None
    requests_waiting: int | None = None
    memory_bytes: Mapping[str, int] = field(default_factory=dict)
    """By what it is for: weights, kv_cache, graphs, pinned."""
    model_bytes: Mapping[str, int] = field(default_factory=dict)
    """By model, on GPUs."""


Servers = tuple[ServerReading, ...]
ServerFamily = Family[Servers]

_LABELS = ("source", "kind")


def _each(read: Callable[[ServerReading], Value]) -> Callable[[Servers], Iterable[Labelled]]:
    return lambda servers: (((server.source, server.kind), read(server)) for server in servers)


def _parts(read: Callable[[ServerReading], Mapping[str, int]]) -> Callable[[Servers], Iterable[Labelled]]:
    return lambda servers: (
        ((server.source, server.kind, part), size) for server in servers for part, size in read(server).items()
    )


def _family(
    name: str, text: str, of: Callable[[Servers], Iterable[Labelled]], labels: tuple[str, ...] = _LABELS
) -> ServerFamily:
    return Family(f"gpuagent_source_{name}", Kind.GAUGE, text, "sources", labels, of)


SOURCE_FAMILIES: tuple[ServerFamily, ...] = (
    _family("up", "1 if the model server told of itself when it was last asked.", _each(lambda server: server.up)),
    _family("kv_cache_usage_ratio", "Share of its key-value cache that the server uses, 0 to 1: the rest is idle.",
            _each(lambda server: server.kv_cache_usage_ratio)),
    _family("requests_running", "Requests that the server works on.", _each(lambda server: server.requests_running)),
    _family("requests_waiting", "Requests that wait.", _each(lambda server: server.requests_waiting)),
    _family("memory_bytes", "What the server says its memory is for: weights, kv_cache, graphs, pinned (of the host).",
            _parts(lambda server: server.memory_bytes), (*_LABELS, "part")),
    _family("model_memory_bytes", "What the server reckons a loaded model takes on GPUs.",
            _parts(lambda server: server.model_bytes), (*_LABELS, "model")),
)  # fmt: skip
