"""What a process tells of itself through the embedded client: its allocator's figures, per GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuagent.identity import ProcessId


@dataclass(frozen=True, slots=True)
class AllocatorReading:
    """A caching allocator's figures on one GPU, in bytes or counts. What it does not tell is None, never 0.

    Keys and their meaning: https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.memory_stats.html
    """

    allocated_bytes: int | None = None
    """Handed out to tensors."""
    allocated_peak_bytes: int | None = None
    reserved_bytes: int | None = None
    """Taken from the driver."""
    reserved_peak_bytes: int | None = None
    active_bytes: int | None = None
    inactive_split_bytes: int | None = None
    """Free pieces of segments that are partly in use: cannot go back."""
    segments: int | None = None
    alloc_retries: int | None = None
    ooms: int | None = None
    limit_ratio: float | None = None
    """Share of the GPU that the process may take, where it has been limited."""


@dataclass(frozen=True, slots=True)
class ClientReading:
    """One app with an embedded client that is connected now. Its identity is the kernel's word, never the app's."""

    id: ProcessId
    app: str
    client_version: str = ""
    torch_version: str = ""
    python_version: str = ""
    backend: str = ""
    """Name of the allocator: native, cudaMallocAsync, pluggable; "" before CUDA is up."""
    capabilities: tuple[str, ...] = ()
    """Commands that the app obeys."""
    measured_seconds: float | None = None
    """CLOCK_BOOTTIME of the last figures; None before the first."""
    devices: Mapping[str, AllocatorReading] = field(default_factory=dict)
    """By NVML's UUID of the GPU; figures on a MIG device are under its GPU's, as its processes are.

    Empty once the figures are too old to be believed.
    """
    problem: str = ""
    """Why there are no figures although CUDA is up, such as an allocator that keeps none."""
    declared_minimum_bytes: int | None = None
    declared_typical_bytes: int | None = None
    frameworks: Mapping[str, bool] = field(default_factory=dict)
    """Those that use the GPU beside torch, and whether they took most of it when they came up."""
