"""Whether what rises in a service of which an earlier life leaked until its end is that leak again.

Of a first life nobody knows whether it is a cache, and so it has to take a good part of the memory before more is said.
That question is answered for a service that has leaked: once it is past the time in which models are loaded, its pace
and the room that is left are enough for a forecast. Only where that is near: a slow leak can wait for the usual proof.
"""

from __future__ import annotations

from typing import Final

from gpuagent.core.growth import Range
from gpuagent_alerts.leak.blocks import BLOCK_SECONDS
from gpuagent_alerts.leak.forecast import USUAL_SECONDS, slope_of
from gpuagent_alerts.leak.settings import SENSITIVITIES, SUSPECTED, Dial
from gpuagent_alerts.leak.signals import ProcessSignals
from gpuagent_alerts.leak.witnesses import Prior

LEAKS_AGAIN: Final = "it rises evenly, and an earlier life of this service leaked until its end"
LEAST_SECONDS: Final = 180.0
"""Time for which it must have risen after the blackout of the sensitivity."""
NEAR_SECONDS: Final = 3600.0
"""Forecast from which on the usual proof is waited for: it comes well before the end then."""
_LATE_SHARE: Final = 0.6
"""Share of its pace that the later half of that time must have."""


def pace_of_leak(
    signals: ProcessSignals, sensitivity: Dial, prior: Prior, total_bytes: float, free_bytes: float | None,
    *, goes_on: bool,
) -> Range | None:  # fmt: skip
    """Return bytes a second by which what rises now leaks, as an earlier life did; None where it is no leak by that.

    It never is where a life has levelled off. What is called so already (`goes_on`) stays so while it rises.
    """
    if sensitivity not in ("balanced", "sensitive") or not prior.leaked or prior.level_used or prior.level_tensors:
        return None
    signal = signals.used if signals.own is None else signals.own[0]
    criterion = signal.criteria[SENSITIVITIES.index(sensitivity) if signals.own is None else 0]
    seconds = min(float((signal.store.base_count - criterion.epoch) * BLOCK_SECONDS), USUAL_SECONDS)
    if seconds < LEAST_SECONDS or not free_bytes:
        return None
    # What was loaded before that is no part of the pace.
    whole, late = slope_of(signal.store, seconds), slope_of(signal.store, seconds / 2)
    if whole is None or late is None or whole.low <= 0:
        return None
    is_even = late.value >= _LATE_SHARE * whole.value
    has_grown = whole.value * seconds >= SUSPECTED.least_growth(total_bytes)
    is_near = free_bytes / whole.value <= NEAR_SECONDS
    return whole if goes_on or (is_even and has_grown and is_near) else None
