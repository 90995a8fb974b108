"""What a container holds: the tensors so many references below it."""

from __future__ import annotations

import gc
from collections.abc import Mapping

from gpuagent_client.blame.tensors import Live
from gpuagent_client.blame.walk import Heap

MAX_OBJECTS = 2_000_000


def tensors_below(item: object, hops: int, live: Mapping[int, Live], heap: Heap) -> list[Live]:
    """The tensors at most `hops` references below; `live` is by the id of the tensor.

    The bound keeps a stray reference (request.app) from making the whole app a part of the container.
    """
    found: dict[int, Live] = {}
    seen = {id(item)}
    level = [item]
    for _ in range(hops):
        below: list[object] = []
        for parent in level:
            for child in gc.get_referents(parent):
                if id(child) in seen or len(seen) > MAX_OBJECTS or heap.is_root(child):
                    continue
                seen.add(id(child))
                if id(child) in live:
                    found[id(child)] = live[id(child)]
                else:
                    below.append(child)
        level = below
    return list(found.values())
