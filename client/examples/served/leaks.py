"""Five ways to lose GPU memory that are in real servers, each behind a switch. Every one is a line that looks harmless.

`gpuagent blame PID` has to name the line marked LEAK, and never the busy cache of app.py.
"""
# mypy: disable-error-code="import-not-found, misc, untyped-decorator"

from __future__ import annotations

from collections.abc import Callable

import torch
from model import CLASSES, Loaded

Leak = Callable[[Loaded, torch.Tensor], object]

results: list[torch.Tensor] = []
embeddings: dict[int, torch.Tensor] = {}
errors: list[Exception] = []


def outputs(loaded: Loaded, words: torch.Tensor) -> None:
    """Keep outputs for later statistics, and their graph with them."""
    scores = loaded.module()(words)
    results.append(scores)  # LEAK outputs


class Statistics:
    """A running sum over all requests."""

    def __init__(self, loaded: Loaded) -> None:
        self.total = torch.zeros(1, CLASSES, device=loaded.device)

    def add(self, scores: torch.Tensor) -> None:
        """Without no_grad, the sum of today holds the graph of every request since the start."""
        self.total = self.total + scores.softmax(1)  # LEAK no_grad


statistics: dict[str, Statistics] = {}


def no_grad(loaded: Loaded, words: torch.Tensor) -> None:
    """Inference without no_grad, summed up."""
    statistics.setdefault("scores", Statistics(loaded)).add(loaded.module()(words))


def cache(loaded: Loaded, words: torch.Tensor) -> None:
    """Fill a cache that nothing bounds: its key never comes again."""
    with torch.inference_mode():
        embeddings[len(embeddings)] = loaded.module().embedding(words)  # LEAK cache


class Activations:
    """Looks into the model for a dashboard."""

    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []
        self.handle: torch.utils.hooks.RemovableHandle | None = None

    def keep(self, _module: torch.nn.Module, _args: object, output: torch.Tensor) -> None:
        """Keep the output of a forward hook."""
        self.seen.append(output)  # LEAK hook


activations = Activations()


def hook(loaded: Loaded, words: torch.Tensor) -> None:
    """Register a hook once, and never remove it."""
    if activations.handle is None:
        activations.handle = loaded.module().encoder.register_forward_hook(activations.keep)
    with torch.no_grad():
        loaded.module()(words)


def check(hidden: torch.Tensor) -> None:
    """Find something wrong, always."""
    raise ValueError(f"scores of {hidden.shape[1]} are out of range")


def exception(loaded: Loaded, words: torch.Tensor) -> None:
    """Keep an error for the status page, and with its traceback the tensors of all frames."""
    with torch.inference_mode():
        hidden = loaded.module().embedding(words)
    try:
        check(hidden)
    except ValueError as error:
        errors.append(error)  # LEAK exception


LEAKS: dict[str, Leak] = {leak.__name__: leak for leak in (outputs, no_grad, cache, hook, exception)}
