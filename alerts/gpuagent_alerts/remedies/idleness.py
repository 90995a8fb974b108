"""Refusals of who works: where a process is chosen, or accused, because it does not."""

from __future__ import annotations

from collections.abc import Iterator

from gpuagent.units import format_duration
from gpuagent_alerts.remedies.steps import Step
from gpuagent_alerts.remedies.target import Target
from gpuagent_alerts.remedies.victim import VictimPolicy
from gpuagent_alerts.remedies.world import Order


def not_at_rest(
    step: Step, order: Order, target: Target, idle_for_seconds: float, *, judges_chosen: bool
) -> Iterator[str]:
    """Yield why it is not idle, or not for long enough; of whom that is not known is not.

    Who was chosen for being idle must be so still, and who falls with it too. A rule that is true of a process because
    that does not work is about the chosen process alone; it looks at one engine or the other, and never at memory that
    is being filled.
    """
    idle = target.idle_seconds
    if order.victim == VictimPolicy.IDLE:
        wanted = format_duration(idle_for_seconds)
        if idle is None:
            yield f"it is no longer idle, or that cannot be told: victim idle needs {wanted} at 0 % (remedies.idle_for)"
        elif idle < idle_for_seconds:
            yield f"it has not been idle for {wanted} (remedies.idle_for)"
    elif order.idle_for_seconds is not None and judges_chosen and step.disrupts:
        at_rest = "0 % of multiprocessors, memory, encoder and decoder, and the same memory, on all of its GPUs"
        if idle is None:
            yield f"its rule is about idleness, and the process works, or that cannot be told: at rest is {at_rest}"
        elif idle < order.idle_for_seconds:
            yield (
                f"its rule is about idleness, and the process has been at rest for {format_duration(idle)} of"
                f" {format_duration(order.idle_for_seconds)} (`for`): at rest is {at_rest}"
            )
