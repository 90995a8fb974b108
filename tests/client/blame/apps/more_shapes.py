"""Further ways to keep tensors, and healthy ones that look alike: `more_shapes.py KIND`, as shapes.py."""
# mypy: disable-error-code="import-not-found, misc, no-untyped-call, untyped-decorator, no-any-return"
# ruff: noqa: D103 - each is named for what it does

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import queue
import sys
import threading
import types
import typing
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import torch
from holders import leak, main
from noise import fresh

Forward = Callable[[torch.Tensor], torch.Tensor]


class Training(NamedTuple):
    """State of which each step makes the next version."""

    weights: torch.Tensor
    history: tuple[torch.Tensor, ...]


def train_step(training: Training) -> Training:
    update = fresh()
    return training._replace(
        weights=training.weights - update,
        history=(*training.history, update),  # leak: version_of_a_state
    )


def forgetful_step(training: Training) -> Training:
    update = fresh()
    return training._replace(weights=training.weights - update, history=(*training.history[-99:], update))


training = Training(fresh(), ())


@leak
def version_of_a_state(number: int) -> None:
    global training  # noqa: PLW0603 - as apps do it
    training = train_step(training)


@leak
def bounded_version_of_a_state(number: int) -> None:
    global training  # noqa: PLW0603
    training = forgetful_step(training)


@leak
def modules_by_number(number: int) -> None:
    module: Any = types.ModuleType(f"plugin_{number}")
    module.TABLE = fresh()
    sys.modules[module.__name__] = module  # leak: modules_by_number


@leak
def bounded_modules(number: int) -> None:
    module: Any = types.ModuleType(f"plugin_{number}")
    module.TABLE = fresh()
    sys.modules[module.__name__] = module
    sys.modules.pop(f"plugin_{number - 100}", None)


activation: Any = torch.nn.ReLU()
unnamed: Any = torch.nn.ReLU()
restored: Any = torch.nn.ReLU()


def scaled_by(forward: Forward, scale: torch.Tensor) -> Forward:
    @functools.wraps(forward)
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return forward(x) * scale

    return scaled


def bare(forward: Forward, scale: torch.Tensor) -> Forward:
    return lambda x: forward(x) * scale


@leak
def wrapped_again(number: int) -> None:
    activation.forward = scaled_by(activation.forward, fresh())  # leak: wrapped_again


@leak
def closed_over_again(number: int) -> None:
    unnamed.forward = bare(unnamed.forward, fresh())  # leak: closed_over_again


@leak
def bounded_wrapper(number: int) -> None:
    restored.forward = scaled_by(getattr(restored.forward, "__wrapped__", restored.forward), fresh())


class Client:
    """Remembers why it failed last."""

    last: Exception | None = None

    def send(self, body: torch.Tensor) -> None:
        try:
            raise ConnectionError(f"refused {len(body)} rows")
        except ConnectionError as error:
            error.__context__ = self.last
            self.last = error  # leak: error_behind_error


client = Client()


@leak
def error_behind_error(number: int) -> None:
    client.send(fresh())


loop = asyncio.new_event_loop()
gate = asyncio.Semaphore(1)


@leak
def waiting_for_a_semaphore(number: int) -> None:
    async def upload() -> torch.Tensor:
        picture = fresh()
        await gate.acquire()  # leak: waiting_for_a_semaphore
        return picture

    loop.create_task(upload())  # noqa: RUF006 - the semaphore keeps it
    loop.run_until_complete(asyncio.sleep(0))


@leak
def bounded_semaphore(number: int) -> None:
    async def upload() -> torch.Tensor:
        picture = fresh()
        async with gate:
            await asyncio.sleep(0)
        return picture

    loop.create_task(upload())  # noqa: RUF006
    loop.run_until_complete(asyncio.sleep(0))


class Ring:
    def __init__(self) -> None:
        self.first = [self]
        self.tensor = fresh()


@leak
def bounded_cycles(number: int) -> None:
    if number == 0:
        gc.set_threshold(40_000)  # often enough, but not while the census looks
    Ring()


class Branch:
    def __init__(self, parent: Branch | None) -> None:
        self.parent = parent
        self.branches: list[Branch] = []
        self.tensor = fresh()
        if parent is not None:
            parent.branches.append(self)


@leak
def tree_of_cycles(number: int) -> None:
    if number == 0:
        gc.disable()
    Branch(Branch(None))


TRAIL: contextvars.ContextVar[tuple[torch.Tensor, ...]] = contextvars.ContextVar("TRAIL", default=())


@leak
def context_of_a_thread(number: int) -> None:
    TRAIL.set((*TRAIL.get(), fresh()))  # leak: context_of_a_thread


@leak
def bounded_context_of_a_thread(number: int) -> None:
    TRAIL.set((*TRAIL.get()[-99:], fresh()))


PEOPLE: dict[int, dict[str, Any]] = {number: {"age": number % 80} for number in range(5000)}


@leak
def records_that_fill(number: int) -> None:
    person = PEOPLE[number]
    if "embedding" not in person:
        person["embedding"] = fresh()  # leak: records_that_fill


