"""Servers that take most of a GPU when they start, by design: a full GPU is no alarm where one of them holds it.

vLLM takes 90 % by default (`--gpu-memory-utilization`), SGLang and TensorRT-LLM likewise, TensorFlow Serving all of it.
Other programs of TensorFlow and JAX do too, but nothing in a process's name tells: `processes.preallocates` names them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache

from gpuagent.reading import GpuReading, ProcessInfo, ProcessReading

Recognise = Callable[[ProcessInfo], bool]

_BY_DESIGN = (
    r"(?i)\bvllm\b",
    r"(?i)\bsglang\b",
    r"\btrtllm-serve\b",
    r"\blmdeploy\b.*\bserve\b",
    r"\btext-generation-(server|launcher)\b",
    r"\btensorflow_model_server\b",
)
_LEAST_SHARE = 0.5
"""Of the used memory: a GPU that is full because of others is full."""


@lru_cache(maxsize=8)
def recogniser(patterns: tuple[str, ...] = ()) -> Recognise:
    """A function that tells whether a process preallocates.

    `patterns` are regular expressions of the user's, searched for in the process's name and command line beside the
    built-in ones. Raises re.error.
    """
    expressions = [re.compile(pattern) for pattern in (*_BY_DESIGN, *patterns)]

    @lru_cache(maxsize=4096)
    def matches(text: str) -> bool:
        return any(expression.search(text) for expression in expressions)

    return lambda info: matches(f"{info.name} {info.command}")


def preallocated(
    gpus: Iterable[GpuReading], processes: Iterable[ProcessReading], recognise: Recognise
) -> Iterator[tuple[GpuReading, bool]]:
    """For each GPU whose processes are known, whether such servers hold most of its used memory."""
    held: dict[str, int] = {}
    for process in processes:
        if process.info is not None and process.used_bytes and recognise(process.info):
            held[process.gpu_uuid] = held.get(process.gpu_uuid, 0) + process.used_bytes
    for gpu in gpus:
        if gpu.processes_known and gpu.memory is not None and gpu.memory.used_bytes is not None:
            share = held.get(gpu.identity.uuid, 0)
            yield gpu, share > 0 and share >= _LEAST_SHARE * gpu.memory.used_bytes
