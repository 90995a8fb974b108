"""Find the line that allocated what stays: record stacks for a bounded time, take two snapshots, and compare them.

Snapshots are of live blocks only ("state") and of Python frames only: with C++ frames one took 461 s
(https://github.com/pytorch/torchtitan/issues/3628). Nothing is asked before the app itself has CUDA up.

The last child of a census tells where the storages of a holder's tensors lie; the allocator's snapshot says which line
asked for the block at that address. What outlived the window was there all the time between the second and the third
tensor snapshot, so an allocator snapshot from in between is of these very tensors. Addresses stay in this process.
"""

from __future__ import annotations

import inspect
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import NamedTuple

from gpuagent_client.blame.paths import relative, short
from gpuagent_client.blame.tensors import LiveTensor, loaded_torch
from gpuagent_client.blame.wire import MAX_TOP, Context, fits_into, number, size
from gpuagent_client.errors import Refused


def allocated_bytes(torch: ModuleType) -> dict[str, int]:
    """Return bytes in tensors, by device; empty without CUDA, or with an allocator that does not tell."""
    if not torch.cuda.is_initialized():
        return {}
    found = {}
    has_context = getattr(torch._C, "_cuda_hasPrimaryContext", lambda _: True)  # noqa: SLF001 - to ask makes none
    for index in range(torch.cuda.device_count()):
        try:
            if not has_context(index):
                continue
            stats = torch._C._cuda_memoryStats(index)  # noqa: SLF001 - memory_stats() costs ten times as much
            found[f"cuda:{index}"] = int(stats["allocated_bytes"]["all"]["current"])
        except (RuntimeError, KeyError, TypeError):
            continue
    return {device: used for device, used in found.items() if used}


def grown_bytes(torch: ModuleType, before: Mapping[str, int], now: Mapping[str, int]) -> tuple[dict[str, int], str]:
    """Return how many bytes more are in tensors than before, by device, and what is to be said of it.

    CUDA's own allocator (cudaMallocAsync) may tell of no bytes where there are some: that is taken for no answer.
    """
    may_be_silent = torch.cuda.is_initialized() and torch.cuda.memory.get_allocator_backend() == "cudaMallocAsync"
    known = [device for device in now if device in before or not may_be_silent]
    silent = sorted(now.keys() ^ before.keys()) if may_be_silent else []
    said = f"cudaMallocAsync tells of no bytes on {', '.join(silent)}: not believed" if silent else ""
    return {device: now[device] - before.get(device, 0) for device in known}, said


def pinned_bytes(torch: ModuleType) -> int | None:
    """Return bytes of host memory that torch has pinned for a GPU; None where it does not tell. Never calls CUDA."""
    stats = getattr(torch._C, "_cuda_hostMemoryStats", None)  # noqa: SLF001 - the public function starts CUDA
    if stats is None or not torch.cuda.is_initialized():
        return None
    try:
        return int(stats()["allocated_bytes"]["current"])
    except (RuntimeError, KeyError, TypeError):
        return None


Frame = Mapping[str, object]
Snapshot = Mapping[str, object]


class Block(NamedTuple):
    """Block of device memory; the same one in two snapshots was never freed in between."""

    device: int
    address: int
    requested_bytes: int


@contextmanager
def recording(torch: ModuleType | None, context: Context) -> Iterator[ModuleType]:
    """Record allocations as long as the block lasts; yield the torch that is sure to be there.

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
    """Refuse where recording cannot be done, without touching CUDA before the app has.

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
    if takes_traces(memory.memory_snapshot):  # torch 2.10 and newer
        return {"segments": memory.memory_snapshot(include_traces=False)}
    found: Snapshot = memory._snapshot()  # noqa: SLF001 - the public function leaves out the devices' segments
    return found


def takes_traces(function: Callable[..., object]) -> bool:
    """Return whether a function of torch can leave the traces out."""
    return "include_traces" in inspect.signature(function).parameters


