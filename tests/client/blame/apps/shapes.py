"""Further ways to keep tensors, and healthy ones that look alike: `shapes.py KIND`, as holders.py.

A kind that begins with `bounded_` is healthy, and nothing may be blamed there.
"""
# mypy: disable-error-code="import-not-found, misc, no-untyped-call, untyped-decorator, no-any-return"
# ruff: noqa: D103 - each is named for what it does

from __future__ import annotations

import asyncio
import collections
import contextlib
import contextvars
import functools
import gc
import heapq
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from holders import leak, main
from noise import fresh


class Decoder:
    """A model with a KV cache."""

    def __init__(self) -> None:
        self.keys = torch.empty(0, 64)
        self.layers: list[torch.Tensor] = [torch.empty(0, 64) for _ in range(4)]
        self.outputs: list[torch.Tensor] = []

    def remember(self, key: torch.Tensor) -> None:
        self.keys = torch.cat([self.keys, key])  # leak: replaced_by_longer

    def step(self, number: int, key: torch.Tensor) -> None:
        layer = number % len(self.layers)
        self.layers[layer] = torch.cat([self.layers[layer], key])  # leak: layers_that_grow

    @torch.no_grad()
    def predict(self) -> None:
        self.outputs.append(fresh())  # leak: decorated_method

    def window(self, key: torch.Tensor) -> None:
        self.keys = torch.cat([self.keys, key])[-100:].clone()


decoder = Decoder()


@leak
def replaced_by_longer(number: int) -> None:
    decoder.remember(torch.randn(1, 64))


@leak
def layers_that_grow(number: int) -> None:
    decoder.step(number, torch.randn(1, 64))


@leak
def decorated_method(number: int) -> None:
    decoder.predict()


@leak
def bounded_window(number: int) -> None:
    decoder.window(torch.randn(1, 64))


best: list[tuple[float, int, torch.Tensor]] = []


@leak
def heap(number: int) -> None:
    heapq.heappush(best, (float(number), number, fresh()))  # leak: heap


def put(store: dict[int, torch.Tensor], key: int, value: torch.Tensor) -> None:
    store[key] = value  # leak: static_helper


embeddings: dict[int, torch.Tensor] = {}


@leak
def static_helper(number: int) -> None:
    put(embeddings, number, fresh())


@dataclass
class Session:
    """Fields have a generated constructor, which fills nothing."""

    history: list[torch.Tensor] = field(default_factory=list)


session = Session()


@leak
def dataclass_field(number: int) -> None:
    session.history.append(fresh())  # leak: dataclass_field


class Log:
    """Replaces its tuple by a longer one."""

    events: tuple[torch.Tensor, ...] = ()


log = Log()


@leak
def tuple_that_grows(number: int) -> None:
    log.events = (*log.events, fresh())  # leak: tuple_that_grows


slots: list[torch.Tensor | None] = [None] * 50_000


@leak
def slots_that_fill(number: int) -> None:
    slots[number] = fresh()  # leak: slots_that_fill


@leak
def bounded_slots(number: int) -> None:
    slots[number % 100] = fresh()


tasks: list[asyncio.Task[torch.Tensor]] = []
loop = asyncio.new_event_loop()


@leak
def finished_tasks(number: int) -> None:
    async def infer() -> torch.Tensor:
        return fresh()

    task = loop.create_task(infer())
    loop.run_until_complete(task)
    tasks.append(task)  # leak: finished_tasks


@leak
def gradient_with_graph(number: int) -> None:
    if number == 0:
        gc.disable()
    x = torch.randn(16, 64, requires_grad=True)
    (x * x).sum().backward(create_graph=True)  # leak: gradient_with_graph


def collecting() -> Iterator[int]:
    buffer: list[torch.Tensor] = []
    while True:
        buffer.append(fresh())  # leak: generator_that_collects
        yield len(buffer)


stream = collecting()


@leak
def generator_that_collects(number: int) -> None:
    next(stream)


per_user: dict[str, list[torch.Tensor]] = {}


@leak
def lists_of_users(number: int) -> None:
    per_user.setdefault(f"user {number % 5}", []).append(fresh())  # leak: lists_of_users


class Recorder(torch.nn.Module):
    """Adds under names that it makes."""

    def __init__(self) -> None:
        super().__init__()
        self.log_train: list[torch.Tensor] = []

    def record(self, number: int) -> None:
        self.register_buffer(f"step_{number}", fresh(), persistent=False)  # leak: buffers_by_number

    def add(self, kind: str) -> None:
        getattr(self, f"log_{kind}").append(fresh())  # leak: made_name


buffers = Recorder()
logbook = Recorder()


@leak
def buffers_by_number(number: int) -> None:
    buffers.record(number)


class Bag:
    """Anything may be put in, under a name of its own."""

    def take(self, number: int) -> None:
        self.__dict__.update({f"taken_{number}": fresh()})  # leak: attributes_by_number


attributes = Bag()


@leak
def attributes_by_number(number: int) -> None:
    attributes.take(number)


@leak
def made_name(number: int) -> None:
    logbook.add("train")


waiting = threading.Event()


def wait_for_ever() -> None:
    mine = fresh()  # leak: threads_that_wait
    waiting.wait()
    mine.zero_()


@leak
def threads_that_wait(number: int) -> None:
    if number % 8 == 0:
        threading.Thread(target=wait_for_ever, daemon=True).start()
    else:
        fresh()


loop = asyncio.new_event_loop()


