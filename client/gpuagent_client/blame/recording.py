"""What the CUDA allocator says it has handed out; nothing before the app itself has CUDA up.

Of live blocks only ("state") and of Python frames only: with C++ frames one snapshot took 461 s
(https://github.com/pytorch/torchtitan/issues/3628).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import NamedTuple

from gpuagent_client.blame.request import Context, Refused


def allocated_bytes(torch: ModuleType) -> dict[str, int]:
    """Return bytes in tensors, by device; empty without CUDA, or with an allocator that does not tell."""
    if not torch.cuda.is_initialized():
        return {}
    found = {}
    for index in range(torch.cuda.device_count()):
        try:
            stats = torch._C._cuda_memoryStats(index)  # noqa: SLF001 - memory_stats() costs ten times as much
            found[f"cuda:{index}"] = int(stats["allocated_bytes"]["all"]["current"])
        except (RuntimeError, KeyError, TypeError):
            continue
    return {device: used for device, used in found.items() if used}


Frame = Mapping[str, object]
Snapshot = Mapping[str, object]


class Block(NamedTuple):
    """A piece of memory; the same one in two snapshots was never given back in between."""

    device: int
    address: int
    requested_bytes: int


@contextmanager
def recording(torch: ModuleType | None, context: Context) -> Iterator[ModuleType]:
    """Record as long as the block lasts; gives the torch that is sure to be there.

    Raises:
        Refused: no CUDA, another allocator, a capture, or the app records for itself.
    """
    refuse_recording(torch, context)
    assert torch is not None  # noqa: S101 - refused above
    record = torch.cuda.memory._record_memory_history  # noqa: SLF001 - there is no public recorder
    record("state", context="state", stacks="python")
    try:
        yield torch
    finally:
        record(None)


def refuse_recording(torch: ModuleType | None, context: Context) -> None:
    """Whether it can be done here, without touching CUDA before the app has.

    Raises:
        Refused: it cannot.
    """
    if torch is None:
        raise Refused("the app has not loaded torch")
    if not torch.cuda.is_initialized():
        raise Refused("the app has no CUDA context: lines are known of CUDA memory only; the census knows more")
    if context.is_capturing():
        raise Refused("a CUDA graph is being captured")
    backend = torch.cuda.memory.get_allocator_backend()
    if backend != "native":
        raise Refused(f"the allocator {backend} records no lines")
    if not hasattr(torch.cuda.memory, "_record_memory_history"):
        raise Refused("this torch records no lines")
    enabled = getattr(torch._C, "_cuda_isHistoryEnabled", None)  # noqa: SLF001 - nothing public tells
    if enabled is not None and enabled():
        raise Refused("the app records its memory history itself")


def snapshot(torch: ModuleType) -> Snapshot:
    """Return what is allocated, without the traces of what was: those cost 700 ms, and are not asked for."""
    memory = torch.cuda.memory
    if "include_traces" in inspect.signature(memory._snapshot).parameters:  # noqa: SLF001 - torch 2.11
        found: Snapshot = memory._snapshot(include_traces=False)  # noqa: SLF001
        return found
    raw: Snapshot = torch._C._cuda_memorySnapshot(None)  # noqa: SLF001 - _snapshot() would work on the traces
    return raw


def blocks(taken: Snapshot) -> Iterator[tuple[Block, list[Frame]]]:
    """Blocks in use that have a stack: they were born after the recording began.

    https://docs.pytorch.org/docs/stable/torch_cuda_memory.html#snapshot-api-reference
    """
    for segment in _list(taken.get("segments")):
        address = int(str(segment.get("address", 0)))
        for block in _list(segment.get("blocks")):
            here = int(str(block.get("address", address)))
            frames = list(_list(block.get("frames")))
            if block.get("state") == "active_allocated" and frames:
                requested = int(str(block.get("requested_size", block.get("size", 0))))
                yield Block(int(str(segment.get("device", 0))), here, requested), frames
            address = here + int(str(block.get("size", 0)))


def _list(value: object) -> Iterable[Mapping[str, object]]:
    return value if isinstance(value, (list, tuple)) else ()
