"""Ask model servers over HTTP what their memory is for: vLLM, SGLang, Ollama, Triton.

NVML is the truth for bytes; a server's endpoint explains what they are for. Every configured server is asked at its
interval, bounded in time and size; no redirect is followed and no proxy of the environment is used. One that does not
answer is down, and delays no other. A kind of server is a `read_...` function and a line in `_KINDS`.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import math
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from gpuagent.core.api_client import hang_up
from gpuagent.core.background import in_daemon_thread
from gpuagent.core.metrics.clients import ServerReading, Servers
from gpuagent.core.units import GIB
from gpuagent.procfs.files import printable

if TYPE_CHECKING:
    from gpuagent.config.agent import ServerSource

_SAMPLE = re.compile(rb"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{.*\})?[ \t]+([^ \t\n]+)", re.MULTILINE)
_MOST = 2**63 - 1


class BadAnswer(ValueError):
    """An answer of another form, and what was missing."""


def document(body: bytes) -> Any:  # noqa: ANN401  whatever JSON can hold
    """Return the JSON in a body. Raises BadAnswer."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise BadAnswer("the answer is not JSON") from None


def samples(body: bytes, names: Collection[str]) -> Iterator[tuple[str, float]]:
    """Yield the finite values of metrics by these names, whatever their labels."""
    wanted = {name.encode() for name in names}
    for line in body.splitlines():
        found = _SAMPLE.match(line)
        if found is None or found[1] not in wanted:
            continue
        try:
            value = float(found[2])
        except ValueError:
            continue
        if math.isfinite(value):
            yield found[1].decode(), value


def count(value: object) -> int | None:
    """Return a count or a size in bytes; None if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST:
        return None
    return int(value)


MAX_BYTES = 4 * 1024**2
TIMEOUT_SECONDS = 5.0


class FetchError(Exception):
    """No answer that can be used, and why. The URL is not repeated: it may hold a password."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


