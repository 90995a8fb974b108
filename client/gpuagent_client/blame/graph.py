"""Tensors that no Python object holds: they were saved for a backward pass, in the graph of some output.

Only for a forked child. A tensor that a node has saved may be freed by a backward thread without the interpreter's
lock (https://github.com/pytorch/pytorch/issues/60551), and `_saved_*` would run hooks of the app; `_raw_saved_*.data`
runs none.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from types import ModuleType
from typing import NamedTuple

from gpuagent_client.blame.tensors import Live, exact_types, look_at

MAX_CANDIDATES = 400
RAW = "_raw_saved_"


class Limits(NamedTuple):
    """How far one graph is read."""

    nodes: int
    seconds: float


# First all of them a little. Then the few that are longer, further: a sum over all requests of the window may have some
# hundred thousand nodes, which is what makes it worth finding.
GLANCE = Limits(20_000, 0.1)
GLANCES_SECONDS = 2.0
READING = Limits(2_000_000, 1.5)
MAX_READINGS = 3


class Graph(NamedTuple):
    """What the graph of one tensor holds."""

    candidate: Live
    saved: dict[int, Live]  # by storage
    nodes: int
    whole: bool


def graphs(torch: ModuleType, candidates: Iterable[Live]) -> list[Graph]:
    """Walk the graphs of these tensors, each within its bounds."""
    reader = _Reader(torch)
    until = time.monotonic() + GLANCES_SECONDS
    found = []
    for candidate in list(candidates)[:MAX_CANDIDATES]:
        if time.monotonic() > until:
            break
        found.append(reader.read(candidate, GLANCE))
    longer = [index for index, graph in enumerate(found) if not graph.whole][:MAX_READINGS]
    for index in longer:
        found[index] = reader.read(found[index].candidate, READING)
    return found


class _Reader:
    """Remembers which attributes each type of node has, and which types are tensors."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self._tensors = exact_types(torch.Tensor)
        self._names: dict[type, tuple[str, ...]] = {}

    def read(self, candidate: Live, limits: Limits) -> Graph:
        """Breadth first: what was computed last is seen first, however long the rest is."""
        with self._torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - see tensors.py
            saved: dict[int, Live] = {}
            first = self._torch.Tensor.grad_fn.__get__(candidate.tensor)
            todo, seen = deque([first]), {first}
            until = time.monotonic() + limits.seconds
            while todo and len(seen) < limits.nodes and time.monotonic() < until:
                node = todo.popleft()
                for live in self._saved_by(node):
                    saved[live.storage] = live
                for following, _ in getattr(node, "next_functions", ()):
                    if following is not None and following not in seen:
                        seen.add(following)
                        todo.append(following)
        return Graph(candidate, saved, len(seen), whole=not todo)

    def _saved_by(self, node: object) -> Iterable[Live]:
        kind = type(node)
        if kind not in self._names:
            self._names[kind] = tuple(name for name in dir(kind) if name.startswith(RAW))
        for name in self._names[kind]:
            try:
                value = getattr(node, name)
            except RuntimeError:  # freed by backward()
                continue
            for one in value if isinstance(value, tuple) else (value,):
                yield from self._look(getattr(one, "data", None))  # older torch has no .data
        yield from self._look(getattr(node, "variable", None))  # the leaf that a gradient is for
        try:
            kept = list(vars(node).values())  # the ctx of a custom Function
        except TypeError:
            kept = []
        for one in kept:
            yield from self._look(one)

    def _look(self, item: object) -> Iterable[Live]:
        if type(item) not in self._tensors:  # with a pack hook it is whatever the hook returned
            return
        try:
            live = look_at(self._torch, item)
        except Exception:  # noqa: BLE001 - one tensor less
            return
        if live is not None:
            yield live


def exposes_saved_tensors(torch: ModuleType) -> bool:
    """Return whether this torch lets one look at what a node has saved."""
    return hasattr(torch._C._autograd.SavedTensor, "data")  # noqa: SLF001 - nothing public tells
