"""The usage ledger: what a GPU costs, for how long it is kept, and when somebody is told of idle GPUs."""

from __future__ import annotations

from gpuagent.config.values import Duration, Number, Text
from gpuagent.core.sections import Section, key


class Usage(Section):
    """The usage ledger: who holds the GPUs for how long, and what they do with them (see usage.md)."""

    price_per_gpu_hour: Number | None = key(
        default=None,
        ge=0,
        le=1_000_000,
        description="Price of an hour of one GPU. Without it no cost is shown. It is applied when usage is shown, to "
        "the past as well.",
    )
    currency: Text = key(default="USD", description="The currency of the price, as it is shown.")
    idle_after: Duration | None = key(
        default=None,
        ge=60,
        le=30 * 86_400,
        description="`GpuHeldIdle` fires when all processes of a unit, container, pod or Slurm job on a GPU have been "
        "observed idle for this long, such as 4h. Without it the rule is off.",
    )
    keep: Duration = key(
        default=35 * 86_400.0,
        ge=2 * 86_400,
        le=400 * 86_400,
        description="How long the daily table behind `gpuagent usage` reaches back, in whole days.",
    )
