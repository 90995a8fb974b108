"""An app that leaks, and whose allocator records stacks: prints what a census with lines says about it.

The tensors are real ones of the CPU's; what stands in is the recorder of the CUDA allocator. It keeps to the documented
layout of a snapshot, with the addresses that torch itself gives.
https://docs.pytorch.org/docs/stable/torch_cuda_memory.html
"""
# mypy: disable-error-code="import-not-found, misc, no-untyped-call"

from __future__ import annotations

import inspect
import json
import sys
import traceback
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from driver import Traffic

from gpuagent_client import blame

WIDTH = 64
results: list[torch.Tensor] = []
recent: OrderedDict[int, torch.Tensor] = OrderedDict()


class Recorder:
    """Remembers, while it is on, where each tensor was made; forgets those that are gone."""

    def __init__(self) -> None:
        self.on = False
        self.calls: list[object] = []
        self.blocks: dict[int, dict[str, Any]] = {}

    def record(self, enabled: str | None = "all", context: str | None = "all", stacks: str = "all") -> None:
        self.calls.append(enabled)
        self.on = enabled is not None

    def note(self, tensor: torch.Tensor) -> torch.Tensor:
        """As the allocator does: innermost frame first, and that is torch's own."""
        if self.on:
            storage = tensor.untyped_storage()
            address, size = storage.data_ptr(), storage.nbytes()
            stack = [
                {"filename": frame.filename, "line": frame.lineno, "name": frame.name}
                for frame in reversed(traceback.extract_stack()[:-1])
            ]
            inside = {"filename": str(Path(torch.__file__).parent / "nn" / "f.py"), "line": 1, "name": "f"}
            self.blocks[address] = {
                "address": address, "size": -(-size // 512) * 512, "requested_size": size,
                "state": "active_allocated", "frames": [inside, *stack],
            }  # fmt: skip
            weakref.finalize(tensor, self.blocks.pop, address, None)
        return tensor

    def snapshot(self, mempool_id: object = None, include_traces: bool = True) -> list[dict[str, Any]]:
        self.calls.append("snapshot with traces" if include_traces else "snapshot")
        return [{"device": 0, "address": 0, "total_size": 0, "blocks": list(self.blocks.values())}]


def replace(module: types.ModuleType, name: str, fake: Callable[..., object]) -> None:
    """Put a fake in the place of a function that takes the same arguments, or more."""
    real = inspect.signature(getattr(module, name)).parameters
    unknown = inspect.signature(fake).parameters.keys() - real.keys()
    assert not unknown, f"{name} of this torch takes no {unknown}"
    setattr(module, name, fake)


recorder = Recorder()
torch.cuda.is_initialized = lambda: True
torch.cuda.memory.get_allocator_backend = lambda: "native"
replace(torch.cuda.memory, "_record_memory_history", recorder.record)
replace(torch.cuda.memory, "memory_snapshot", recorder.snapshot)
torch._C._cuda_isHistoryEnabled = lambda: "recording" in sys.argv


def embed(number: int) -> torch.Tensor:
    """What is kept."""
    return recorder.note(torch.full((WIDTH,), float(number)))  # LINE allocated


def look_up(number: int) -> torch.Tensor:
    """What comes and goes."""
    return recorder.note(torch.full((WIDTH, 2), float(number)))


def serve(number: int) -> None:
    """A request."""
    results.append(embed(number))  # LINE kept
    recent[number] = look_up(number)
    while len(recent) > 20:
        recent.popitem(last=False)


def main() -> None:
    """Leak, ask, print."""
    traffic = Traffic(serve)
    traffic.wait(0.5)
    answer = blame.run("census", {"window_seconds": 4, "lines": True}, 60.0, traffic)
    sys.stdout.write(json.dumps({**answer, "calls": recorder.calls}))


if __name__ == "__main__":
    main()
