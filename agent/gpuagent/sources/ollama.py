"""Ollama tells at `/api/ps` which models are loaded (docs/api.md, "List Running Models").

`size_vram` is what its scheduler reckons, not what was measured: compare it with the runner's own memory.
"""

from __future__ import annotations

from gpuagent.core.metrics.clients import ServerReading
from gpuagent.procfs.printable import printable
from gpuagent.sources.fetch import BadAnswer, count, document

PATHS = ("/api/ps",)
_MOST_MODELS = 50
_NAME_BYTES = 128


def read(source: str, body: bytes) -> ServerReading:
    """Return its loaded models. Raises BadAnswer."""
    answer = document(body)
    models = answer.get("models") if isinstance(answer, dict) else None
    if not isinstance(models, list):
        raise BadAnswer("it has no models")
    sizes: dict[str, int] = {}
    for model in models[:_MOST_MODELS]:
        name = model.get("name") if isinstance(model, dict) else None
        size = count(model.get("size_vram")) if isinstance(model, dict) else None
        if isinstance(name, str) and size is not None:
            label = printable(name, _NAME_BYTES)
            sizes[label] = sizes.get(label, 0) + size
    return ServerReading(source, "ollama", up=True, model_bytes=sizes)