@leak
def timers_of_a_loop(number: int) -> None:
    loop.call_later(3600.0, torch.sum, fresh())  # leak: timers_of_a_loop


class Adapter:
    """Each tenant has a class of its own, made at run time, with its tensors as class attributes."""

    registry: dict[str, type] = {}  # noqa: RUF012 - what it is about
    MOST = 20

    def __init_subclass__(cls) -> None:
        Adapter.registry[cls.__name__] = cls  # leak: classes_at_run_time


@leak
def classes_at_run_time(number: int) -> None:
    type(f"Tenant{number}", (Adapter,), {"weights": fresh()})


class Client:
    """Each error has the one before as its cause."""

    def __init__(self) -> None:
        self.last_error: Exception | None = None

    def note(self, cause: Exception) -> Exception:
        error = RuntimeError("failed again")
        error.__cause__ = self.last_error or cause
        self.last_error = error  # leak: chain_of_errors
        return error

    def ask(self, question: torch.Tensor) -> None:
        try:
            raise ValueError(question.shape)
        except ValueError as error:
            raise self.note(error)  # noqa: B904 - the cause is the one before


client = Client()


@leak
def chain_of_errors(number: int) -> None:
    with contextlib.suppress(RuntimeError):
        client.ask(fresh())


class Sampler:
    """Its instances share the default value of an argument."""

    def __init__(self, history: list[torch.Tensor] = []) -> None:  # noqa: B006 - that is the leak
        self.history = history

    def pick(self, logits: torch.Tensor) -> None:
        self.history.append(logits)  # leak: default_argument


@leak
def default_argument(number: int) -> None:
    Sampler().pick(fresh())


class QuasiNewton(torch.optim.Optimizer):
    """Keeps every gradient."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self) -> None:
        (weights,) = self.param_groups[0]["params"]
        state = self.state[weights]
        row = torch.randn(1, 64)
        if "history" not in state:
            state["history"] = row
        else:
            state["history"] = torch.cat([state["history"], row])  # leak: state_of_an_optimizer


optimizer = QuasiNewton([torch.nn.Parameter(torch.zeros(64))])


@leak
def state_of_an_optimizer(number: int) -> None:
    optimizer.step()


class Job:
    """Fails each time, and is tried again."""

    def __init__(self) -> None:
        self.attempts: list[Exception] = []

    def run(self) -> None:
        hidden = fresh()
        raise ValueError(hidden.shape)


class Pool:
    """Puts a job that has failed into its queue again."""

    def __init__(self) -> None:
        self.jobs: collections.deque[Job] = collections.deque()

    def submit(self, job: Job) -> None:
        self.jobs.append(job)

    def work(self) -> None:
        job = self.jobs.popleft()
        try:
            job.run()
        except ValueError as error:
            job.attempts.append(error)  # leak: job_that_is_retried
        self.jobs.append(job)


pool = Pool()
pool.submit(Job())


@leak
def job_that_is_retried(number: int) -> None:
    pool.work()


class Saliency:
    """Registers a hook on a tensor for each request."""

    def __init__(self) -> None:
        self.weights = torch.nn.Parameter(torch.zeros(64))

    def explain(self, image: torch.Tensor) -> torch.Tensor:
        def scale(gradient: torch.Tensor) -> torch.Tensor:
            return gradient * image.mean()

        self.weights.register_hook(scale)  # leak: hooks_of_a_tensor
        return self.weights


saliency = Saliency()


@leak
def hooks_of_a_tensor(number: int) -> None:
    saliency.explain(fresh())


SPANS: contextvars.ContextVar[list[torch.Tensor]] = contextvars.ContextVar("spans", default=[])  # noqa: B039


@leak
def default_of_a_variable(number: int) -> None:
    SPANS.get().append(fresh())  # leak: default_of_a_variable


class Expert:
    """Keeps a bound method of itself."""

    def __init__(self) -> None:
        self.table = fresh()
        self.route = self.exact

    def exact(self) -> None:
        """The cycle goes through here."""


@leak
def bound_method(number: int) -> None:
    gc.disable()
    Expert()


# ---- healthy ones


@leak
def bounded_classes(number: int) -> None:
    classes_at_run_time(number)
    if len(Adapter.registry) > Adapter.MOST:
        Adapter.registry.clear()
        gc.collect()


@functools.lru_cache(maxsize=64)
def cached(number: int) -> torch.Tensor:
    return fresh()


@leak
def bounded_full_cache(number: int) -> None:
    cached(number)


replay: collections.deque[torch.Tensor] = collections.deque(maxlen=80)


@leak
def bounded_replay(number: int) -> None:
    replay.append(fresh())


warm: dict[int, torch.Tensor] = {}


@leak
def bounded_warm_up(number: int) -> None:
    warm.setdefault(number % 250, fresh())


pending: list[torch.Tensor] = []


@leak
def bounded_batches(number: int) -> None:
    pending.append(fresh())
    if len(pending) >= 37:
        torch.stack(pending)
        pending.clear()


state: dict[str, torch.Tensor] = {}


@leak
def bounded_sizes(number: int) -> None:
    state["last"] = torch.randn(1 + number * 7 % 100, 64)


@leak
def bounded_threads(number: int) -> None:
    def work() -> None:
        mine = [fresh() for _ in range(5)]
        mine.clear()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@leak
def bounded_graph(number: int) -> None:
    total = decoder.keys.sum()
    for _ in range(number % 20):
        total = total + torch.randn((), requires_grad=True)
    state["total"] = total


if __name__ == "__main__":
    main()
