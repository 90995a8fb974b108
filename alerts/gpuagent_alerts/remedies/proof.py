"""Did the memory come back? Watched until it has, because it does so seconds after the end of a process.

vLLM's own tests wait up to 120 s for it (`wait_for_gpu_memory_to_clear`); killers that did not wait took a second
victim for nothing (earlyoom#309).
"""

from __future__ import annotations

from collections.abc import Callable

from gpuagent_alerts.remedies.outcome import Outcome, Result
from gpuagent_alerts.remedies.plan import Plan
from gpuagent_alerts.remedies.target import Target
from gpuagent_alerts.remedies.world import Eyes, Sight

_ENOUGH = 0.8
"""Share of what the process held: what frees memory in pieces keeps some back for a while."""


async def prove(
    plan: Plan, eyes: Eyes, before: Sight | None, *, started: float, now: Callable[[], float], held: int
) -> Outcome:
    """Watch the GPU after the end of those who held so many bytes; `before` is what was seen just before the step."""
    last: Sight | None = None
    after = now()
    deadline = after + plan.proof_seconds
    while (left := deadline - now()) > 0:
        sight = await eyes.next_sight(plan.target, plan.order.alert, after, left, judged=False)
        if sight is None:
            break
        last, after = sight, sight.clock_seconds
        freed = _freed(before, sight)
        if not sight.target_listed and freed is not None and freed >= _ENOUGH * held:
            seconds = now() - started
            return Outcome(Result.RELEASED, _told(_left(before, sight)), freed, seconds, acted=True)
    return _without(held, before, last)


def _freed(before: Sight | None, now: Sight) -> int | None:
    if before is None or before.gpu_used_bytes is None or now.gpu_used_bytes is None:
        return None
    return before.gpu_used_bytes - now.gpu_used_bytes


def _without(held: int, before: Sight | None, last: Sight | None) -> Outcome:
    """The time is up, and the GPU's used memory is not down by as much as the process held."""
    if last is None:
        return Outcome(Result.UNACCOUNTED, "the GPU could not be read since", acted=True)
    freed = _freed(before, last)
    if last.target_listed:
        detail = "the process has ended, and the driver still counts its memory"
        return Outcome(Result.STILL_LISTED, detail, freed, acted=True)
    if left := _left(before, last):
        return Outcome(Result.HELD_BY_OTHER, f"held by {_names(left)}, which belonged to it", freed, acted=True)
    unowned = _rise_of_unowned(before, last)
    if unowned is not None and unowned < (1 - _ENOUGH) * held:
        detail = "its memory came back, and others on the GPU have taken some since"
        return Outcome(Result.RELEASED, detail, held, acted=True)
    return Outcome(Result.UNACCOUNTED, "nobody holds the memory, and it is not free", freed, acted=True)


def _rise_of_unowned(before: Sight | None, now: Sight) -> int | None:
    if before is None or before.gpu_unattributed_bytes is None or now.gpu_unattributed_bytes is None:
        return None
    return now.gpu_unattributed_bytes - before.gpu_unattributed_bytes


def _left(before: Sight | None, now: Sight) -> list[Target]:
    """Who belonged to it and is still there. By what was seen before: an orphan has another parent now."""
    known = {each.id: each for each in (*(before.relatives if before else ()), *now.relatives)}
    return [each for identity, each in known.items() if identity in now.present]


def _names(targets: list[Target]) -> str:
    return ", ".join(f"pid {each.pid} ({each.name})" for each in targets)


def _told(left: list[Target]) -> str:
    return f"left on the GPU, and belonging to it: {_names(left)}" if left else ""
