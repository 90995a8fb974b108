"""What must hold before growth is called a leak: every threshold, with its unit and its reason.

The words "floor", "eighth" and "window" are those of `windows.py`. A share is of the memory that is free now, because
free memory is what a leak eats: a server that preallocates 90 % of the GPU has little left, and 2 GiB are then much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, Literal

from gpuagent.core.hardware import FULL_RATIO

Sensitivity = Literal["strict", "balanced", "sensitive"]

SENSITIVITIES: Final[tuple[Sensitivity, ...]] = ("strict", "balanced", "sensitive")
"""The strictest first: what meets one nearly always meets those after it."""


Dial = Literal["off", "strict", "balanced", "sensitive"]
"""A sensitivity, or `off`: nothing is ever called a leak. What is read of the memory is the same."""

DIALS: Final[tuple[Dial, ...]] = ("off", *SENSITIVITIES)
"""The sensitivities from the least to the most sensitive."""

FULL_SHARE: Final = 1 - FULL_RATIO
"""Free part of the memory below which there is no room to grow: where `GpuMemoryFull` begins."""


@dataclass(frozen=True, slots=True)
class Evenness:
    """How evenly growth must be spread over the window: one jump is no trend."""

    eighths: int
    """How many of the 8 parts of a window must carry their share of its growth. The driver's figure moves in steps."""
    largest_eighth: float
    """The most of the growth that one eighth may have."""
    increments: float
    """Effective number of steps, G^2 / sum(step^2): n - 1 for a line over n blocks, 1 for one jump."""


EVEN: Final = Evenness(eighths=6, largest_eighth=0.4, increments=6.0)


@dataclass(frozen=True, slots=True)
class Settings:
    """One criterion. The defaults are those for the allocator's own figures."""

    growth_share: float = 0.58
    """Growth of the floor over the window, as a share of the free memory. A bounded cache is a leak until it stops, and
    this is how much it may take unnamed: 0.58 of what is left is 37 % (0.58 / 1.58) of what was."""
    blackout_seconds: float = 120.0
    """Age below which nothing is kept: weights load, CUDA graphs are captured."""
    long_seconds: float = 72_000.0
    """From this window on no share is asked for: 20 h. A day curve rises for 12 h at most; from 17.5 h on, over 2.5 of
    the eighths would be flat. 20 h leaves a margin, and finds leaks of weeks."""
    short_seconds: float = 1_800.0
    """Below this window the share rises with the root of their ratio: short windows prove less."""
    young_seconds: float = 900.0
    """Below this age the share rises with their ratio: what starts, grows."""
    waive_bend_growth_share: float = 0.7
    """From this growth on, as a share of free, slowing down is no excuse: there is no time to wait for the curve."""
    life_windows: float = 0.0
    """Windows that the process must have lived for: what starts, grows, and a window over most of a life is its start.
    Not asked of windows of `long_seconds`, which prove enough."""
    urgent_growth_share: float = 3.0
    """From this growth on, as a share of free, the urgent limits below hold: nothing is left to wait for."""
    life_windows_urgent: float = 0.0
    """As `life_windows`, where the urgent limits hold: a few large steps are what a start is made of."""
    even: Evenness = EVEN
    even_urgent: Evenness = Evenness(eighths=4, largest_eighth=0.5, increments=4.0)
    even_part: float = 0.25
    """An eighth carries its part with this share of an even eighth's growth."""
    last_quarter: float = 0.10
    """Share of the growth that the last quarter of the window must have (even: 0.25): it must still be growing."""
    last_quarter_long: float = 0.15
    """As `last_quarter`, in windows of `long_seconds`."""
    bend_errors: float = 1.5
    """Standard errors by which the bend may be worse than it looks: a doubt counts as slowing down."""
    bend_stopped: float = -0.95
    """Relative change of the rate from the middle of the window to its end at which the growth counts as stopped."""
    bend_slowing: float = -0.005
    """From here on it counts as slowing down, and what is still to come must fill the GPU."""
    bend_long: float = -0.35
    """The worst bend in windows of `long_seconds`."""
    bend_by_work: float = -0.14
    """The worst bend of growth that follows the work, in windows of `long_seconds` up to 29 h: a leak takes its part of
    every request, a cache only what is new to it. It names 9 of 15 caches that seem to grow evenly for a day because
    the load rises as they fill, and finds no fewer leaks."""
    remaining_share: float = 1.0
    """What an exponential approach would still bring, as a share of free, for growth that slows down to matter."""
    new_ground: float = 0.8
    """Share of the growth that must lie above all that was held before: what was held and given back is no news."""
    suspects_what_leaked: bool = False
    """What leaked before, and gave it back, needs no new ground: it may fill the GPU with what it held already."""
    repeats: int = 2
    """Windows in a row, each one block later. One alone cost 4 false alarms in 1,047 days for 7 minutes less delay."""
    most_lengths: int = 1
    """Windows that count at one block: one of another length has other bounds, and is a witness too."""
    coverage: float = 0.6
    """Share of the window's blocks that must have a reading."""
    least_growth_bytes: float = 64.0 * 2**20
    """Growth below this is noise and the allocator's segments, whatever the share ..."""
    least_growth_of_total: float = 0.0025
    """... and below this share of the GPU's memory: it sets the slowest leak that is seen."""
    released: float = 0.5
    """Share of the growth that must be given back for the alarm to end."""
    plateau_seconds: float = 1_800.0
    """Time without a new high after which the alarm ends: this, or the window if that is longer."""
    new_high: float = 0.01
    """Share of the growth by which a reading must exceed the last high to be a new one."""

    @property
    def unnamed_share(self) -> float:
        """Share of the free memory that growth may take, and stop, without ever being named."""
        return self.growth_share / (1 + self.growth_share)

    def least_growth(self, total_bytes: float) -> float:
        """Return bytes below which growth on a GPU of this size is never judged."""
        return max(self.least_growth_bytes, self.least_growth_of_total * total_bytes)

    def share_over(self, window_seconds: float, age_seconds: float = math.inf) -> float:
        """`growth_share` as it is asked for over this window, of a process of this age."""
        if window_seconds >= self.long_seconds:
            return 0.0
        share = self.growth_share
        if window_seconds < self.short_seconds:
            share *= math.sqrt(self.short_seconds / window_seconds)
        if age_seconds < self.young_seconds:
            share *= self.young_seconds / max(age_seconds, 1.0)
        return share


