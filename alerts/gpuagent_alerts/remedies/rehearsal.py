"""What a person is advised after a refusal: options of the command only where the same safeguards would accept them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial

from gpuagent.core.identity import ProcessId
from gpuagent_alerts.remedies.observation import ActionExecutor, Observer, ProcessEnded
from gpuagent_alerts.remedies.pinned_processes import ActionRefused, PinnedProcesses
from gpuagent_alerts.remedies.plan import Plan, all_ending
from gpuagent_alerts.remedies.safeguards.policy import Policy, may_end
from gpuagent_alerts.remedies.safeguards.refusals import AdvisedOptions, advice_instead, advice_on, options_in
from gpuagent_alerts.remedies.steps import RemedyStep, StepKind
from gpuagent_alerts.remedies.target import NO_TIES

_SIGNALS = (RemedyStep(StepKind.TERMINATE, 30.0), RemedyStep(StepKind.KILL, 60.0))
_RESTART = (RemedyStep(StepKind.RESTART_UNIT, 60.0),)


async def accepted_advice(
    plan: Plan,
    reasons: Sequence[str],
    config_file: str,
    *,
    policy: Policy,
    observer: Observer,
    executor: ActionExecutor,
    now_seconds: float,
    ending: Callable[[], Collection[ProcessId]] = frozenset,
) -> list[str]:
    """Return what lifts these refusals of a request by hand, or what an administrator has to do."""
    advice = advice_on(reasons, plan.target, config_file, forced=plan.request.forced)
    options = options_in(advice)
    if options is None:
        return advice
    against = await objections(with_options(plan, options), policy, observer, executor, now_seconds, ending)
    if not against:
        return advice
    return advice_instead(advice, options, against, plan.target, config_file, forced=plan.request.forced)


def with_options(plan: Plan, options: AdvisedOptions) -> Plan:
    """Return the plan as it would be if the person had followed the advice."""
    steps = plan.steps if options.restart_unit is None else _RESTART if options.restart_unit else _SIGNALS
    forced = plan.request.forced or options.force
    return replace(plan, steps=steps, request=replace(plan.request, forced=forced))


async def objections(
    plan: Plan,
    policy: Policy,
    observer: Observer,
    executor: ActionExecutor,
    now_seconds: float,
    ending: Callable[[], Collection[ProcessId]] = frozenset,
) -> list[str]:
    """Return every refusal that the first step of this plan would meet now; none where the process has ended.

    Limits and other runs are left out: those pass.
    """
    step = plan.judged_as(plan.steps[0])
    pinned = PinnedProcesses(executor, partial(all_ending, plan, ending))
    observation = observer.observe(plan.target, plan.request.alert, plan.scope)
    try:
        await pinned.pin(plan.target)
        with_units = plan.answers_for_units(step)
        ties = await pinned.ties(with_units=with_units) if may_end(step) else NO_TIES
        (_, facts, changed), *_ = await pinned.read(ties)
        against = policy.refusals(step, plan.request, observation, facts, now_seconds, executor.protected(), plan.scope)
        found = [*against, *changed]
        permission = policy.unit_permission(plan.target, policy.spared(plan.request, observation))
        permission = replace(permission, ending=all_ending(plan, ending))
        if not found and (of_group := await executor.group_refusal(step, plan.target, permission)):
            found.append(of_group)
    except ProcessEnded:
        return []
    except ActionRefused as refused:
        return list(refused.reasons)
    finally:
        pinned.close()
    return list(dict.fromkeys(found))
