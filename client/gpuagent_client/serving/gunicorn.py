"""Helpers for a gunicorn configuration: count the workers that fit into GPU memory, and recycle those that grow.

The memory of the GPUs that this process may see is asked of NVML by ctypes: no package, no CUDA, no child process.
https://docs.nvidia.com/deploy/nvml-api/

    # gunicorn.conf.py
    from gpuagent_client.serving.gunicorn import GIB, Recycling, count_workers

    workers = count_workers(typical_bytes=6 * GIB)
    recycling = Recycling(above_bytes=8 * GIB, after_requests=10_000)
    post_worker_init = recycling.post_worker_init
    post_request = recycling.post_request

With uvicorn's worker class the app needs the middleware too: that class calls no hooks.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from gpuagent_client.errors import log
from gpuagent_client.serving.recycling import Recycling

_SUCCESS = 0
_NOT_SUPPORTED = 3
_UUID_BYTES = 96  # NVML_DEVICE_UUID_V2_BUFFER_SIZE


class NoNvml(Exception):
    """There is no NVIDIA driver here, or it does not answer."""


class _Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def _load() -> Any:  # noqa: ANN401 - whatever has NVML's functions
    return ctypes.CDLL("libnvidia-ml.so.1")


def total_bytes_of_gpus(environment: Mapping[str, str], load: Callable[[], Any] = _load) -> list[int]:
    """Return the total memory of each GPU, and of each MIG instance, that CUDA_VISIBLE_DEVICES leaves.

    CUDA may count GPUs of different kinds in another order than NVML (CUDA_DEVICE_ORDER): where they differ, name them
    by their UUIDs. GPUs without memory of their own are left out.

    Raises:
        NoNvml: no driver.
    """
    try:
        library = load()
    except OSError as error:
        raise NoNvml(str(error)) from error
    _check(library.nvmlInit_v2(), "nvmlInit_v2")
    try:
        return _totals(library, environment.get("CUDA_VISIBLE_DEVICES"))
    finally:
        library.nvmlShutdown()


def _totals(library: Any, visible: str | None) -> list[int]:  # noqa: ANN401 - ctypes has no types here
    count = ctypes.c_uint()
    _check(library.nvmlDeviceGetCount_v2(ctypes.byref(count)), "nvmlDeviceGetCount_v2")
    handles = [_handle(library, index) for index in range(count.value)]
    if visible is not None:
        handles = _visible(library, handles, visible)
    memories = [_memory(library, handle) for handle in handles]
    return [memory for memory in memories if memory]


def _visible(library: Any, handles: list[ctypes.c_void_p], text: str) -> list[ctypes.c_void_p]:  # noqa: ANN401
    """Return the visible GPUs as CUDA reads the list: what comes after the first wrong word does not count.

    https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#cuda-environment-variables
    """
    chosen = []
    for word in (part.strip() for part in text.split(",")):
        if word.isascii() and word.isdigit() and int(word) < len(handles):
            chosen.append(handles[int(word)])
        elif word.startswith("MIG-"):
            handle = ctypes.c_void_p()
            if library.nvmlDeviceGetHandleByUUID(word.encode(), ctypes.byref(handle)) != _SUCCESS:
                break
            chosen.append(handle)
        else:
            # Any beginning of a UUID that is one GPU's will do.
            matching = [each for each in handles if word.startswith("GPU-") and _uuid(library, each).startswith(word)]
            if len(matching) != 1:
                break
            chosen += matching
    return chosen


def _handle(library: Any, index: int) -> ctypes.c_void_p:  # noqa: ANN401
    handle = ctypes.c_void_p()
    _check(library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)), f"GPU {index}")
    return handle


def _uuid(library: Any, handle: ctypes.c_void_p) -> str:  # noqa: ANN401
    buffer = ctypes.create_string_buffer(_UUID_BYTES)
    _check(library.nvmlDeviceGetUUID(handle, buffer, ctypes.c_uint(_UUID_BYTES)), "nvmlDeviceGetUUID")
    return buffer.value.decode("ascii", "replace")


def _memory(library: Any, handle: ctypes.c_void_p) -> int:  # noqa: ANN401
    memory = _Memory()
    code = library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
    if code == _NOT_SUPPORTED:
        return 0
    _check(code, "nvmlDeviceGetMemoryInfo")
    return int(memory.total)


def _check(code: int, what: str) -> None:
    if code != _SUCCESS:
        raise NoNvml(f"{what} answers error {code}")


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
    """Count the workers that fit: min(2 x cores + 1, what fits on each GPU), at least 1; $GPUAGENT_WORKERS overrides.

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
