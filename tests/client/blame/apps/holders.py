"""An app that leaks in one way, beside a busy bounded cache: `holders.py KIND` prints what the census says about it.

A comment marks the line that leaks, for the test. Requests are served by a thread of the app, in the numbers that the
census waits for: see driver.py.
"""
# mypy: disable-error-code="import-not-found, misc"
# ruff: noqa: D103 - each is named for what it does wrong

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextvars
import ctypes
import functools
import gc
import json
import queue
import sys
import threading
from collections.abc import Callable

import torch
from driver import Traffic
from noise import busy_cache, fresh

from gpuagent_client import blame

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16))

LEAKS: dict[str, Callable[[int], object]] = {}


def leak(kind: Callable[[int], object]) -> Callable[[int], object]:
    LEAKS[kind.__name__] = kind
    return kind


# ---- the five classic causes

OUTPUTS: list[torch.Tensor] = []


@leak
def outputs_with_graph(number: int) -> None:
    OUTPUTS.append(model(torch.randn(4, 32)))  # leak: outputs_with_graph


class State:
    total = torch.zeros(())


state = State()


@leak
def running_total(number: int) -> None:
    score = model(torch.randn(4, 32)).exp().sum()
    state.total = state.total + score * score  # leak: running_total


CACHE: dict[tuple[str, int], dict[str, torch.Tensor]] = {}


@leak
def global_dict(number: int) -> None:
    with torch.inference_mode():
        CACHE[("user", number)] = {"emb": fresh()}  # leak: global_dict


class Recorder:
    def __init__(self) -> None:
        self.activations: dict[str, list[torch.Tensor]] = {}

    def hook(self, name: str, module: torch.nn.Module, args: object, output: torch.Tensor) -> None:
        self.activations.setdefault(name, []).append(output.detach().clone())  # leak: forward_hook


recorder = Recorder()


@leak
def forward_hook(number: int) -> None:
    if number == 0:
        model[0].register_forward_hook(functools.partial(recorder.hook, "first"))
    with torch.no_grad():
        model(torch.randn(4, 32))


ERRORS: list[Exception] = []


@leak
def exception(number: int) -> None:
    def infer() -> None:
        batch = fresh()
        raise ValueError(f"cannot infer {batch.shape}")

    try:
        infer()
    except ValueError as error:
        ERRORS.append(error)  # leak: exception


# ---- further holders

CALLBACKS: list[Callable[[], float]] = []


@leak
def closure(number: int) -> None:
    result = fresh()

    def later() -> float:
        return float(result.sum())

    CALLBACKS.append(later)  # leak: closure


class Service:
    def __init__(self) -> None:
        self.recent: collections.deque[torch.Tensor] = collections.deque()

    def serve(self) -> None:
        self.recent.append(fresh())  # leak: deque_attribute


REGISTRY = {"services": [Service()]}


@leak
def deque_attribute(number: int) -> None:
    REGISTRY["services"][0].serve()


@leak
def lru_cache(number: int) -> None:
    embedding_of(number)


@functools.lru_cache(maxsize=None)  # noqa: UP033 - the old way is what is in apps
def embedding_of(number: int) -> torch.Tensor:  # leak: lru_cache -1
    return fresh()


@leak
def bounded_lru_cache(number: int) -> None:
    bounded_embedding_of(number)


@functools.lru_cache(maxsize=100_000)
def bounded_embedding_of(number: int) -> torch.Tensor:  # leak: bounded_lru_cache -1
    return fresh()


LOCAL = threading.local()


@leak
def thread_local(number: int) -> None:
    if not hasattr(LOCAL, "kept"):
        LOCAL.kept = []
    LOCAL.kept.append(fresh())  # leak: thread_local


class Model:
    kept: list[torch.Tensor] = []  # noqa: RUF012 - that is the leak

    def __call__(self) -> None:
        self.kept.append(fresh())  # leak: class_attribute


@leak
def class_attribute(number: int) -> None:
    Model()()


STREAMS: list[object] = []


@leak
def generator(number: int) -> None:
    def stream() -> object:
        hidden = fresh()
        while True:
            yield hidden.sum()

    one = stream()
    next(one)  # type: ignore[call-overload]
    STREAMS.append(one)  # leak: generator


LATER: list[Callable[[], object]] = []