def blocks(taken: Snapshot) -> Iterator[tuple[Block, list[Frame]]]:
    """Yield blocks in use that have a stack: they were allocated after the recording began.

    https://docs.pytorch.org/docs/stable/torch_cuda_memory.html#snapshot-api-reference
    """
    for segment in _list(taken.get("segments")):
        if _is_private(segment):
            continue
        address = int(str(segment.get("address", 0)))
        for block in _list(segment.get("blocks")):
            here = int(str(block.get("address", address)))
            frames = list(_list(block.get("frames")))
            if block.get("state") == "active_allocated" and frames:
                requested = int(str(block.get("requested_size", block.get("size", 0))))
                yield Block(int(str(segment.get("device", 0))), here, requested), frames
            address = here + int(str(block.get("size", 0)))


def _is_private(segment: Mapping[str, object]) -> bool:
    """Return whether this belongs to the pool of a CUDA graph: each replay writes to the same addresses."""
    pool = segment.get("segment_pool_id")
    return isinstance(pool, (list, tuple)) and any(pool)


def _list(value: object) -> Iterable[Mapping[str, object]]:
    return value if isinstance(value, (list, tuple)) else ()


DEFAULT_WINDOW_SECONDS = 60.0
SPARE_SECONDS = 5.0
MAX_FRAMES = 5


class SourceLine(NamedTuple):
    """A line of the app."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


def lines(args: Mapping[str, object], deadline_seconds: float, context: Context) -> dict[str, object]:
    """Return the lines that allocated what was made early in the window and is still there at its end.

    Raises:
        Refused: no CUDA, another allocator, a capture, or the app records for itself.
    """
    window = number(args, "window_seconds", DEFAULT_WINDOW_SECONDS, 0.1, 600.0)
    fits_into(window, deadline_seconds, SPARE_SECONDS)
    with recording(loaded_torch(), context) as torch:
        stopping = context.wait(window / 2)
        first = snapshot(torch)
        stopping = stopping or context.wait(window / 2)
        second = snapshot(torch)
    if stopping:
        raise Refused("the app is stopping")
    entries, notes = surviving_lines(first, second, torch_folder(torch))
    return {
        "verdict": lines_verdict(entries, window / 2),
        "groups": [],
        "lines": entries,
        "notes": notes,
        "stall_seconds": 0.0,
        "window_seconds": window,
    }


def torch_folder(torch: ModuleType) -> str:
    """Return torch's folder: frames in there are not the app's."""
    return os.path.dirname(str(torch.__file__))  # noqa: PTH120 - compared as text


def surviving_lines(first: Snapshot, second: Snapshot, folder: str) -> tuple[list[dict[str, object]], list[str]]:
    """Return the lines whose blocks are in both snapshots, most bytes first, and what there is to say about them."""
    before = {block for block, _ in blocks(first)}
    kept: dict[SourceLine, list[int]] = {}
    stacks: dict[SourceLine, list[str]] = {}
    unknown = 0
    for block, frames in blocks(second):
        if block not in before:
            continue
        own = own_places(frames, folder)
        if not own:
            unknown += block.requested_bytes
            continue
        kept.setdefault(own[0], []).append(block.requested_bytes)
        stacks.setdefault(own[0], [str(place) for place in own])
    ranked = sorted(kept, key=lambda place: -sum(kept[place]))[:MAX_TOP]
    entries: list[dict[str, object]] = [
        {
            **place._asdict(),
            "bytes": sum(kept[place]),
            "count": len(kept[place]),
            "growth_bytes": sum(kept[place]),
            "frames": stacks[place],
        }
        for place in ranked
    ]
    notes = [f"{size(unknown)} have no Python frame: allocated in a backward pass or by C++"] if unknown else []
    notes.append("the line that allocated is not always what keeps it; what warms up once looks like a leak once")
    return entries, notes


def places_by_block(taken: Snapshot, folder: str) -> dict[tuple[int, int], SourceLine]:
    """Return where each block was allocated, by address and bytes asked for. GPUs share one range of addresses.

    https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#unified-virtual-address-space
    """
    found = ((block, own_places(frames, folder)) for block, frames in blocks(taken))
    return {(block.address, block.requested_bytes): own[0] for block, own in found if own}


def own_places(frames: list[Frame], folder: str) -> list[SourceLine]:
    """Return the innermost lines that are not torch's."""
    return [_source_line(frame) for frame in frames if not _is_inside(frame, folder)][:MAX_FRAMES]


