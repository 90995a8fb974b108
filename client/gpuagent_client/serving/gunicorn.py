"""For gunicorn's configuration file: how many workers fit on the GPUs, and when one is exchanged for a fresh one.

    # gunicorn.conf.py
    from gpuagent_client.serving.gunicorn import GIB, Recycling, count_workers

    workers = count_workers(typical_bytes=6 * GIB)
    recycling = Recycling(above_bytes=8 * GIB, after_requests=10_000)
    post_worker_init = recycling.post_worker_init
    post_request = recycling.post_request

With uvicorn's worker class the app needs the middleware too: that class calls no hooks.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Callable

from gpuagent_client.guard import log
from gpuagent_client.serving.recycling import Recycling
from gpuagent_client.serving.totals import NoNvml, total_bytes_of_gpus

__all__ = ["GIB", "Recycling", "count_workers"]

GIB = 1024**3
VARIABLE = "GPUAGENT_WORKERS"
MAX_WORKERS = 10_000


def count_workers(
    typical_bytes: int,
    *,
    environment: Mapping[str, str] = os.environ,
    totals: Callable[[Mapping[str, str]], Sequence[int]] = total_bytes_of_gpus,
    cores: Callable[[], int] = lambda: len(os.sched_getaffinity(0)),
) -> int:
    """How many workers fit: min(2 x cores + 1, what fits on each visible GPU), at least 1; $GPUAGENT_WORKERS overrides.

    Asks NVML and not CUDA: CUDA in the parent would break every worker that is forked from it. `typical_bytes` is what
    one worker takes of the GPU as `nvidia-smi` shows it: tensors, cache, the CUDA context. A worker lives on one GPU.
    Without a GPU it is 1.

    Raises:
        ValueError: no size, or $GPUAGENT_WORKERS is no number of workers.
    """
    override = environment.get(VARIABLE, "")
    if override:
        if not (override.isascii() and override.isdigit() and 0 < int(override) <= MAX_WORKERS):
            raise ValueError(f"{VARIABLE} must be a whole number of 1 to {MAX_WORKERS}")
        return int(override)
    if not isinstance(typical_bytes, int) or isinstance(typical_bytes, bool) or typical_bytes <= 0:
        raise ValueError(f"{typical_bytes!r} is no number of bytes")
    try:
        found = totals(environment)
    except NoNvml as error:
        log.warning("one worker, because the GPUs cannot be asked: %s", error)
        return 1
    by_memory = sum(total // typical_bytes for total in found)
    if not by_memory:
        log.warning("one worker, although not one of %.2f GiB fits on the visible GPUs", typical_bytes / GIB)
    return max(1, min(2 * cores() + 1, by_memory))