@leak
def partial(number: int) -> None:
    LATER.append(functools.partial(torch.sum, fresh()))  # leak: partial


jobs: queue.Queue[torch.Tensor] = queue.Queue()


@leak
def queue_of_a_worker(number: int) -> None:
    jobs.put(fresh())  # leak: queue_of_a_worker


class Dataset(torch.utils.data.Dataset[torch.Tensor]):
    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        item = fresh()
        self.seen.append(item)  # leak: data_loader
        return item


@functools.lru_cache(maxsize=1)
def batches() -> object:
    return iter(torch.utils.data.DataLoader(Dataset(), batch_size=1))


@leak
def data_loader(number: int) -> None:
    next(batches())  # type: ignore[call-overload]


parameters = torch.nn.ParameterList()


@leak
def parameter_list(number: int) -> None:
    parameters.append(torch.nn.Parameter(fresh()))  # leak: parameter_list


class Cyclic:
    def __init__(self) -> None:
        self.me = self
        self.tensor = fresh()


@leak
def pure_cycle(number: int) -> None:
    if number == 0:
        gc.disable()  # as servers do for their latency; otherwise a cycle lives for a moment only
    Cyclic()


class Slot:
    __slots__ = ("next", "tensor")

    def __init__(self, following: Slot | None) -> None:
        self.next = following
        self.tensor = fresh()


class Chain:
    head: Slot | None = None


chain = Chain()


@leak
def linked_list(number: int) -> None:
    chain.head = Slot(chain.head)  # leak: linked_list


futures: set[concurrent.futures.Future[torch.Tensor]] = set()
pool = concurrent.futures.ThreadPoolExecutor(1)


@leak
def future_results(number: int) -> None:
    future = pool.submit(fresh)
    future.result()
    futures.add(future)  # leak: future_results


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, tensor: torch.Tensor) -> torch.Tensor:
        ctx.kept = fresh()  # type: ignore[attr-defined]
        return tensor * tensor

    @staticmethod
    def backward(ctx: object, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0]


SQUARES: list[torch.Tensor] = []


@leak
def autograd_context(number: int) -> None:
    SQUARES.append(Square.apply(torch.randn(2, requires_grad=True)))  # leak: autograd_context


loop = asyncio.new_event_loop()
never = loop.create_future()
background: set[asyncio.Task[None]] = set()


@leak
def waiting_task(number: int) -> None:
    async def handle() -> None:
        hidden = fresh()
        await never
        hidden.sum()

    background.add(loop.create_task(handle()))  # leak: waiting_task
    loop.run_until_complete(asyncio.sleep(0))


CONTEXTS: list[contextvars.Context] = []
current: contextvars.ContextVar[torch.Tensor] = contextvars.ContextVar("current")


@leak
def context_variable(number: int) -> None:
    context = contextvars.copy_context()
    context.run(current.set, fresh())
    CONTEXTS.append(context)  # leak: context_variable


@leak
def native_reference(number: int) -> None:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(fresh()))


HIDDEN = [threading.local()]


@leak
def hidden_thread_local(number: int) -> None:
    if not hasattr(HIDDEN[0], "kept"):
        HIDDEN[0].kept = []
    HIDDEN[0].kept.append(fresh())


# ---- what must never be blamed


@leak
def clean(number: int) -> None:
    with torch.inference_mode():
        model(torch.randn(4, 32))


def serve(kind: str) -> Callable[[int], object]:
    """A request of the app: what leaks, and the noise beside it."""

    def one(number: int) -> None:
        LEAKS[kind](number)
        busy_cache(number)

    return one


rounds: queue.Queue[bool] = queue.Queue()
done: queue.Queue[bool] = queue.Queue()


def collect() -> None:
    collected: list[torch.Tensor] = []
    while rounds.get():
        collected.append(fresh())  # leak: local_variable
        done.put(True)


@leak
def local_variable(number: int) -> None:
    if number == 0:
        threading.Thread(target=collect, daemon=True).start()
    rounds.put(True)
    done.get()


def main() -> None:
    traffic = Traffic(serve(sys.argv[1]))
    traffic.wait(1.5)  # a life before anyone looks
    args = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    answer = blame.run("census", {"window_seconds": 4, **args}, 60.0, traffic)
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
