"""Triton tells at `/metrics` on its metrics port, 8002 by default (src/metrics.cc).

Its `nv_gpu_memory_*` are of the whole GPU, not Triton's share, and NVML tells them better: they are left out.
"""

from __future__ import annotations

from collections import defaultdict

from gpuagent.core.metrics.clients import ServerReading
from gpuagent.sources.fetch import BadAnswer, count, samples

PATHS = ("/metrics",)
_PENDING, _PINNED = "nv_inference_pending_request_count", "nv_pinned_memory_pool_used_bytes"
_ANY = "nv_gpu_memory_total_bytes"
"""Is there also where no model is loaded."""


def read(source: str, body: bytes) -> ServerReading:
    """Return the reading of all its models together. Raises BadAnswer."""
    values: dict[str, list[float]] = defaultdict(list)
    for name, value in samples(body, (_PENDING, _PINNED, _ANY)):
        values[name].append(value)
    if not values:
        raise BadAnswer("it has none of Triton's metrics")
    pinned = count(sum(values[_PINNED])) if values[_PINNED] else None
    return ServerReading(
        source,
        "triton",
        up=True,
        requests_waiting=count(sum(values[_PENDING])) if values[_PENDING] else None,
        memory_bytes={} if pinned is None else {"pinned": pinned},
    )
