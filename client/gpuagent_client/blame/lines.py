"""Which line allocated what stays: stacks for a bounded time, two snapshots, and their difference."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import ModuleType
from typing import NamedTuple

from gpuagent_client.blame.names import relative, short
from gpuagent_client.blame.recording import Frame, Snapshot, blocks, recording, snapshot
from gpuagent_client.blame.request import MAX_TOP, Context, Refused, fits_into, number
from gpuagent_client.blame.tensors import loaded_torch
from gpuagent_client.blame.verdict import size

DEFAULT_WINDOW_SECONDS = 60.0
SPARE_SECONDS = 5.0
MAX_FRAMES = 5


class Place(NamedTuple):
    """A line of the app."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


def lines(args: Mapping[str, object], deadline_seconds: float, context: Context) -> dict[str, object]:
    """The lines that allocated what was made early in the window and is still there at its end.

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
    entries, notes = told(first, second, torch_folder(torch))
    return {
        "verdict": verdict(entries, window / 2),
        "groups": [],
        "lines": entries,
        "notes": notes,
        "stall_seconds": 0.0,
        "window_seconds": window,
    }


def torch_folder(torch: ModuleType) -> str:
    """Frames in there are not the app's."""
    return os.path.dirname(str(torch.__file__))  # noqa: PTH120 - compared as text


def told(first: Snapshot, second: Snapshot, folder: str) -> tuple[list[dict[str, object]], list[str]]:
    """The lines whose blocks are in both snapshots, most bytes first, and what there is to say about them."""
    before = {block for block, _ in blocks(first)}
    kept: dict[Place, list[int]] = {}
    stacks: dict[Place, list[str]] = {}
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


def places_by_block(taken: Snapshot, folder: str) -> dict[tuple[int, int], Place]:
    """Where each block was allocated, by address and bytes asked for. GPUs share one range of addresses.

    https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#unified-virtual-address-space
    """
    found = ((block, own_places(frames, folder)) for block, frames in blocks(taken))
    return {(block.address, block.requested_bytes): own[0] for block, own in found if own}


def own_places(frames: list[Frame], folder: str) -> list[Place]:
    """The innermost lines that are not torch's."""
    return [_place(frame) for frame in frames if not _is_inside(frame, folder)][:MAX_FRAMES]


def _is_inside(frame: Frame, torch_folder: str) -> bool:
    name = str(frame.get("filename", "??"))
    return name == "??" or name.startswith(("<", torch_folder + os.sep))


def _place(frame: Frame) -> Place:
    return Place(relative(str(frame["filename"])), int(str(frame["line"])), short(str(frame["name"])))


def verdict(entries: list[dict[str, object]], born_seconds: float) -> str:
    """One sentence about the line that allocated most of what was born in the first part of the window."""
    if not entries:
        return f"nothing that was allocated in the first {born_seconds:g} s is still there"
    most = entries[0]
    return (
        f"+{size(int(str(most['bytes'])))} in {born_seconds:g} s was allocated at"
        f" {most['file']}:{most['line']} in `{most['function']}` ({most['count']} blocks) and is still there"
    )