_ALLOCATOR = Settings()

ALLOCATOR_SETTINGS: Final[dict[Sensitivity, Settings]] = {
    "strict": replace(_ALLOCATOR, growth_share=0.8),
    "balanced": _ALLOCATOR,
    "sensitive": replace(_ALLOCATOR, growth_share=0.45),
}
"""For what the allocator tells of itself: free of caches, so the dial is only how much may be taken unnamed."""

_BALANCED = replace(
    _ALLOCATOR,
    growth_share=0.6,
    blackout_seconds=300.0,  # without the allocator's figures, captures and first requests look alike for longer
    waive_bend_growth_share=math.inf,  # a cache slows down at its end too, when most of the free memory is gone
    life_windows=1.3,  # ... and what grows by steps from the start on: a curriculum, a cache
    urgent_growth_share=1.0,  # another such window fills the GPU
    life_windows_urgent=1.6,
    # The driver's figure moves by whole segments: fewer steps, and larger.
    even=Evenness(eighths=6, largest_eighth=0.4, increments=5.5),
    # With four steps, 24 false alarms in 772 days of services that nobody tuned on; with five, 11. It costs 2 leaks in
    # 100 there, and 7 in 100 of the benchmark's: few steps below much cached memory are most of them.
    even_urgent=Evenness(eighths=5, largest_eighth=0.45, increments=4.5),
    repeats=3,  # the driver's figure moves in steps: two windows may share the same few ...
    most_lengths=2,  # ... but hours go by between the blocks of a long window
)

SETTINGS: Final[dict[Sensitivity, Settings]] = {
    "strict": replace(
        _BALANCED,
        blackout_seconds=600.0,
        urgent_growth_share=math.inf,
        bend_errors=2.0,  # 95 % sure that it does not slow down
    ),
    "balanced": _BALANCED,
    "sensitive": replace(_BALANCED, growth_share=0.45, repeats=2),
}
"""For the driver's figures, which see the allocator's cache as well."""

_SUSPECTED_SHARE = 0.2
"""17 % of what was free: 0.9 to 1.7 false alarms in 100 process-days, at a third of a leak's life."""

ALLOCATOR_SUSPECTED: Final = replace(_ALLOCATOR, growth_share=_SUSPECTED_SHARE, suspects_what_leaked=True)
SUSPECTED: Final = replace(
    _BALANCED,
    growth_share=_SUSPECTED_SHARE,
    blackout_seconds=600.0,
    urgent_growth_share=math.inf,
    suspects_what_leaked=True,
)
"""The criterion of the verdict `growing`."""
