"""gpuagent-client: what an app's own GPU allocator knows, for the gpuagent on the same node.

    import gpuagent_client

    gpuagent_client.start(app="whisper-api")

Meant to be embedded: it imports the standard library only, and never torch, which the app has loaded or has not.

In reading order: `lifecycle` (start, stop, fork, exit; the thread that keeps a connection), `connection` and `session`
(the conversation), `protocol` (the wire), `allocator` (the only user of torch), `commands` (what the agent may ask
for), `api` (what the app calls), `settings` and `errors`; `serving` (middleware and a limiter for servers), `blame`
(who holds the memory).
"""

from __future__ import annotations

from gpuagent_client.api import Measure, Usage, declare, describe, limit_memory, measure, on_reset, report
from gpuagent_client.lifecycle import start, stop
from gpuagent_client.serving.model_slot import ModelSlot
from gpuagent_client.settings import Notice

__version__ = "0.2.0"

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
