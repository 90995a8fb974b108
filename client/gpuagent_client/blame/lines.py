"""Which line allocated what stays: stacks for a bounded time, two snapshots, and their difference.

The CUDA allocator of torch records the stacks, of live blocks only ("state") and of Python frames only: with C++ frames
one snapshot took 461 s (https://github.com/pytorch/torchtitan/issues/3628). It is switched off in any case.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import NamedTuple

from gpuagent_client.blame.names import relative, short
from gpuagent_client.blame.request import MAX_TOP, Context, Refused, fits_into, number
from gpuagent_client.blame.tensors import loaded_torch
from gpuagent_client.blame.verdict import size

DEFAULT_WINDOW_SECONDS = 60.0
SPARE_SECONDS = 5.0
MAX_FRAMES = 5


class Block(NamedTuple):
    """A piece of memory; the same one in two snapshots was never given back in between."""

    device: int
    address: int
    requested_bytes: int


Frame = Mapping[str, object]
Snapshot = Mapping[str, object]


def lines(args: Mapping[str, object], deadline_seconds: float, context: Context) -> dict[str, object]:
    """The lines that allocated what was made early in the window and is still there at its end.

    Raises:
        Refused: no CUDA, another allocator, a capture, or the app records for itself.
    """
    window = number(args, "window_seconds", DEFAULT_WINDOW_SECONDS, 0.1, 600.0)
    fits_into(window, deadline_seconds, SPARE_SECONDS)
    torch = loaded_torch()
    refuse_lines(torch, context)
    assert torch is not None  # noqa: S101 - refused above
    record = torch.cuda.memory._record_memory_history  # noqa: SLF001 - there is no public recorder
    record("state", context="state", stacks="python")
    try:
        stopping = context.wait(window / 2)
        first = snapshot(torch)
        stopping = stopping or context.wait(window / 2)
        second = snapshot(torch)
    finally:
        record(None)
    if stopping:
        raise Refused("the app is stopping")
    return told(first, second, window, os.path.dirname(str(torch.__file__)))  # noqa: PTH120 - compared as text


def refuse_lines(torch: ModuleType | None, context: Context) -> None:
    """Whether lines can be recorded here, without touching CUDA before the app has.

    Raises:
        Refused: they cannot.
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
    """What is allocated, without the traces of what was: those cost 700 ms, and are not asked for."""
    memory = torch.cuda.memory
    if "include_traces" in inspect.signature(memory._snapshot).parameters:  # noqa: SLF001 - torch 2.11
        found: Snapshot = memory._snapshot(include_traces=False)  # noqa: SLF001
        return found
    raw: Snapshot = torch._C._cuda_memorySnapshot(None)  # noqa: SLF001 - _snapshot() would work on the traces
    return raw


def told(first: Snapshot, second: Snapshot, window_seconds: float, torch_folder: str) -> dict[str, object]:
    """The lines whose blocks are in both snapshots."""
    before = {block for block, _ in blocks(first)}
    kept: dict[tuple[str, int, str], list[int]] = {}
    stacks: dict[tuple[str, int, str], list[str]] = {}
    unknown = 0
    for block, frames in blocks(second):
        if block not in before:
            continue
        own = [frame for frame in frames if not _is_inside(frame, torch_folder)]
        if not own:
            unknown += block.requested_bytes
            continue
        place = _place(own[0])
        kept.setdefault(place, []).append(block.requested_bytes)
        stacks.setdefault(place, ["{}:{} in {}".format(*_place(frame)) for frame in own[:MAX_FRAMES]])
    ranked = sorted(kept, key=lambda place: -sum(kept[place]))[:MAX_TOP]
    entries = [
        {
            "file": place[0],
            "line": place[1],
            "function": place[2],
            "bytes": sum(kept[place]),
            "count": len(kept[place]),
            "growth_bytes": sum(kept[place]),
            "frames": stacks[place],
        }
        for place in ranked
    ]
    notes = [f"{size(unknown)} have no Python frame: allocated in a backward pass or by C++"] if unknown else []
    notes.append("the line that allocated is not always what keeps it; what warms up once looks like a leak once")
    return {
        "verdict": _verdict(entries, window_seconds),
        "groups": [],
        "lines": entries,
        "notes": notes,
        "stall_seconds": 0.0,
        "window_seconds": window_seconds,
    }


def blocks(taken: Snapshot) -> Iterator[tuple[Block, list[Frame]]]:
    """Blocks in use that have a stack: they were born after the recording began."""
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


def _is_inside(frame: Frame, torch_folder: str) -> bool:
    name = str(frame.get("filename", "??"))
    return name == "??" or name.startswith(("<", torch_folder + os.sep))


def _place(frame: Frame) -> tuple[str, int, str]:
    return relative(str(frame["filename"])), int(str(frame["line"])), short(str(frame["name"]))


def _verdict(entries: list[dict[str, object]], window_seconds: float) -> str:
    if not entries:
        return f"nothing that was allocated in the first half of {window_seconds:g} s is still there"
    most = entries[0]
    return (
        f"+{size(int(str(most['bytes'])))} in {window_seconds / 2:g} s was allocated at"
        f" {most['file']}:{most['line']} in `{most['function']}` ({most['count']} blocks) and is still there"
    )
