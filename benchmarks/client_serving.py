"""What the client's middlewares cost a request: `python -m benchmarks.client_serving`.

The allocator below is a made-up one that answers at once; torch's own call takes about 5 us more for each of the two
readings (`torch._C._cuda_memoryStats`).
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tests.client.apps.faketorch import GIB, FakeTorch
from tests.client.serving.bench import FakeProcess

from gpuagent_client.lifecycle import ClientProcess
from gpuagent_client.serving import AsgiMiddleware, Gate, WsgiMiddleware

REQUESTS, ROUNDS = 5000, 9


class QuickTorch(FakeTorch):
    """Makes its figures once: the price of making them is not the middleware's."""

    def __init__(self) -> None:
        super().__init__()
        self.start_cuda().allocate(GIB)
        answer = self.memory_stats(0)
        below: ModuleType = self.modules["torch._C"]
        below.__dict__["_cuda_memoryStats"] = lambda device: answer


async def _asgi_app(scope: Any, receive: Any, send: Any) -> None:
    pass


def _wsgi_app(environ: Any, start_response: Any) -> list[bytes]:
    return [b"ok"]


async def _nothing(*_: Any) -> None:
    pass


def _asgi_seconds(app: Any) -> float:
    async def run() -> float:
        scopes = [{"type": "http", "method": "GET", "path": "/predict/17"} for _ in range(REQUESTS)]
        started = time.perf_counter()
        for scope in scopes:
            await app(scope, _nothing, _nothing)
        return time.perf_counter() - started

    return asyncio.run(run())


def _wsgi_seconds(app: Any) -> float:
    environs = [{"REQUEST_METHOD": "GET", "PATH_INFO": "/predict/17"} for _ in range(REQUESTS)]
    started = time.perf_counter()
    for environ in environs:
        app(environ, _nothing)
    return time.perf_counter() - started


def _microseconds(measure: Callable[[Any], float], bare: Any, wrapped: Any) -> float:
    """The median of rounds, each with the bare app right beside it."""
    rounds = [measure(wrapped) - measure(bare) for _ in range(ROUNDS)]
    return statistics.median(rounds) / REQUESTS * 1e6


def main() -> None:
    """Print the table."""
    process: ClientProcess = FakeProcess(QuickTorch())
    cold: ClientProcess = FakeProcess(FakeTorch())
    rows = [
        ("ASGI, figures", _asgi_seconds, _asgi_app, AsgiMiddleware(_asgi_app, process=process)),
        ("ASGI, figures and gate", _asgi_seconds, _asgi_app,
         AsgiMiddleware(_asgi_app, Gate(4, state=process.state), paths=["/predict"], release_every=10**9,
                        process=process)),
        ("ASGI, gate, no CUDA", _asgi_seconds, _asgi_app,
         AsgiMiddleware(_asgi_app, Gate(4, state=cold.state), process=cold)),
        ("ASGI, another path", _asgi_seconds, _asgi_app,
         AsgiMiddleware(_asgi_app, Gate(4, state=process.state), paths=["/other"], process=process)),
        ("WSGI, figures and gate", _wsgi_seconds, _wsgi_app,
         WsgiMiddleware(_wsgi_app, Gate(4, state=process.state), process=process)),
    ]  # fmt: skip
    for name, measure, bare, wrapped in rows:
        print(f"{name:26} {_microseconds(measure, bare, wrapped):6.1f} us")  # noqa: T201


if __name__ == "__main__":
    main()
