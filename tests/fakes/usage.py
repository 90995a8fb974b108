"""Figures of the usage ledger in which everything has a value."""

from __future__ import annotations

from gpuagent.core.usage import Amounts, GpuUsage, Holder, HolderKind, HolderUsage, UsageFigures


def full_usage() -> UsageFigures:
    """Every family has a sample of it."""
    holder = Holder(HolderKind.PROCESSES, "alice", "whisper.service", "4c01db0b339c", "ml", "notebook-0", "48213")
    amounts = Amounts(3600.0, 3000.0, 1200.0, 600.0, 2.0**42, 2.0**40, 1e6)
    return UsageFigures(
        holders=(HolderUsage(0, "GPU-0", holder, amounts, 120.0),),
        gpus=(GpuUsage(0, "GPU-0", 3600.0, 1200.0),),
        price_per_gpu_hour=2.5,
        currency="EUR",
        idle_limit_seconds=14_400.0,
    )
