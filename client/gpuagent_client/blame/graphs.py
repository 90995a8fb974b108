"""Read what autograd graphs hold. Runs in a forked child.

Tensors that no Python object holds were saved for a backward pass, in the graph of some output. Such a tensor may be
freed by a backward thread without the interpreter's lock (https://github.com/pytorch/pytorch/issues/60551), and
`_saved_*` would run hooks of the app; `_raw_saved_*.data` runs none.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from types import ModuleType

from gpuagent_client.blame.tensors import LiveTensor, exact_types, identify

RAW = "_raw_saved_"
# First all of them a little. Then those that are longer, further: a sum over all requests of the window may have some
# hundred thousand nodes, which is what makes it worth finding.
QUICK_NODES = 2_000
FULL_NODES = 2_000_000
QUICK_PART = 0.4


class GraphReader:
    """Reader of graphs that visits each node once, and remembers which attributes each type of node has."""

    def __init__(self, torch: ModuleType, seconds: float) -> None:
        self._torch = torch
        self._tensors = exact_types(torch.Tensor)
        self._names: dict[type, tuple[str, ...]] = {}
        self._seen: set[object] = set()
        self._seconds = seconds
        self.partly_read = 0

    def read_all(
        self, outputs: list[tuple[int, LiveTensor]]
    ) -> Iterator[tuple[int, LiveTensor, int, list[LiveTensor]]]:
        """Yield, for each output with its signature: new nodes of its graph, and the tensors that they hold."""
        began = time.process_time()
        unfinished = []
        with self._torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - see tensors.py
            for number, (signature, output) in enumerate(outputs):
                if time.process_time() > began + self._seconds * QUICK_PART:
                    self.partly_read += len(outputs) - number
                    break
                todo = self._start(output)
                count = len(todo)
                nodes, saved = self._read(todo, QUICK_NODES, began + self._seconds * QUICK_PART)
                yield signature, output, count + nodes, saved
                if todo:
                    unfinished.append((signature, output, todo))
            for signature, output, todo in unfinished:
                nodes, saved = self._read(todo, FULL_NODES, began + self._seconds)
                self.partly_read += bool(todo)
                yield signature, output, nodes, saved

    def _start(self, output: LiveTensor) -> deque[object]:
        first = self._torch.Tensor.grad_fn.__get__(output.tensor)
        if first is None or first in self._seen:
            return deque()
        self._seen.add(first)
        return deque([first])

    def _read(self, todo: deque[object], most: int, until: float) -> tuple[int, list[LiveTensor]]:
        """Read breadth first: what was computed last is seen first, however long the rest is."""
        saved: list[LiveTensor] = []
        nodes = 0
        while todo and nodes < most and time.process_time() < until:
            node = todo.popleft()
            saved.extend(self._saved_by(node))
            for following, _ in getattr(node, "next_functions", ()):
                if following is not None and following not in self._seen:
                    self._seen.add(following)
                    todo.append(following)
                    nodes += 1
        return nodes, saved

    def _saved_by(self, node: object) -> Iterable[LiveTensor]:
        kind = type(node)
        if kind not in self._names:
            self._names[kind] = tuple(name for name in dir(kind) if name.startswith(RAW))
        for name in self._names[kind]:
            try:
                value = getattr(node, name)
            except RuntimeError:  # freed by backward()
                continue
            for one in value if isinstance(value, tuple) else (value,):
                yield from self._tensors_in(getattr(one, "data", None))  # older torch has no .data
        yield from self._tensors_in(getattr(node, "variable", None))  # the leaf that a gradient is for
        try:
            kept = list(vars(node).values())  # the ctx of a custom Function
        except TypeError:
            kept = []
        for one in kept:
            yield from self._tensors_in(one)

    def _tensors_in(self, item: object) -> Iterable[LiveTensor]:
        if type(item) not in self._tensors:  # with a pack hook it is whatever the hook returned
            return
        try:
            live = identify(self._torch, item)
        except Exception:  # noqa: BLE001 - one tensor less
            return
        if live is not None:
            yield live


def exposes_saved_tensors(torch: ModuleType) -> bool:
    """Return whether this torch lets one look at what a node has saved."""
    return hasattr(torch._C._autograd.SavedTensor, "data")  # noqa: SLF001 - nothing public tells
