"""Functions as people test them: half of them leak, at the line that is marked, and half are healthy.

Run with torch on the CPU. Each function makes what it needs anew: `LEAKY[name]()` and `HEALTHY[name]()` return a
function to be called many times.
"""
# mypy: disable-error-code="import-not-found, misc, no-any-return"
# ruff: noqa: D103 - each is named for what it does

from __future__ import annotations

import functools
import random
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import torch

WIDTH = 64
Step = Callable[[], object]


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(WIDTH, WIDTH)
        self.second = torch.nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


# ---- leaks ------------------------------------------------------------------------------------------------------


class Losses:
    def __init__(self) -> None:
        self.net = Net()
        self.losses: list[torch.Tensor] = []

    def step(self) -> None:
        loss = self.net(torch.randn(8, WIDTH)).mean()
        self.losses.append(loss)  # LEAK losses_with_graph


class RunningTotal:
    def __init__(self) -> None:
        self.net = Net()
        self.total: Any = 0.0

    def step(self) -> None:
        loss = self.net(torch.randn(8, WIDTH)).mean()
        self.total = self.total + loss  # LEAK running_total


class HiddenState:
    def __init__(self) -> None:
        self.cell = torch.nn.GRUCell(WIDTH, WIDTH)
        self.hidden = torch.zeros(1, WIDTH)

    def step(self) -> None:
        self.hidden = self.cell(torch.randn(1, WIDTH), self.hidden)  # LEAK hidden_state


CACHE: dict[int, torch.Tensor] = {}


def embed() -> torch.Tensor:
    key = len(CACHE)
    CACHE[key] = torch.randn(WIDTH)  # LEAK global_cache
    return CACHE[key]


class Errors:
    def __init__(self) -> None:
        self.errors: list[Exception] = []

    def work(self) -> None:
        batch = torch.randn(8, WIDTH)
        raise ValueError(batch.shape)

    def step(self) -> None:
        try:
            self.work()
        except ValueError as error:
            self.errors.append(error)  # LEAK exception


class Hooks:
    def __init__(self) -> None:
        self.net = Net()
        self.seen: list[torch.Tensor] = []

    def keep(self, module: object, inputs: object, output: torch.Tensor) -> None:
        self.seen.append(output.detach())  # LEAK hook

    def step(self) -> None:
        self.net.first.register_forward_hook(self.keep)
        with torch.no_grad():
            self.net(torch.randn(1, WIDTH))


class HookClosures:
    def __init__(self) -> None:
        self.net = Net()

    def step(self) -> None:
        scale = torch.randn(WIDTH)
        self.net.first.register_forward_hook(lambda module, inputs, output: output * scale)  # LEAK hook_closure


@functools.cache  # LEAK unbounded_lru_cache
def remembered(key: float) -> torch.Tensor:
    return torch.full((WIDTH,), key)


class OneInTen:
    def __init__(self) -> None:
        self.calls = 0
        self.kept: list[torch.Tensor] = []

    def step(self) -> None:
        self.calls += 1
        if self.calls % 10 == 0:
            self.kept.append(torch.randn(WIDTH))  # LEAK one_in_ten


LEAKY: dict[str, Callable[[], Step]] = {
    "losses_with_graph": lambda: Losses().step,
    "running_total": lambda: RunningTotal().step,
    "hidden_state": lambda: HiddenState().step,
    "global_cache": lambda: embed,
    "exception": lambda: Errors().step,
    "hook": lambda: Hooks().step,
    "hook_closure": lambda: HookClosures().step,
    "unbounded_lru_cache": lambda: lambda: remembered(random.random()),
    "one_in_ten": lambda: OneInTen().step,
}

# ---- healthy ----------------------------------------------------------------------------------------------------


