"""uvicorn, starlette and prometheus_client without what they carry along: 3 MiB of which nothing runs here.

What uvicorn re-exports from its own command line (click, the supervisors of workers) is used by nobody here; see
`server`. It configures no logging here, from no file. prometheus_client has an HTTP server and a client for push
gateways, by the ones of the standard library. starlette escapes HTML in the pages of its debug mode alone, for which it
would have all entities of HTML.
"""

from __future__ import annotations

from gpuagent.core.slim_imports import absent

with absent("uvicorn.main", "logging.config", "configparser"):
    from uvicorn.config import Config
    from uvicorn.protocols.http.h11_impl import H11Protocol
    from uvicorn.server import ServerState

with absent("html"):
    from starlette.applications import Starlette

with absent("http.server", "socketserver", "urllib.error", "urllib.request", "wsgiref.simple_server"):
    from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
    from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

__all__ = [
    "CollectorRegistry",
    "Config",
    "H11Protocol",
    "ProcessCollector",
    "ServerState",
    "Starlette",
    "generate_latest",
    "generate_openmetrics",
]
