"""Did the memory come back? Watched until it has, because it does so seconds after the end of a process.

vLLM's own tests wait up to 120 s for it (`wait_for_gpu_memory_to_clear`); killers that did not wait took a second
victim for nothing (earlyoom#309).
"""

from __future__ import annotations

from collections.abc import Callable

from gpuagent.core.identity import ProcessId
from gpuagent.core.units import format_bytes
from gpuagent_alerts.remedies.outcome import Outcome, Result
from gpuagent_alerts.remedies.plan import Plan
from gpuagent_alerts.remedies.steps import Step
from gpuagent_alerts.remedies.target import Target
from gpuagent_alerts.remedies.world import Done, Eyes, Sight

_ENOUGH = 0.8
"""Share of what the process held: what frees memory in pieces keeps some back for a while."""


async def prove(
    plan: Plan,
    eyes: Eyes,
    before: Sight | None,
    *,
    started: float,
    now: Callable[[], float],
    held: int,
    shared: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Watch the GPU after the end of those who held so many bytes; `before` is what was seen just before the step.

    Where `shared`, other processes are ended on the same GPU meanwhile: what comes back may be theirs. Then no more is
    counted than was held, and only once no memory is left that has no owner.
    """
    last: Sight | None = None
    after = now()
    deadline = after + plan.proof_seconds
    while (left := deadline - now()) > 0:
        sight = await eyes.next_sight(plan.target, plan.order.alert, after, left, judged=False)
        if sight is None:
            break
        last, after = sight, sight.clock_seconds
        freed = _freed(before, sight)
        if shared():
            freed = _own_share(freed, held, _rise_of_unowned(before, sight))
        if not sight.target_listed and freed is not None and freed >= _ENOUGH * held:
            seconds = now() - started
            return Outcome(Result.RELEASED, _told(plan.target, before, sight), freed, seconds, acted=True)
    return _without(plan, held, before, last, shared=shared())


def answered(step: Step, done: Done, seconds: float) -> Outcome:
    """Return the outcome for an app that a person had asked: by the driver's count, where the driver tells."""
    if not done.ok:
        return Outcome(Result.FAILED, done.detail, acted=step.disrupts, answer=done.answer)
    freed = done.answer.get("released_bytes")
    if isinstance(freed, int) and freed > 0:
        return Outcome(Result.RELEASED, "", freed, seconds, acted=step.disrupts, answer=done.answer)
    detail = f"{done.detail}; nothing came back by the driver's count" if freed is not None else done.detail
    return Outcome(Result.NO_EFFECT, detail, freed, seconds, acted=step.disrupts, answer=done.answer)


def without_reason(plan: Plan, sight: Sight, seconds: float, *, acted: bool) -> Outcome:
    """Return what a run came to whose reason has gone while its step was given time."""
    now = sight.target.used_bytes if sight.target else None
    freed = plan.target.used_bytes - now if now is not None else None
    result = Result.RELEASED if freed is not None and freed > 0 and not plan.dry_run else Result.RESOLVED
    return Outcome(result, sight.reason or "the alert has ended", freed, seconds, acted=acted)


def _freed(before: Sight | None, now: Sight) -> int | None:
    if before is None or before.gpu_used_bytes is None or now.gpu_used_bytes is None:
        return None
    return before.gpu_used_bytes - now.gpu_used_bytes


def _own_share(freed: int | None, held: int, unowned: int | None) -> int | None:
    """None where it cannot be told whose memory came back: some is left that nobody owns, or may be."""
    if freed is None or unowned is None or unowned >= (1 - _ENOUGH) * held:
        return None
    return min(freed, held)


def _without(plan: Plan, held: int, before: Sight | None, last: Sight | None, *, shared: bool) -> Outcome:
    """Return the outcome when time is up and the GPU's used memory has not fallen by as much as the process held."""
    if last is None:
        return Outcome(Result.UNACCOUNTED, "the GPU could not be read since", acted=True)
    freed = _freed(before, last)
    if shared and freed is not None:
        freed = min(freed, held)
    if last.target_listed:
        detail = "the process has ended, and the driver still counts its memory"
        return Outcome(Result.STILL_LISTED, detail, freed, acted=True)
    if new := _in_its_place(plan.target, before, last):
        detail = f"{_names(new)} took its place, and holds {format_bytes(sum(each.used_bytes for each in new))}"
        is_less = freed is not None and freed >= (1 - _ENOUGH) * held
        return Outcome(Result.RELEASED if is_less else Result.HELD_BY_OTHER, detail, freed, acted=True)
    if left := _left(plan.target, before, last):
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


def _left(target: Target, before: Sight | None, now: Sight) -> list[Target]:
    """Who belonged to it and is still there. By what was seen before: an orphan has another parent now."""
    known = {each.id: each for each in (*(before.relatives if before else ()), *now.relatives)}
    new = {each.id for each in _in_its_place(target, before, now)}
    return [each for identity, each in known.items() if identity in now.present and identity not in new]


def _in_its_place(target: Target, before: Sight | None, now: Sight) -> list[Target]:
    """Who came since and belongs to it: a restarted unit's process, or the one that a parent has started again."""
    known = before.present if before is not None else frozenset[ProcessId]()
    found = {each.id: each for each in (*now.relatives, *now.successors) if each.id not in known}
    return [each for each in found.values() if each.id.start_ticks > target.id.start_ticks]


def _names(targets: list[Target]) -> str:
    return ", ".join(f"pid {each.pid} ({each.name})" for each in targets)


def _told(target: Target, before: Sight | None, now: Sight) -> str:
    left, new = _left(target, before, now), _in_its_place(target, before, now)
    parts = (
        f"left on the GPU, and belonging to it: {_names(left)}" if left else "",
        f"took its place: {_names(new)}" if new else "",
    )
    return "; ".join(filter(None, parts))
