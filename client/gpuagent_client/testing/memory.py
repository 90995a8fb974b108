"""What this process holds in tensors, read between two calls.

On a GPU that is the allocator's own figure. The host has no such allocator: there the storages of all tensors are
counted, those that the collector knows and, in a forked child as in a census, those that autograd graphs keep.
"""

from __future__ import annotations

import gc
import json
from types import ModuleType

from gpuagent_client.allocator import Allocator, Torch
from gpuagent_client.blame.fork import ThreadFrame, run_in_child
from gpuagent_client.blame.graphs import GraphReader
from gpuagent_client.blame.tensors import LiveTensor, gradient_of, live_tensors, loaded_torch, tensors_among
from gpuagent_client.errors import Refused
from gpuagent_client.testing.growth import NODES

CHILD_SECONDS = 30.0
GRAPH_SECONDS = 10.0


class MemoryReader:
    """Read what is held, the same way each time."""

    def __init__(self) -> None:
        self._allocator = Allocator(Torch())
        self._unsupported = False

    def read(self) -> dict[str, int | None]:
        """Return the bytes on each device after a full collection, and the nodes of autograd graphs.

        Empty without torch. A device is missing before anything was allocated there; None is a figure that cannot be
        read now.
        """
        torch = loaded_torch()
        if torch is None:
            return {}
        gc.collect()
        held = _held_by_tensors(torch)
        reading = self._allocator.read()
        self._unsupported = self._unsupported or reading.error == "unsupported"
        if self._unsupported:  # the allocator keeps no figures: what Python knows of is all there is
            return held
        found: dict[str, int | None] = {name: held[name] for name in held if not name.startswith("cuda")}
        if reading.error:
            return {**found, **{name: None for name in held if name.startswith("cuda")}}
        for device in reading.devices:
            found[f"cuda:{device.ordinal}"] = device.figures.get("allocated_bytes")
        return found


def _held_by_tensors(torch: ModuleType) -> dict[str, int | None]:
    live = live_tensors(torch, gc.get_objects())
    try:
        return _count(torch, live)
    finally:
        live.clear()  # frames that a fork left behind would keep them until the next collection


def _count(torch: ModuleType, live: list[LiveTensor]) -> dict[str, int | None]:
    live += tensors_among(torch, [gradient_of(torch, one.tensor) for one in live], {id(one.tensor) for one in live})
    if not any(one.key.has_graph for one in live):
        return {**_bytes_by_device(live), NODES: 0}
    try:
        answer = run_in_child(lambda frames: _with_graphs(torch, live, frames), CHILD_SECONDS)
    except Refused:  # no memory for a child, or no answer in time
        return {**dict.fromkeys(_bytes_by_device(live)), NODES: None}
    found: dict[str, int | None] = json.loads(answer.data)
    return found


def _with_graphs(torch: ModuleType, live: list[LiveTensor], frames: list[ThreadFrame]) -> bytes:
    """Return, in a child, the same with what graphs hold."""
    del frames
    reader = GraphReader(torch, GRAPH_SECONDS)
    nodes = 0
    saved: list[LiveTensor] = []
    for _, _, count, tensors in reader.read_all([(0, one) for one in live if one.key.has_graph]):
        nodes += count
        saved += tensors
    found: dict[str, int | None] = {**_bytes_by_device([*live, *saved])}
    found[NODES] = nodes if not reader.partly_read else None
    return json.dumps(found if not reader.partly_read else dict.fromkeys(found)).encode()


def _bytes_by_device(live: list[LiveTensor]) -> dict[str, int]:
    """Return the bytes of the storages, each once, by device; `cpu` always, as nothing there is zero bytes."""
    storages = {one.storage: one for one in live}
    found = {"cpu": 0}
    for one in storages.values():
        name = str(one.key.device)
        found[name] = found.get(name, 0) + one.storage_bytes
    return found
