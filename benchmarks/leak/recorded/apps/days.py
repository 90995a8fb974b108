"""A service on the CPU that answers days of requests as fast as it can: `days.py KIND`, in the interpreter with torch.

A line on standard input is a step: the words of each request in it. A line on standard output is what the process holds
after that step: resident bytes, then the bytes of glibc's malloc that are in use and that are held. The tensors and the
memory are real; only the clock, which is the caller's, runs faster.
"""
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import os
import random
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import torch
from heap import Heap

EXAMPLE = Path(__file__).parents[4] / "client" / "examples" / "served"
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
WIDTH, TOKENS, LAYERS, RANK = 1024, 256, 16, 16
MOST_PREFIXES, MOST_ADAPTERS = 1500, 80
PREFIXES, ADAPTERS = 100_000, 400
ADAPTER_SHARE = 0.015
"""Share of the requests of `lora` that ask for an adapter."""
Answer = Callable[[int], object]


def served(*, leaks: bool) -> Answer:
    """Return the example app's own answer, healthy or with each output kept."""
    os.environ["GPUAGENT_DISABLE"] = "1"
    sys.path.insert(0, str(EXAMPLE))
    import model

    model.WIDTH = WIDTH
    import app

    app.loaded.module()  # before the first request, as its lifespan does
    if leaks:
        app.leaking.add("outputs")
    return lambda words: app.infer(" ".join(f"word{number}" for number in range(words)))


def prefix_cache() -> Answer:
    """Return a server that keeps keys and values of prompts' beginnings, the popular ones, up to a bound."""
    rng, kept = random.Random(1), OrderedDict[int, tuple[torch.Tensor, torch.Tensor]]()
    key, value = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)

    def answer(words: int) -> object:
        prefix = _popular(rng, PREFIXES)
        with torch.inference_mode():
            if prefix not in kept:
                tokens = torch.randn(TOKENS, 64)
                kept[prefix] = key(tokens), value(tokens)
            kept.move_to_end(prefix)
            while len(kept) > MOST_PREFIXES:
                kept.popitem(last=False)
            keys, values = kept[prefix]
            return torch.randn(words, 64) @ keys.T @ values

    return answer


def lora() -> Answer:
    """Return a server of one model with adapters, each loaded when it is first asked for, up to a number of them."""
    rng, base = random.Random(2), torch.nn.Linear(WIDTH, WIDTH)
    loaded = OrderedDict[int, list[tuple[torch.Tensor, torch.Tensor]]]()

    def answer(words: int) -> object:
        with torch.inference_mode():
            hidden = base(torch.randn(words, WIDTH))
            if rng.random() >= ADAPTER_SHARE:
                return hidden
            name = _popular(rng, ADAPTERS)
            if name not in loaded:
                loaded[name] = [(torch.randn(WIDTH, RANK), torch.randn(RANK, WIDTH)) for _ in range(LAYERS)]
            loaded.move_to_end(name)
            while len(loaded) > MOST_ADAPTERS:
                loaded.popitem(last=False)
            for down, up in loaded[name]:
                hidden = hidden + hidden @ down @ up
            return hidden

    return answer


def _popular(rng: random.Random, count: int) -> int:
    """Draw one of so many: the first is asked for most, the last hardly ever."""
    return int(count ** rng.random())


KINDS: dict[str, Callable[[], Answer]] = {
    "served": lambda: served(leaks=False),
    "outputs": lambda: served(leaks=True),
    "prefix": prefix_cache,
    "lora": lora,
}


def main() -> None:
    """Answer until standard input ends."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    answer, heap = KINDS[sys.argv[1]](), Heap()
    for line in sys.stdin:
        for words in map(int, line.split()):
            answer(words)
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES
        figures = heap.figures()
        allocated, reserved = (figures[f"{name}_bytes"]["all"]["current"] for name in ("allocated", "reserved"))
        sys.stdout.write(f"{resident} {allocated} {reserved}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