class Document:
    def __init__(self) -> None:
        self.vector: torch.Tensor | None = None

    @functools.cached_property
    def summary(self) -> torch.Tensor:  # leak: properties_that_are_cached -1
        return fresh()


class Corpus:
    def __init__(self) -> None:
        self.documents = [Document() for _ in range(5000)]

    def add_vector(self, number: int) -> None:
        self.documents[number].vector = fresh()  # leak: attributes_that_fill


corpus = Corpus()


@leak
def attributes_that_fill(number: int) -> None:
    corpus.add_vector(number)


@leak
def properties_that_are_cached(number: int) -> None:
    assert len(corpus.documents[number].summary) == 16


class Person:
    __slots__ = ("history",)

    def __init__(self) -> None:
        self.history: list[torch.Tensor] = []


people = {number: Person() for number in range(300)}


@leak
def lists_of_many(number: int) -> None:
    people[(number * 7) % 300].history.append(fresh())  # leak: lists_of_many


@leak
def bounded_lists_of_many(number: int) -> None:
    history = people[(number * 7) % 30].history
    history.append(fresh())
    del history[:-3]


@leak
def bounded_records(number: int) -> None:
    PEOPLE[(number * 7) % 5000]["embedding"] = fresh()
    PEOPLE[((number - 50) * 7) % 5000].pop("embedding", None)


STREAMS: dict[int, AsyncIterator[float]] = {}


@leak
def asynchronous_generators(number: int) -> None:
    async def stream() -> AsyncIterator[float]:
        batch = fresh()
        for row in batch:
            yield float(row[0])

    async def begin() -> None:
        STREAMS[number] = stream()  # leak: asynchronous_generators
        await STREAMS[number].__anext__()

    loop.run_until_complete(begin())


LISTENERS: list[Callable[[], float]] = []


@leak
def default_of_a_lambda(number: int) -> None:
    batch = fresh()
    LISTENERS.append(lambda batch=batch: float(batch.sum()))  # leak: default_of_a_lambda


def factory() -> Callable[[torch.Tensor], int]:
    kept: list[torch.Tensor] = []

    def endpoint(batch: torch.Tensor) -> int:
        kept.append(batch)  # leak: known_to_a_cache
        return len(kept)

    return endpoint


REQUESTS: queue.SimpleQueue[torch.Tensor] = queue.SimpleQueue()


def serve_forever(served: threading.Semaphore) -> None:
    routes = {"layers": [{"endpoint": [{"call": factory()}]}]}
    call = routes["layers"][0]["endpoint"][0]["call"]
    # A cache of a library knows the endpoint, too.
    hints: Any = typing.Annotated[int, call]
    del call
    while True:
        batch = REQUESTS.get()
        hints.__metadata__[0](batch)
        del batch
        served.release()


SERVED = threading.Semaphore(0)


@leak
def known_to_a_cache(number: int) -> None:
    if number == 0:
        threading.Thread(target=serve_forever, args=(SERVED,), daemon=True).start()
    REQUESTS.put(fresh())
    SERVED.acquire()


class Hub:
    def __init__(self) -> None:
        self.outputs: dict[str, list[torch.Tensor]] = {}

    def subscribe(self, name: str) -> None:
        self.outputs[name] = []

    def publish(self, batch: torch.Tensor) -> None:
        for output in self.outputs.values():
            output.append(batch)  # leak: published_to_all


hub = Hub()


@leak
def published_to_all(number: int) -> None:
    if number == 0:
        hub.subscribe("nobody")
    hub.publish(fresh())


class Store(dict[int, torch.Tensor]):
    def keep(self, number: int, batch: torch.Tensor) -> None:
        self[number] = batch  # leak: dict_of_its_own_class


store = Store()


@leak
def dict_of_its_own_class(number: int) -> None:
    store.keep(number, fresh())


class Tables(dict[int, torch.Tensor]):
    def __missing__(self, number: int) -> torch.Tensor:
        self[number] = fresh()  # leak: values_that_were_missing
        return self[number]


tables = Tables()


@leak
def values_that_were_missing(number: int) -> None:
    assert len(tables[number]) == 16


class Arena:
    def __init__(self) -> None:
        self.buffer = torch.zeros(16, 64)
        self.head = torch.nn.Linear(64, 16)

    def reserve(self, rows: int) -> None:
        self.buffer.resize_(len(self.buffer) + rows, 64)  # leak: resized_in_place

    def widen(self) -> None:
        weight = self.head.weight
        weight.data = torch.cat([weight.data, fresh()])  # leak: data_that_is_replaced


arena = Arena()


@leak
def resized_in_place(number: int) -> None:
    arena.reserve(16)


@leak
def data_that_is_replaced(number: int) -> None:
    arena.widen()


class Encoder:
    def __init__(self) -> None:
        self.encode = functools.lru_cache(maxsize=None)(self._encode)

    def _encode(self, number: int) -> torch.Tensor:  # leak: cache_of_a_bound_method
        return fresh() + number


encoder = Encoder()


@leak
def cache_of_a_bound_method(number: int) -> None:
    encoder.encode(number)


if __name__ == "__main__":
    main()
