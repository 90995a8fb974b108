"""What a request does to the allocator: read before and after, at the cost of one call for each GPU in use.

torch's peak belongs to the process and can only be reset for all, which would break the app's own figures, so it is
never reset. A request that was alone and raised it has that peak. For any other it is known to be no more than the
process's peak, and no more than what was allocated at the start plus all that was allocated since.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gpuagent_client.torch_door import NotThere, Torch

LOOK_FOR_GPUS_EVERY = 100
"""Readings. A GPU that the app begins to use later is seen with one of the next."""


class Figures(NamedTuple):
    """The allocator over all GPUs of this process, in bytes."""

    allocated_bytes: int
    reserved_bytes: int
    peak_bytes: int
    """The highest allocated so far, as torch counts it."""
    churned_bytes: int
    """All that was ever allocated, also what was freed again."""

    @property
    def cached_bytes(self) -> int:
        """Taken from the GPU and not in use."""
        return max(0, self.reserved_bytes - self.allocated_bytes)


class Change(NamedTuple):
    """What happened between two readings, in bytes."""

    delta_bytes: int
    """What stayed allocated; negative where it was given back."""
    peak_bytes: int
    """The highest allocated in between; an upper bound of what this request did, if not `exact`."""
    added_bytes: int
    """That peak above what was allocated at the beginning: what the request needed."""
    exact: bool


class Meter:
    """Reads the allocator of the app's torch. Threads may share it."""

    def __init__(self, torch: Torch) -> None:
        self._torch = torch
        self._in_use: list[int] = []
        self._readings = 0
        self._silent = False

    def read(self) -> Figures | None:
        """The figures of now; None where CUDA is not up, or nobody counts. Never raises, never starts CUDA."""
        if self._silent or not self._torch.initialised():
            return None
        try:
            if self._readings % LOOK_FOR_GPUS_EVERY == 0 or not self._in_use:
                self._in_use = [index for index in range(self._torch.device_count()) if self._torch.has_context(index)]
            self._readings += 1
            allocated = reserved = peak = churned = 0
            for index in self._in_use:
                nested: Mapping[str, Any] = self._torch.call("torch._C", "_cuda_memoryStats", index)
                figures = nested["allocated_bytes"]["all"]
                allocated += figures["current"]
                peak += figures["peak"]
                churned += figures["allocated"]
                reserved += nested["reserved_bytes"]["all"]["current"]
        except NotThere:
            self._silent = True
            return None
        except Exception as error:  # noqa: BLE001 - torch raises what it likes
            self._silent = "not yet support" in str(error)  # a pluggable allocator keeps none; all else may pass
            return None
        return Figures(allocated, reserved, peak, churned) if self._in_use else None


def compare(before: Figures, after: Figures, *, alone: bool) -> Change:
    """What happened in between; `alone`: no other request was in the section meanwhile."""
    least = max(before.allocated_bytes, after.allocated_bytes)
    rose = after.peak_bytes > before.peak_bytes
    most = max(
        least, min(after.peak_bytes, before.allocated_bytes + max(0, after.churned_bytes - before.churned_bytes))
    )
    peak = max(least, after.peak_bytes) if rose else most
    return Change(
        delta_bytes=after.allocated_bytes - before.allocated_bytes,
        peak_bytes=peak,
        added_bytes=max(0, peak - before.allocated_bytes),
        exact=alone and (rose or peak == least),
    )
