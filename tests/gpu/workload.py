"""Programs that use a GPU, each in a process of its own: `python workload.py NAME ARGS... [--dry]`.

A program prints a line of JSON when it is ready, and one as the answer to each line `[command, args...]` of its input.
It ends with its input. Memory is plain cudaMalloc's, through torch; managed memory and the
GPU's settings are left alone.
With --dry a stand-in takes torch's place, or torch on the CPU where tensors are wanted.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import signal
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from statistics import median
from typing import Any

MIB = 2**20
DRY = "--dry" in sys.argv
Commands = dict[str, Callable[..., dict[str, Any]]]


class CannotRun(Exception):
    """Raised where this machine lacks what a program needs, with the reason."""


def find_torch(*, tensors: bool = False) -> Any:
    """Return torch with CUDA up; in a dry run the stand-in, or torch itself where `tensors` are wanted."""
    if DRY and not tensors:
        from tests.client.apps.faketorch import FakeTorch

        return FakeTorch().install().start_cuda()
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError as error:
        raise CannotRun(f"no torch for {sys.executable}: {error}") from None
    if not DRY and not torch.cuda.is_available():
        raise CannotRun(f"torch {torch.__version__} sees no CUDA")
    if not DRY:
        torch.cuda.init()
    return torch


def start_client(app: str) -> None:
    """Embed the client, which reports as often as it can."""
    import gpuagent_client

    gpuagent_client.start(app=app, interval=0.2)


def stats(torch: Any) -> dict[str, Any]:
    """The allocator's figures: those of the client, and torch's own. Bytes; None where a stand-in has none."""
    from gpuagent_client import lifecycle

    reading = lifecycle.allocator.read()
    client = dict(reading.devices[0].figures) if reading.devices else {"error": reading.error}
    nested = torch.memory_stats(0) if DRY else torch._C._cuda_memoryStats(0)
    names = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")
    own = {name: nested[name]["all"]["current"] for name in names}
    free, total = (None, None) if DRY else torch.cuda.mem_get_info(0)
    return {"client": client, "torch": own, "free_bytes": free, "total_bytes": total}


def synchronize(torch: Any) -> None:
    """Wait for the GPU."""
    if not DRY:
        torch.cuda.synchronize()


def hold(size: str, stubborn: str = "") -> tuple[dict[str, Any], Commands]:
    """Hold tensors of so many bytes; with `stubborn` SIGTERM does not end it."""
    if stubborn == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    torch = find_torch()
    start_client("hold")
    held: list[Any] = []
    if DRY:
        torch.allocate(int(size))
    else:
        held += [torch.zeros(64 * MIB, dtype=torch.uint8, device="cuda") for _ in range(int(size) // (64 * MIB))]
    synchronize(torch)

    def free() -> dict[str, Any]:
        """Let go of the tensors: torch keeps the memory."""
        held.clear()
        if DRY:
            torch.free(int(size))
        return stats(torch)

    def grow(more: int) -> dict[str, Any]:
        """Ask for so much more, and survive a refusal."""
        if DRY:
            return {"error": "none: a stand-in is not limited"}
        try:
            held.append(torch.empty(more, dtype=torch.uint8, device="cuda"))
        except torch.cuda.OutOfMemoryError as error:
            return {"error": str(error).partition(".")[0]}
        return {"error": ""}

    return {"taken_bytes": int(size)}, {"stats": lambda: stats(torch), "free": free, "grow": grow}


def matmul(size: str) -> tuple[dict[str, Any], Commands]:
    """Multiply matrices on request, and hold so many bytes."""
    if DRY:
        return {"taken_bytes": int(size)}, {"run": _count}
    torch = find_torch()
    held = torch.zeros(int(size), dtype=torch.uint8, device="cuda")
    left, right = (torch.randn(8192, 8192, device="cuda", dtype=torch.float16) for _ in range(2))

    def run(seconds: float) -> dict[str, Any]:
        """Multiply for so long; the time of each product by CUDA's events."""
        took, until = [], time.monotonic() + seconds
        while time.monotonic() < until:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(4):
                torch.matmul(left, right)
            end.record()
            end.synchronize()
            took.append(begin.elapsed_time(end) / 4000)
        return {"median_seconds": median(took), "products": 4 * len(took), "most_seconds": max(took)}

    torch.cuda.synchronize()
    return {"taken_bytes": held.numel()}, {"run": run}


def _count(seconds: float) -> dict[str, Any]:
    took, until = [], time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.perf_counter()
        sum(range(10000))
        took.append(time.perf_counter() - began)
    return {"median_seconds": median(took), "products": len(took), "most_seconds": max(took)}


