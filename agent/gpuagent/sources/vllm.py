"""vLLM tells at `/metrics` (vllm/v1/metrics/loggers.py); it takes its share of the GPU up front and gives nothing back.

There are no bytes among its metrics: how much of its cache is idle is what they explain.
"""

from __future__ import annotations

from collections import defaultdict

from gpuagent.core.metrics.clients import ServerReading
from gpuagent.sources.fetch import BadAnswer, samples

PATHS = ("/metrics",)
_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")  # the older name
_RUNNING, _WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"


def read(source: str, body: bytes) -> ServerReading:
    """Return the reading of all its engines together. Raises BadAnswer."""
    values: dict[str, list[float]] = defaultdict(list)
    for name, value in samples(body, (*_USAGE, _RUNNING, _WAITING)):
        values[name].append(value)
    if not values:
        raise BadAnswer("it has none of vLLM's metrics")
    usage = values[_USAGE[0]] or values[_USAGE[1]]
    return ServerReading(
        source,
        "vllm",
        up=True,
        kv_cache_usage_ratio=min(max(usage), 1.0) if usage else None,
        requests_running=int(sum(values[_RUNNING])) if values[_RUNNING] else None,
        requests_waiting=int(sum(values[_WAITING])) if values[_WAITING] else None,
    )
