"""Serving: which request needs how much, how many are let in, and giving memory back between two of them.

    from gpuagent_client.serving import AsgiMiddleware, Gate

    app.add_middleware(AsgiMiddleware, gate=Gate(inside=2, waiting=16), paths=["/predict"])

In reading order: `gate` (who is let in; `awaiting` is its part for event loops), `meter` and `routes` (what a request
needs), `watch` (both put together), `asgi` and `wsgi`, `releases` and `recycling` (what is due between requests),
`gunicorn` and `totals` (its configuration), `model_slot` and `holders`.
"""

from __future__ import annotations

from gpuagent_client.serving.asgi import AsgiMiddleware
from gpuagent_client.serving.gate import Full, Gate, StillBusy
from gpuagent_client.serving.meter import Change, RouteSummary, Spread
from gpuagent_client.serving.model_slot import Loaded, ModelSlot, Returned
from gpuagent_client.serving.recycling import Recycling
from gpuagent_client.serving.watch import RequestMemory, routes
from gpuagent_client.serving.wsgi import WsgiMiddleware

__all__ = [
    "AsgiMiddleware",
    "Change",
    "Full",
    "Gate",
    "Loaded",
    "ModelSlot",
    "Recycling",
    "RequestMemory",
    "Returned",
    "RouteSummary",
    "Spread",
    "StillBusy",
    "WsgiMiddleware",
    "route_summaries",
]


def route_summaries() -> dict[str, RouteSummary]:
    """Return what the requests of this process needed, by route, the one that needs most first."""
    return routes.summaries()