def compute() -> tuple[dict[str, Any], Commands]:
    """Compute the same thing again and again in a thread, and tell each different result."""
    torch = find_torch(tensors=True)
    start_client("compute")
    device = "cpu" if DRY else "cuda"
    if DRY:
        torch.set_num_threads(1)
    seed = torch.Generator(device="cpu").manual_seed(7)
    size = 128 if DRY else 2048
    start = torch.randn(size, size, generator=seed).to(device)
    kept: list[Any] = []
    results: dict[str, int] = {}

    def once() -> str:
        value = start
        for _ in range(8):
            value = torch.tanh(value @ start)
        numbers = value.cpu().flatten().tolist() if DRY else value.double().sum(0).cpu().tolist()
        return hashlib.sha256(repr(numbers).encode()).hexdigest()

    def work() -> None:
        while True:
            digest = once()
            results[digest] = results.get(digest, 0) + 1
            kept.append(start[:64] + len(kept))  # grows, so that there is somebody to blame
            if len(kept) > 2000:
                kept.clear()
            time.sleep(0.01)

    def digests() -> dict[str, Any]:
        """Results since the last time, each with how often it came."""
        found = dict(results)
        results.clear()
        return {"results": found}

    once()
    threading.Thread(target=work, daemon=True).start()
    return {"pid": os.getpid()}, {"digests": digests}


CACHE_ENTRIES = 100


def served(cause: str) -> tuple[dict[str, Any], Commands]:
    """The served example's model, cache and leak without its HTTP server: a request each few milliseconds."""
    torch = find_torch(tensors=True)
    model: Any = importlib.import_module("model")
    leaks: Any = importlib.import_module("leaks")
    if not DRY:
        model.WIDTH = 4096  # 16 KiB a request and more: a minute is enough to see it in the driver's figures
    start_client(f"served-{cause}")
    loaded = model.Loaded()
    loaded.module()  # as the served example does: made in inference mode its parameters could not be in a graph
    recent: OrderedDict[str, Any] = OrderedDict()
    served_requests = [0]

    def request(number: int) -> None:
        words = loaded.words(f"request {number}{' more' * (number % 5)}")
        with torch.inference_mode():
            loaded.module()(words).softmax(1)
            recent[str(number)] = loaded.module().embedding(words)
            while len(recent) > CACHE_ENTRIES:
                recent.popitem(last=False)
        if cause != "healthy":
            leaks.LEAKS[cause](loaded, words)

    def work() -> None:
        while True:
            request(served_requests[0])
            served_requests[0] += 1
            time.sleep(0.02 if DRY else 0.0025)

    request(0)
    threading.Thread(target=work, daemon=True).start()
    return {"pid": os.getpid()}, {"requests": lambda: {"requests": served_requests[0]}}


def allocator(mode: str) -> tuple[dict[str, Any], Commands]:
    """Use the allocator in one of its modes; the settings that it takes are in the environment."""
    torch = find_torch()
    start_client(f"allocator-{mode}")
    held: list[Any] = []
    note: dict[str, Any] = {}
    if DRY:
        torch.allocate(1024 * MIB)
        torch.free(512 * MIB)
    else:
        _USES[mode](torch, held, note)
        torch.cuda.synchronize()
    return {"note": note}, {"stats": lambda: {**stats(torch), "note": note}}


def _blocks(torch: Any, held: list[Any], note: dict[str, Any]) -> None:
    """Take four blocks of 256 MiB, and let two of them go."""
    held += [torch.zeros(256 * MIB, dtype=torch.uint8, device="cuda") for _ in range(4)]
    torch.cuda.synchronize()
    del held[::2]


def _growing(torch: Any, held: list[Any], note: dict[str, Any]) -> None:
    """Take ever larger blocks, one at a time: segments that can grow hold little more than the largest."""
    for size in range(100, 700, 50):
        held[:] = []
        held.append(torch.zeros(size * MIB, dtype=torch.uint8, device="cuda"))


def _graph(torch: Any, held: list[Any], note: dict[str, Any]) -> None:
    """Capture a graph while the client reads every 0.2 s, and replay it."""
    value = torch.randn(1024, 1024, device="cuda")
    expected = torch.tanh(torch.tanh(value @ value) @ value)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = torch.tanh(torch.tanh(value @ value) @ value)
        time.sleep(1)
        large = torch.zeros(256 * MIB, dtype=torch.uint8, device="cuda")
    graph.replay()
    torch.cuda.synchronize()
    note["same"] = bool(torch.allclose(result, expected, atol=1e-3))
    held += [graph, result, large]


def _pinned(torch: Any, held: list[Any], note: dict[str, Any]) -> None:
    """Pin 512 MiB of the host, beside 256 MiB of the GPU."""
    held.append(torch.zeros(512 * MIB, dtype=torch.uint8, pin_memory=True))
    held.append(torch.zeros(256 * MIB, dtype=torch.uint8, device="cuda"))


