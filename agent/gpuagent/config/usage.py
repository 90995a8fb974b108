"""The usage ledger: what a GPU costs, how long it is kept, who is told of idle GPUs, and weekly reports of usage."""

from __future__ import annotations

from typing import Literal

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


WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
REPORT_KINDS = ("webhook", "apprise", "exec")
"""Kinds of receivers that can be sent a report: to others it would be an alert."""


class Report(Section):
    """Usage of the last seven days (`gpuagent usage`), sent once a week. Off until there is one."""

    receivers: tuple[Text, ...] = key(
        min_length=1, description="Names of receivers: a webhook, a program, or mail through Apprise."
    )
    by: Literal["user", "unit", "container", "namespace", "pod", "job", "gpu"] = key(
        default="user", description="What usage is summed up by."
    )
    weekday: Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"] = key(
        default="monday", description="The day on which it is sent."
    )
    hour: int = key(default=8, ge=0, le=23, description="The hour at which it is sent, by UTC.")
    format: Literal["markdown", "html"] = key(default="markdown", description="The form of its text.")
