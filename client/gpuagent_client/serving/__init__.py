"""Serve requests within the GPU's memory: measure what each needs, limit how many run, and give memory back in between.

    from gpuagent_client.serving import AsgiMiddleware, Gate

    app.add_middleware(AsgiMiddleware, gate=Gate(inside=2, waiting=16), paths=["/predict"])

In reading order: `limiter` (how many requests use the GPU at a time), `meter` (what a request needs, by route),
`middleware` (both put together), `asgi` and `wsgi`, `releases` and `recycling` (what is due between requests),
`gunicorn` (its configuration), `model_slot` (one model at a time).
"""

from __future__ import annotations

from gpuagent_client.serving.asgi import AsgiMiddleware
from gpuagent_client.serving.limiter import ConcurrencyLimiter, QueueFull, StillBusy
from gpuagent_client.serving.meter import Change, RouteSummary, Spread
from gpuagent_client.serving.middleware import RequestMemory, routes
from gpuagent_client.serving.model_slot import Loaded, ModelSlot, Returned
from gpuagent_client.serving.recycling import Recycling
from gpuagent_client.serving.wsgi import WsgiMiddleware

__all__ = [
    "AsgiMiddleware",
    "Change",
    "ConcurrencyLimiter",
    "Full",
    "Gate",
    "Loaded",
    "ModelSlot",
    "QueueFull",
    "Recycling",
    "RequestMemory",
    "Returned",
    "RouteSummary",
    "Spread",
    "StillBusy",
    "WsgiMiddleware",
    "route_summaries",
]

Gate = ConcurrencyLimiter
"""Name in the documentation, and in the code of apps."""
Full = QueueFull
"""Name in the documentation, likewise."""


def route_summaries() -> dict[str, RouteSummary]:
    """Return what the requests of this process needed, by route, the one that needs most first."""
    return routes.summaries()
