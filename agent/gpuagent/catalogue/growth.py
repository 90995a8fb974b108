"""Families of the leak detector: of a process on a GPU, and of a GPU as a whole."""

from __future__ import annotations

from gpuagent.catalogue.family import Family
from gpuagent.growth import Growth

GROWTH_FAMILIES: tuple[Family[Growth], ...] = ()
"""Labels begin with `PROCESS_LABELS`."""

GPU_GROWTH_FAMILIES: tuple[Family[Growth], ...] = ()
"""Labels begin with `GPU_LABELS`."""
