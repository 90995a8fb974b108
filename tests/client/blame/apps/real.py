"""Apps as people write them, each with a leak and as its healthy twin: `real.py APP leak` or `real.py APP healthy`.

Prints what the census says. A request of the driver's is one generation, call, job or training step.
"""
# mypy: disable-error-code="import-not-found, misc, no-untyped-call, untyped-decorator, no-any-return"

from __future__ import annotations

import json
import queue
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import torch
from driver import Traffic

from gpuagent_client import blame

WIDTH = 64
LEAKS = sys.argv[2] == "leak"


class Cache:
    """Keys and values of a generation, layer by layer, a pair for each token."""

    def __init__(self, layers: int) -> None:
        self.tokens: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[] for _ in range(layers)]

    def update(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Remember a token, and return the keys and values to attend to."""
        self.tokens[layer].append((key, value))  # leak: generation
        recent = self.tokens[layer][-8:]
        return torch.cat([one for one, _ in recent]), torch.cat([one for _, one in recent])


class Generator:
    """A decoder that generates token by token; its cache should begin anew with each prompt."""

    LAYERS = 2

    def __init__(self) -> None:
        self.project = torch.nn.Linear(WIDTH, 2 * WIDTH)
        self.cache = Cache(self.LAYERS)

    @torch.inference_mode()
    def generate(self, prompt: torch.Tensor, tokens: int) -> torch.Tensor:
        """Return the state after so many tokens."""
        if not LEAKS:
            self.cache = Cache(self.LAYERS)
        hidden = prompt
        for _ in range(tokens):
            for layer in range(self.LAYERS):
                key, value = self.project(hidden).chunk(2, dim=-1)
                keys, values = self.cache.update(layer, key.clone(), value.clone())
                hidden = torch.softmax(hidden @ keys.T, dim=-1) @ values
        return hidden


generator = Generator()


def generation(number: int) -> None:
    """A prompt of the app's users."""
    generator.generate(torch.randn(1, WIDTH), 3 + number % 3)


class Adapter(torch.nn.Module):
    """Two small matrices that change what a layer does for one tenant."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.down = torch.nn.Parameter(torch.randn(rank, WIDTH), requires_grad=False)
        self.up = torch.nn.Parameter(torch.randn(WIDTH, rank), requires_grad=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return what is added to the layer's output."""
        return hidden @ self.down.T @ self.up.T


class LoraServer:
    """A base model, and adapters that are loaded when a tenant asks for the first time."""

    MOST = 16

    def __init__(self) -> None:
        self.base = torch.nn.Linear(WIDTH, WIDTH)
        self.adapters: OrderedDict[str, Adapter] = OrderedDict()

    def adapter(self, name: str) -> Adapter:
        """Return an adapter, loaded if need be; the one that was not used for longest makes room."""
        if name not in self.adapters:
            self.adapters[name] = Adapter(rank=8)  # leak: lora
            if not LEAKS and len(self.adapters) > self.MOST:
                self.adapters.popitem(last=False)
        self.adapters.move_to_end(name)
        return self.adapters[name]

    @torch.no_grad()
    def serve(self, name: str, hidden: torch.Tensor) -> torch.Tensor:
        """Return the output for a tenant."""
        return self.base(hidden) + self.adapter(name)(hidden)


server = LoraServer()


def lora(number: int) -> None:
    """A call of a tenant that nobody has seen before."""
    server.serve(f"tenant-{number}", torch.randn(4, WIDTH))


class Job(NamedTuple):
    """What a worker has to do."""

    number: int
    batch: torch.Tensor


class BatchWorker:
    """A thread that takes jobs from a queue; who gave one asks for its result."""

    def __init__(self) -> None:
        self.model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())
        self.jobs: queue.Queue[Job] = queue.Queue(maxsize=8)
        self.results: dict[int, torch.Tensor] = {}
        self.done = threading.Condition()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            job = self.jobs.get()
            with torch.inference_mode():
                output = self.model(job.batch)
            with self.done:
                self.results[job.number] = output  # leak: batch
                self.done.notify_all()

    def ask(self, job: Job) -> torch.Tensor:
        """Return the result of a job, which should be handed out once."""
        self.jobs.put(job)
        with self.done:
            self.done.wait_for(lambda: job.number in self.results)
            return self.results[job.number] if LEAKS else self.results.pop(job.number)


worker = BatchWorker()


def batch(number: int) -> None:
    """A job, and its result."""
    worker.ask(Job(number, torch.randn(16, WIDTH)))


class Trainer:
    """A training loop with a validation after each step, and an average of the weights."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(WIDTH, 8)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.average = self.model.weight.detach().clone()
        self.logits: list[torch.Tensor] = []

    def step(self, number: int) -> None:
        """Train on one batch."""
        self.optimizer.zero_grad()
        self.model(torch.randn(16, WIDTH)).pow(2).mean().backward()
        self.optimizer.step()
        self.follow()
        self.validate()
        if not LEAKS and number % 20 == 19:  # the end of an epoch
            self.score()

    @torch.no_grad()
    def follow(self) -> None:
        """Let the average follow the weights."""
        self.average.lerp_(self.model.weight, 0.01)

    @torch.inference_mode()
    def validate(self) -> None:
        """Keep the outputs for the score at the end of the epoch."""
        self.logits.append(self.model(torch.randn(64, WIDTH)))  # leak: training

    def score(self) -> float:
        """Return the score of an epoch, and begin the next one."""
        found = float(torch.cat(self.logits).mean())
        self.logits.clear()
        return found


trainer = Trainer()


def training(number: int) -> None:
    """A step."""
    trainer.step(number)


APPS: dict[str, Callable[[int], None]] = {
    "generation": generation,
    "lora": lora,
    "batch": batch,
    "training": training,
}


def main() -> None:
    """Serve, ask, print."""
    torch.set_num_threads(1)
    traffic = Traffic(APPS[sys.argv[1]])
    traffic.wait(1.5)  # a life before anyone looks
    sys.stdout.write(json.dumps(blame.run("census", {"window_seconds": 4}, 60.0, traffic)))


if __name__ == "__main__":
    main()
