"""SGLang tells at `/server_info`, before at `/get_server_info` (sglang/srt/entrypoints/http_server.py).

Its sizes are in GiB, though called GB: it divides by 2^30 (get_available_gpu_memory in sglang/srt/utils).
"""

from __future__ import annotations

from typing import Any

from gpuagent.core.metrics.clients import ServerReading
from gpuagent.core.units import GIB
from gpuagent.sources.fetch import BadAnswer, count, document

PATHS = ("/server_info", "/get_server_info")
_PARTS = {"weight": "weights", "kvcache": "kv_cache", "graph": "graphs", "cuda_graph": "graphs"}
"""By the name that a version has for it."""


def read(source: str, body: bytes) -> ServerReading:
    """Return the reading of all its ranks together. Raises BadAnswer."""
    answer = document(body)
    states = answer.get("internal_states") if isinstance(answer, dict) else None
    ranks = [state for state in states if isinstance(state, dict)] if isinstance(states, list) else []
    if not ranks:
        raise BadAnswer("it has no internal_states")
    memory: dict[str, int] = {}
    for rank in ranks:
        usage = rank.get("memory_usage")
        for name, gib in usage.items() if isinstance(usage, dict) else ():
            part = _PARTS.get(name)
            size = count(_times(gib, GIB))
            if part and size is not None:
                memory[part] = memory.get(part, 0) + size
    return ServerReading(source, "sglang", up=True, memory_bytes=memory)


def _times(value: Any, factor: int) -> Any:  # noqa: ANN401  checked by whoever takes it
    return value * factor if isinstance(value, int | float) and not isinstance(value, bool) else None
