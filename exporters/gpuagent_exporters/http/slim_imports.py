"""uvicorn and prometheus_client without the programs that they carry along: 2 MiB that nothing here runs.

What uvicorn re-exports from its own command line (click, the supervisors of workers) is used by nobody here; see
`server`. prometheus_client has an HTTP server and a client for push gateways, by the ones of the standard library.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


@contextmanager
def absent(*names: str) -> Iterator[None]:
    """Replace these modules by empty ones, in which any name is a class; who imports them later has them."""
    put = [name for name in names if name not in sys.modules]
    for name in put:
        module = ModuleType(name, "Not loaded: see gpuagent_exporters.http.slim_imports.")
        setattr(module, "__getattr__", lambda _: object)  # noqa: B010  of the module, PEP 562
        sys.modules[name] = module
    try:
        yield
    finally:
        for name in put:
            del sys.modules[name]


with absent("uvicorn.main"):
    from uvicorn.config import Config
    from uvicorn.protocols.http.h11_impl import H11Protocol
    from uvicorn.server import ServerState

with absent("http.server", "urllib.request", "wsgiref.simple_server"):
    from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
    from prometheus_client.metrics_core import Metric
    from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
    from prometheus_client.registry import Collector

__all__ = [
    "Collector",
    "CollectorRegistry",
    "Config",
    "H11Protocol",
    "Metric",
    "ProcessCollector",
    "ServerState",
    "generate_latest",
    "generate_openmetrics",
]
