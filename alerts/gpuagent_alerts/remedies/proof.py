"""Did the memory come back? Watched until it has, because it does so seconds after the end of a process.

vLLM's own tests wait up to 120 s for it (`wait_for_gpu_memory_to_clear`); killers that did not wait took a second
victim for nothing (earlyoom#309).
"""

from __future__ import annotations

from collections.abc import Callable

from gpuagent.core.identity import ProcessId
from gpuagent.core.units import format_bytes
from gpuagent_alerts.remedies.observation import ActionResult, Observation, Observer
from gpuagent_alerts.remedies.outcome import RunOutcome, RunResult
from gpuagent_alerts.remedies.plan import Plan
from gpuagent_alerts.remedies.steps import RemedyStep
from gpuagent_alerts.remedies.target import Target

_ENOUGH = 0.8
"""Share of what the process held: what frees memory in pieces keeps some back for a while."""


async def watch_release(
    plan: Plan,
    observer: Observer,
    before: Observation | None,
    *,
    started: float,
    now: Callable[[], float],
    held: int,
    shared: Callable[[], bool] = lambda: False,
) -> RunOutcome:
    """Watch the GPU after the end of those who held so many bytes; `before` is what was seen just before the step.

    Where `shared`, other processes are ended on the same GPU meanwhile: what comes back may be theirs. Then no more is
    counted than was held, and only once no memory is left that has no owner.
    """
    last: Observation | None = None
    after = now()
    deadline = after + plan.proof_seconds
    while (left := deadline - now()) > 0:
        observation = await observer.next_observation(plan.target, plan.request.alert, after, left, evaluated=False)
        if observation is None:
            break
        if observation.unreadable:
            detail = f"it has ended; whether its memory came back cannot be told: {observation.unreadable}"
            return RunOutcome(RunResult.UNREADABLE, detail, acted=True)
        if before is not None and before.unreadable and not observation.target_listed:
            detail = f"it has ended, and is not on the GPU; how much came back cannot be told: {before.unreadable}"
            return RunOutcome(RunResult.UNREADABLE, detail, acted=True)
        last, after = observation, observation.clock_seconds
        freed = _freed(before, observation)
        if shared():
            freed = _own_share(freed, held, _rise_of_unowned(before, observation))
        if not observation.target_listed and freed is not None and freed >= _ENOUGH * held:
            seconds = now() - started
            return RunOutcome(RunResult.RELEASED, _told(plan.target, before, observation), freed, seconds, acted=True)
    return _without(plan, held, before, last, shared=shared())


def outcome_of_answer(step: RemedyStep, done: ActionResult, seconds: float) -> RunOutcome:
    """Return what an app that a person had asked came to: by the driver's count, where the driver tells."""
    if not done.ok:
        return RunOutcome(RunResult.FAILED, done.detail, acted=step.disrupts, answer=done.answer)
    freed = done.answer.get("released_bytes")
    if isinstance(freed, int) and freed > 0:
        return RunOutcome(RunResult.RELEASED, "", freed, seconds, acted=step.disrupts, answer=done.answer)
    detail = f"{done.detail}; nothing came back by the driver's count" if freed is not None else done.detail
    return RunOutcome(RunResult.NO_EFFECT, detail, freed, seconds, acted=step.disrupts, answer=done.answer)


def outcome_without_alert(plan: Plan, observation: Observation, seconds: float, *, acted: bool) -> RunOutcome:
    """Return what a run came to whose reason has gone while its step was given time."""
    now = observation.target.used_bytes if observation.target else None
    freed = plan.target.used_bytes - now if now is not None else None
    result = RunResult.RELEASED if freed is not None and freed > 0 and not plan.dry_run else RunResult.RESOLVED
    return RunOutcome(result, observation.reason or "the alert has ended", freed, seconds, acted=acted)


def _freed(before: Observation | None, now: Observation) -> int | None:
    if before is None or before.gpu_used_bytes is None or now.gpu_used_bytes is None:
        return None
    return before.gpu_used_bytes - now.gpu_used_bytes


def _own_share(freed: int | None, held: int, unowned: int | None) -> int | None:
    """Return the run's own share; None where it cannot be told whose memory came back: nobody may own the rest."""
    if freed is None or unowned is None or unowned >= (1 - _ENOUGH) * held:
        return None
    return min(freed, held)


def _without(
    plan: Plan, held: int, before: Observation | None, last: Observation | None, *, shared: bool
) -> RunOutcome:
    """Return the outcome where used memory has not gone down in time by as much as the process held."""
    if last is None:
        return RunOutcome(RunResult.UNACCOUNTED, "the GPU could not be read since", acted=True)
    freed = _freed(before, last)
    if shared and freed is not None:
        freed = min(freed, held)
    if last.target_listed:
        detail = "the process has ended, and the driver still counts its memory"
        return RunOutcome(RunResult.STILL_LISTED, detail, freed, acted=True)
    if new := _in_its_place(plan.target, before, last):
        detail = f"{_names(new)} took its place, and holds {format_bytes(sum(each.used_bytes for each in new))}"
        is_less = freed is not None and freed >= (1 - _ENOUGH) * held
        return RunOutcome(RunResult.RELEASED if is_less else RunResult.HELD_BY_OTHER, detail, freed, acted=True)
    if left := _left(plan.target, before, last):
        return RunOutcome(RunResult.HELD_BY_OTHER, f"held by {_names(left)}, which belonged to it", freed, acted=True)
    unowned = _rise_of_unowned(before, last)
    if unowned is not None and unowned < (1 - _ENOUGH) * held:
        detail = "its memory came back, and others on the GPU have taken some since"
        return RunOutcome(RunResult.RELEASED, detail, held, acted=True)
    return RunOutcome(RunResult.UNACCOUNTED, "nobody holds the memory, and it is not free", freed, acted=True)


def _rise_of_unowned(before: Observation | None, now: Observation) -> int | None:
    if before is None or before.gpu_unattributed_bytes is None or now.gpu_unattributed_bytes is None:
        return None
    return now.gpu_unattributed_bytes - before.gpu_unattributed_bytes


def _left(target: Target, before: Observation | None, now: Observation) -> list[Target]:
    """Return who belonged to it and is still there. By what was seen before: an orphan has another parent now."""
    known = {each.id: each for each in (*(before.relatives if before else ()), *now.relatives)}
    new = {each.id for each in _in_its_place(target, before, now)}
    return [each for identity, each in known.items() if identity in now.present and identity not in new]


def _in_its_place(target: Target, before: Observation | None, now: Observation) -> list[Target]:
    """Return who came since and belongs to it: a restarted unit's process, or one that a parent has started again."""
    known = before.present if before is not None else frozenset[ProcessId]()
    found = {each.id: each for each in (*now.relatives, *now.successors) if each.id not in known}
    return [each for each in found.values() if each.id.start_ticks > target.id.start_ticks]


def _names(targets: list[Target]) -> str:
    return ", ".join(f"pid {each.pid} ({each.name})" for each in targets)


def _told(target: Target, before: Observation | None, now: Observation) -> str:
    left, new = _left(target, before, now), _in_its_place(target, before, now)
    parts = (
        f"left on the GPU, and belonging to it: {_names(left)}" if left else "",
        f"took its place: {_names(new)}" if new else "",
    )
    return "; ".join(filter(None, parts))
