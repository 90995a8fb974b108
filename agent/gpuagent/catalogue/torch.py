"""Families of what embedded clients tell: the allocator's view of a process's memory on one GPU."""

from __future__ import annotations

from typing import NamedTuple

from gpuagent.catalogue.family import Family
from gpuagent.embedded import AllocatorReading, ClientReading
from gpuagent.reading import ProcessReading


class Allocator(NamedTuple):
    """One process on one GPU as the driver sees it, and as the allocator inside does."""

    process: ProcessReading
    client: ClientReading
    reading: AllocatorReading


TORCH_FAMILIES: tuple[Family[Allocator], ...] = ()
"""Labels begin with `PROCESS_LABELS`, then `app`."""