class Training:
    def __init__(self) -> None:
        self.net = Net()
        self.optimizer = torch.optim.Adam(self.net.parameters())
        self.history: deque[float] = deque(maxlen=100)

    def step(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.net(torch.randn(random.randrange(1, 64), WIDTH)).pow(2).mean()
        loss.backward()
        self.optimizer.step()
        self.history.append(loss.item())


class TruncatedHiddenState:
    def __init__(self) -> None:
        self.cell = torch.nn.GRUCell(WIDTH, WIDTH)
        self.hidden = torch.zeros(1, WIDTH)
        self.calls = 0

    def step(self) -> None:
        self.calls += 1
        self.hidden = self.cell(torch.randn(1, WIDTH), self.hidden)
        if self.calls % 7 == 0:
            self.hidden = self.hidden.detach()


class FillingCache:
    """A cache by hand, with or without eviction, of so many keys."""

    def __init__(self, keys: int, *, at_random: bool) -> None:
        self.keys = keys
        self.at_random = at_random
        self.calls = 0
        self.cache: dict[int, torch.Tensor] = {}

    def step(self) -> None:
        self.calls += 1
        key = random.randrange(self.keys) if self.at_random else self.calls % self.keys
        if key not in self.cache:
            self.cache[key] = torch.randn(WIDTH)


class Evicting:
    def __init__(self) -> None:
        self.calls = 0
        self.cache: OrderedDict[int, torch.Tensor] = OrderedDict()

    def step(self) -> None:
        self.calls += 1
        self.cache[self.calls] = torch.randn(random.randrange(1, WIDTH))
        if len(self.cache) > 50:
            self.cache.popitem(last=False)


def bounded_lru(size: int) -> Step:
    @functools.lru_cache(maxsize=size)
    def cached(key: float) -> torch.Tensor:
        return torch.full((WIDTH,), key)

    return lambda: cached(random.random())


class Buffer:
    """A replay buffer that is emptied when it is full."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.kept: list[torch.Tensor] = []

    def step(self) -> None:
        self.kept.append(torch.randn(WIDTH))
        if len(self.kept) >= self.size:
            self.kept.clear()


class Workspace:
    """Scratch memory that grows to the largest input seen, as that of cuDNN does."""

    def __init__(self) -> None:
        self.scratch = torch.empty(0)

    def step(self) -> None:
        size = random.randrange(1, 4096)
        if self.scratch.numel() < size:
            self.scratch = torch.empty(size)
        self.scratch[:size].fill_(1.0)


class FirstCall:
    """What is made at the first call of each shape, as a compiler's code and constants are."""

    def __init__(self) -> None:
        self.model: Net | None = None
        self.by_shape: dict[int, torch.Tensor] = {}

    def step(self) -> None:
        if self.model is None:
            self.model = Net()
        rows = random.randrange(1, 9)
        if rows not in self.by_shape:
            self.by_shape[rows] = torch.randn(rows, rows)
        with torch.inference_mode():
            self.model(torch.randn(rows, WIDTH))


class Cycle:
    """Garbage that only the collector frees."""

    def step(self) -> None:
        self_reference: list[object] = [torch.randn(WIDTH)]
        self_reference.append(self_reference)


class HookRemoved:
    def __init__(self) -> None:
        self.net = Net()
        self.last: torch.Tensor | None = None

    def keep(self, module: object, inputs: object, output: torch.Tensor) -> None:
        self.last = output

    def step(self) -> None:
        handle = self.net.first.register_forward_hook(self.keep)
        self.net(torch.randn(random.randrange(1, 9), WIDTH))
        handle.remove()


def handled_error() -> None:
    try:
        Errors().work()
    except ValueError as error:
        str(error)


HEALTHY: dict[str, Callable[[], Step]] = {
    "training": lambda: Training().step,
    "truncated_hidden_state": lambda: TruncatedHiddenState().step,
    "cache_that_fills": lambda: FillingCache(15, at_random=False).step,
    "cache_that_fills_late": lambda: FillingCache(180, at_random=False).step,
    "cache_of_random_keys": lambda: FillingCache(60, at_random=True).step,
    "evicting_cache": lambda: Evicting().step,
    "lru_cache_128": lambda: bounded_lru(128),
    "lru_cache_1000": lambda: bounded_lru(1000),
    "buffer_that_is_emptied": lambda: Buffer(32).step,
    "buffer_emptied_late": lambda: Buffer(130).step,
    "workspace": lambda: Workspace().step,
    "first_call": lambda: FirstCall().step,
    "cycle": lambda: Cycle().step,
    "hook_removed": lambda: HookRemoved().step,
    "handled_error": lambda: handled_error,
}