def _streams(torch: Any, held: list[Any], note: dict[str, Any]) -> None:
    """Take and free blocks on four streams: each has a cache of its own."""
    for stream in [torch.cuda.Stream() for _ in range(4)]:
        with torch.cuda.stream(stream):
            held.append(torch.zeros(128 * MIB, dtype=torch.uint8, device="cuda"))
            torch.zeros(128 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()


_USES: dict[str, Callable[[Any, list[Any], dict[str, Any]], None]] = {
    "native": _blocks,
    "expandable": _growing,
    "async": _blocks,
    "graphs": _graph,
    "pinned": _pinned,
    "streams": _streams,
}


def requests() -> tuple[dict[str, Any], Commands]:
    """Time requests with the client's middleware and without it, each with a small matrix product."""
    import asyncio

    from gpuagent_client import lifecycle
    from gpuagent_client.serving import AsgiMiddleware, Gate

    torch = find_torch()
    start_client("requests")
    value = None if DRY else torch.randn(512, 512, device="cuda")
    if DRY:
        torch.allocate(MIB)

    async def bare(scope: Any, receive: Any, send: Any) -> None:
        if value is not None:
            torch.matmul(value, value)
            torch.cuda.synchronize()

    async def nothing(*_: Any) -> None:
        pass

    wrapped = AsgiMiddleware(bare, gate=Gate(4), paths=["/predict"])

    async def microseconds(app: Any, count: int) -> float:
        took = []
        for _ in range(count):
            began = time.perf_counter()
            await app({"type": "http", "method": "GET", "path": "/predict/17", "headers": []}, nothing, nothing)
            took.append(time.perf_counter() - began)
        return median(took) * 1e6

    def run(count: int) -> dict[str, Any]:
        """Medians in microseconds."""
        asyncio.run(microseconds(wrapped, 50))
        readings = []
        for _ in range(count):
            began = time.perf_counter()
            lifecycle.allocator.read()
            readings.append(time.perf_counter() - began)
        return {
            "bare": asyncio.run(microseconds(bare, count)),
            "wrapped": asyncio.run(microseconds(wrapped, count)),
            "reading": median(readings) * 1e6,
        }

    return {}, {"run": run}


def fill(share: str) -> tuple[dict[str, Any], Commands]:
    """Take so large a share of the free memory, then ask for more than is left, on request."""
    torch = find_torch()
    start_client("fill")
    held: list[Any] = []
    if not DRY:
        free = torch.cuda.mem_get_info(0)[0]
        held += [torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
                 for _ in range(int(free * float(share)) // (256 * MIB))]  # fmt: skip
        torch.cuda.synchronize()

    def overflow() -> dict[str, Any]:
        """Ask for more than is left, and survive it."""
        if DRY:
            return {"error": "none: a stand-in does not run out of memory"}
        try:
            torch.empty(torch.cuda.mem_get_info(0)[1], dtype=torch.uint8, device="cuda")
        except torch.cuda.OutOfMemoryError as error:
            return {"error": str(error).partition(".")[0], **stats(torch)}
        return {"error": ""}

    taken = 256 * MIB * len(held)
    return {"taken_bytes": taken}, {"overflow": overflow, "stats": lambda: stats(torch)}


def jax() -> tuple[dict[str, Any], Commands]:
    """Hold a gigabyte with JAX, which may take a tenth of the GPU in advance (set in the environment)."""
    try:
        numpy: Any = importlib.import_module("jax.numpy")
        devices = importlib.import_module("jax").devices()
    except (ImportError, RuntimeError) as error:
        raise CannotRun(f"no JAX for {sys.executable}: {error}") from None
    if devices[0].platform not in {"gpu", "cuda"}:
        raise CannotRun(f"JAX sees no GPU, only {devices[0].platform}")
    held = numpy.zeros(1024 * MIB, dtype="uint8").block_until_ready()
    start_client("jax")
    return {"taken_bytes": held.nbytes}, {}


def cupy() -> tuple[dict[str, Any], Commands]:
    """Hold a gigabyte with CuPy."""
    try:
        module: Any = importlib.import_module("cupy")
        held = module.zeros(1024 * MIB, dtype="uint8")
    except ImportError as error:
        raise CannotRun(f"no CuPy for {sys.executable}: {error}") from None
    start_client("cupy")
    pool = module.get_default_memory_pool()
    return {"taken_bytes": int(held.nbytes)}, {"pool": lambda: {"bytes": int(pool.total_bytes())}}


PROGRAMS: dict[str, Callable[..., tuple[dict[str, Any], Commands]]] = {
    one.__name__: one for one in (hold, matmul, compute, served, allocator, requests, fill, jax, cupy)
}


def main(name: str, *args: str) -> None:
    """Run a program until its input ends. Whatever it prints by itself goes to standard error."""
    answers, sys.stdout = sys.stdout, sys.stderr

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    try:
        ready, commands = PROGRAMS[name](*args)
    except CannotRun as reason:
        say({"cannot": str(reason)})
        return
    say(ready)
    for line in sys.stdin:
        command, *words = json.loads(line)
        say(commands[command](*words))


if __name__ == "__main__":
    sys.path = [path for path in sys.path if path != os.path.dirname(os.path.abspath(__file__))]  # noqa: PTH100, PTH120
    given = sys.argv[1:]
    own = given[: given.index("--")] if "--" in given else given  # the rest is only to be seen by others
    main(*[word for word in own if word != "--dry"])