def _is_inside(frame: Frame, torch_folder: str) -> bool:
    name = str(frame.get("filename", "??"))
    return name == "??" or name.startswith(("<", torch_folder + os.sep))


def _source_line(frame: Frame) -> SourceLine:
    return SourceLine(relative(str(frame["filename"])), int(str(frame["line"])), short(str(frame["name"])))


def lines_verdict(entries: list[dict[str, object]], born_seconds: float) -> str:
    """Return a sentence about the line that allocated most of what was made in the first part of the window."""
    if not entries:
        return f"nothing that was allocated in the first {born_seconds:g} s is still there"
    most = entries[0]
    return (
        f"+{size(int(str(most['bytes'])))} in {born_seconds:g} s was allocated at"
        f" {most['file']}:{most['line']} in `{most['function']}` ({most['count']} blocks) and is still there"
    )


MAX_ADDRESSES = 500
ADDRESSES = "addresses"
"""The key in a group of the child's, which never leaves the app."""


def addresses(torch: ModuleType, tensors: Iterable[LiveTensor]) -> list[tuple[int, int]]:
    """Return the addresses and bytes of the tensors' storages, the largest first. For the child: never calls CUDA."""
    by_storage = {live.storage: live for live in tensors}
    largest = sorted(by_storage.values(), key=lambda live: -live.storage_bytes)[:MAX_ADDRESSES]
    found = []
    # To ask a lazy copy for its address would make it a real one, and allocate.
    is_lazy = getattr(torch._C, "_is_cow_tensor", lambda _: False)  # noqa: SLF001 - nothing public tells
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - as for the snapshot itself
        for live in largest:
            try:
                if not is_lazy(live.tensor):
                    found.append((int(torch.Tensor.untyped_storage(live.tensor).data_ptr()), live.storage_bytes))
            except (RuntimeError, NotImplementedError):  # a tensor without memory of its own
                continue
    return found


def add_allocating_lines(groups: Iterable[dict[str, object]], places: Mapping[tuple[int, int], SourceLine]) -> None:
    """Add to each group the line that allocated most of what it holds, where that was recorded."""
    for group in groups:
        held = group.pop(ADDRESSES, ())
        bytes_by_place: Counter[SourceLine] = Counter()
        for address, size_bytes in held if isinstance(held, (list, tuple)) else ():
            place = places.get((address, size_bytes))
            if place is not None:
                bytes_by_place[place] += size_bytes
        for place, size_bytes in bytes_by_place.most_common(1):
            group.update({f"allocated_{name}": value for name, value in place._asdict().items()})
            group["allocated_bytes"] = size_bytes


class Recorder:
    """Record which lines allocate during a census; where that cannot be recorded, the census goes on without."""

    def __init__(self, torch: ModuleType, context: Context) -> None:
        self._torch = torch
        self._snapshots: list[Snapshot] = []
        self._stack = ExitStack()
        self._problem = ""
        try:
            self._stack.enter_context(recording(torch, context))
        except (Refused, RuntimeError) as error:
            self._problem = str(error)

    def take_snapshot(self) -> None:
        """Take a snapshot of the allocator: after the second tensor snapshot, and before the third."""
        if not self._problem:
            try:
                self._snapshots.append(snapshot(self._torch))
            except RuntimeError as error:
                self._problem = str(error)

    def end(self) -> None:
        """Stop recording."""
        self._stack.close()

    def results(self, groups: list[dict[str, object]]) -> tuple[list[dict[str, object]], list[str]]:
        """Return the lines and notes; the groups get their allocating lines."""
        if self._problem:
            add_allocating_lines(groups, {})
            return [], [f"lines: {self._problem}"]
        first, second = self._snapshots
        folder = torch_folder(self._torch)
        add_allocating_lines(groups, places_by_block(second, folder))
        return surviving_lines(first, second, folder)
