"""The evidence of a leak, as `gpuagent leaks explain` has it."""

from __future__ import annotations

from typing import Any

from gpuagent.core.units import GIB

NOW = 1_700_000_000.0


def evidence(*, allocated: bool = False, **changes: Any) -> dict[str, Any]:
    """A process that has taken 1 GiB more each minute, with `changes`; `allocated`: its tensors are told too."""
    points = [
        {
            "time_seconds": NOW - 600 + 60 * minute,
            "used_bytes": (10 + minute) * GIB,
            "baseline_bytes": (10 + minute) * GIB,
            "free_bytes": (60 - minute) * GIB,
            "allocated_bytes": (9 + minute) * GIB if allocated else None,
        }
        for minute in range(10)
    ]
    window = {"seconds": 480.0, "growth_bytes": 8 * GIB, "needed_bytes": GIB, "counts": True, "finding": "rose"}
    standard = {"sensitivity": "strict", "signal": "memory", "alarm": True, "alarm_seconds": NOW - 60, "nearest": ""}
    return {
        "pid": 4242, "gpu": 0, "gpu_uuid": "GPU-0000", "process": "embed-server", "time_seconds": NOW,
        "verdict": "leaking", "evidence": "strict", "growth_state": "rising",
        "growth_bytes_per_second": GIB / 60, "exhaustion_seconds": 3000.0, "memory_total_bytes": 80 * GIB,
        "reasons": ["floor of memory rose"], "points": points, "standards": [standard | {"windows": [window]}],
        "why": [],
    } | changes  # fmt: skip
