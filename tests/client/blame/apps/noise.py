"""What is beside every leak and must never be blamed: a bounded cache, always full, of the very tensors that leak."""
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

from collections import OrderedDict

import torch

ENTRIES = 100

noise: OrderedDict[int, torch.Tensor] = OrderedDict()


def fresh() -> torch.Tensor:
    """A tensor like all others here."""
    return torch.randn(16, 64)


def busy_cache(number: int) -> None:
    """One in, one out."""
    noise[number] = fresh()
    if len(noise) > ENTRIES:
        noise.popitem(last=False)
