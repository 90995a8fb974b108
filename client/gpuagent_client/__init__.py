"""gpuagent-client: what an app's own GPU allocator knows, for the gpuagent on the same node.

    import gpuagent_client

    gpuagent_client.start(app="whisper-api")

Meant to be embedded: it imports the standard library only, and never torch, which the app has loaded or has not.

In reading order: `lifecycle` (start, stop, fork, exit; the parts put together), `link`, `connection` and `session`
(the thread and its conversation), `protocol` (the wire), `allocator` (the only user of torch), `remedies` (what the
agent may ask for), `figures` and `needs` (what the app calls), `serving` (middleware and a gate for servers).
"""

from __future__ import annotations

from gpuagent_client.figures import Measure, Usage, describe, measure, report
from gpuagent_client.lifecycle import start, stop
from gpuagent_client.needs import declare, limit_memory, on_reset
from gpuagent_client.serving.model_slot import ModelSlot
from gpuagent_client.settings import Notice

__version__ = "0.1.0"

__all__ = [
    "Measure",
    "ModelSlot",
    "Notice",
    "Usage",
    "declare",
    "describe",
    "limit_memory",
    "measure",
    "on_reset",
    "report",
    "start",
    "stop",
]
