"""Numbers that mean "no value": never exported, whatever call they come from."""

from __future__ import annotations

import math

from gpuagent.core.wording import WITHHELD

NOT_AVAILABLE_U64 = 2**64 - 1
NO_INSTANCE_U32 = 2**32 - 1

# NVML's own "not available", and the blanks that DCGM and its forks put in place of a number: INT32, INT64 and FP64
# blanks, each with up to 15 variants (dcgm_structs.h; slurm-job-exporter#30, gpu-monitoring-tools#97).
_BLANK_RANGES = (
    (2**31 - 16, 2**31 - 1),
    (2**63 - 16, 2**63 + 2048),
    (2**64 - 2048, 2**64),
)
_IMPOSSIBLE_BYTES = 2**48
"""More memory than any GPU has."""
_BLANK_FLOAT = 140737488355328.0
_LOWEST_BLANK = min(low for low, _ in _BLANK_RANGES)


def is_blank(value: float) -> bool:
    """Whether a number stands for "no value".

    >>> is_blank(2**64 - 1), is_blank(140737488355328.0), is_blank(80 * 2**30)
    (True, True, False)
    """
    if 0 <= value < _LOWEST_BLANK:  # nearly every number: 150 of them a GPU at the slow rate
        return False
    if not math.isfinite(value):
        return True
    if _BLANK_FLOAT <= value < _BLANK_FLOAT + 16:
        return True
    return any(low <= value <= high for low, high in _BLANK_RANGES)


def count(value: float | None) -> int | None:
    """A counter or size, or None if it is blank or negative."""
    if value is None or value < 0 or is_blank(value):
        return None
    return int(value)


NOT_BELIEVED = f"the driver's figures {WITHHELD}"


def possible_memory(total: int | None, *parts: int | None) -> bool:
    """A size that a GPU can have, the first part known, and none larger than the whole.

    An alert, or worse, must not follow from nonsense.
    """
    if total is None or total >= _IMPOSSIBLE_BYTES or parts[0] is None:
        return False
    return all(part is None or part <= total for part in parts)


def ratio(percent: float | None) -> float | None:
    """Percent to ratio; None for what no engine can reach (37,100 % has been seen: nvtop#110)."""
    if percent is None or not 0 <= percent <= 100:
        return None
    return percent / 100


def celsius(value: float | None) -> float | None:
    """A temperature that a working chip can have, or None."""
    if value is None or not -100 < value < 250:
        return None
    return float(value)


def watts(milliwatts: float | None) -> float | None:
    """Milliwatts to watts; None where no GPU could draw that."""
    if milliwatts is None or not 0 <= milliwatts < 100_000_000:
        return None
    return milliwatts / 1000