def fetch(url: str, timeout_seconds: float = TIMEOUT_SECONDS, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the body that a GET of the URL answers with status 200. The time is for all of it, however it trickles in.

    Raises:
        FetchError: there is none.
    """
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    deadline = time.monotonic() + timeout_seconds
    try:
        connection = kind(parts.hostname or "", parts.port, timeout=timeout_seconds)
    except ValueError as error:
        raise FetchError(str(error)) from None
    guard = threading.Timer(timeout_seconds, hang_up, (connection,))
    guard.daemon = True
    try:
        connection.connect()
        guard.start()
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", path or "/", headers={"Accept": "application/json, text/plain"})
        with connection.getresponse() as response:
            body = response.read(max_bytes + 1)
            status = response.status
    except (OSError, http.client.HTTPException) as error:
        late = time.monotonic() >= deadline or isinstance(error, TimeoutError)
        reason = "no answer in time" if late else getattr(error, "strerror", None) or type(error).__name__
        raise FetchError(reason) from None
    finally:
        guard.cancel()
        connection.close()
    if time.monotonic() >= deadline:  # what has arrived was cut off
        raise FetchError("no answer in time")
    if status != http.HTTPStatus.OK:
        raise FetchError(f"HTTP {status}", status)
    if len(body) > max_bytes:
        raise FetchError(f"the answer is larger than {max_bytes // 1024**2} MiB")
    return body


_OLLAMA_PATHS = ("/api/ps",)
_MOST_MODELS = 50
_NAME_BYTES = 128


def read_ollama(source: str, body: bytes) -> ServerReading:
    """Return the loaded models of an Ollama server. Raises BadAnswer.

    `/api/ps` reports them (docs/api.md, "List Running Models"). `size_vram` is what its scheduler reckons, not what
    was measured: compare it with the runner's own memory.
    """
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


_SGLANG_PATHS = ("/server_info", "/get_server_info")
_PARTS = {"weight": "weights", "kvcache": "kv_cache", "graph": "graphs", "cuda_graph": "graphs"}
"""Parts of the memory by the names that versions of the server have for them."""


def read_sglang(source: str, body: bytes) -> ServerReading:
    """Return the reading of all ranks of an SGLang server together. Raises BadAnswer.

    `/server_info` reports them, before `/get_server_info` (sglang/srt/entrypoints/http_server.py). Its sizes are in
    GiB, though called GB: it divides by 2^30 (get_available_gpu_memory in sglang/srt/utils).
    """
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


_TRITON_PATHS = ("/metrics",)
_PENDING, _PINNED = "nv_inference_pending_request_count", "nv_pinned_memory_pool_used_bytes"
_ANY = "nv_gpu_memory_total_bytes"
"""Metric that is there also where no model is loaded."""


def read_triton(source: str, body: bytes) -> ServerReading:
    """Return the reading of all models of a Triton server together. Raises BadAnswer.

    `/metrics` on its metrics port, 8002 by default, reports them (src/metrics.cc). Its `nv_gpu_memory_*` are of the
    whole GPU, not Triton's share, and NVML tells them better: they are left out.
    """
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


_VLLM_PATHS = ("/metrics",)
_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")  # the older name
_RUNNING, _WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"


def read_vllm(source: str, body: bytes) -> ServerReading:
    """Return the reading of all engines of a vLLM server together. Raises BadAnswer.

    `/metrics` reports them (vllm/v1/metrics/loggers.py). It takes its share of the GPU up front and gives nothing
    back; there are no bytes among its metrics: how much of its cache is idle is what they explain.
    """
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


log = logging.getLogger(__name__)

Fetch = Callable[[str], bytes]


class _Kind(NamedTuple):
    """How servers of one kind are asked."""

    paths: tuple[str, ...]
    """Tried one after the other where the server does not know one."""
    read: Callable[[str, bytes], ServerReading]
    """Return the reading of an answer, by the name of the source. Raises BadAnswer."""


_KINDS: Mapping[str, _Kind] = {
    "vllm": _Kind(_VLLM_PATHS, read_vllm),
    "sglang": _Kind(_SGLANG_PATHS, read_sglang),
    "ollama": _Kind(_OLLAMA_PATHS, read_ollama),
    "triton": _Kind(_TRITON_PATHS, read_triton),
}
_NOT_FOUND = 404


class Sources:
    """For one event loop."""

    def __init__(self, sources: Iterable[ServerSource], fetch: Fetch = fetch) -> None:
        self._sources = tuple(sources)
        self._fetch = fetch
        self._readings: dict[str, ServerReading] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def open(self) -> None:
        """Begin to ask."""
        self._tasks = [
            asyncio.create_task(self._follow(source), name=f"source {source.name}") for source in self._sources
        ]

    async def close(self) -> None:
        """Ask no more. A question that is on its way is left behind."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def reload(self, sources: Iterable[ServerSource]) -> None:
        """Ask these servers from now on; those that stay are asked anew."""
        new = tuple(sources)
        if new == self._sources:
            return
        await self.close()
        self._sources = new
        self._readings = {source.name: self._readings[source.name] for source in new if source.name in self._readings}
        self.open()

    def readings(self) -> Servers:
        """Return the last reading of each server, in their order; those not asked yet are left out."""
        return tuple(self._readings[source.name] for source in self._sources if source.name in self._readings)

    async def _follow(self, source: ServerSource) -> None:
        while True:
            reading = await in_daemon_thread(partial(self.ask, source), f"source {source.name}")
            before = self._readings.get(source.name)
            self._readings[source.name] = reading
            if before is None or before.up != reading.up:
                log.info("source %s: %s", source.name, "it answers" if reading.up else reading.problem)
            await asyncio.sleep(source.interval)

    def ask(self, source: ServerSource) -> ServerReading:
        """Ask once. Whatever goes wrong is a reading; for a thread of its own."""
        kind = _KINDS[source.kind]
        problem = ""
        for path in kind.paths:
            try:
                return kind.read(source.name, self._fetch(source.url + path))
            except FetchError as error:
                problem = str(error)
                if error.status != _NOT_FOUND:
                    break
            except BadAnswer as error:
                problem = str(error)
                break
        return ServerReading(source.name, source.kind, problem=problem)
