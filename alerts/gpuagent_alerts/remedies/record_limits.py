"""What the record has against a step of a rule: limits on how often, and processes that may still end."""

from __future__ import annotations

from collections.abc import Callable, Collection

from gpuagent.core.identity import ProcessId
from gpuagent_alerts.remedies.audit import Audit
from gpuagent_alerts.remedies.limits import Limits, broken, refusals
from gpuagent_alerts.remedies.outstanding import in_the_way
from gpuagent_alerts.remedies.plan import Plan
from gpuagent_alerts.remedies.refusals import Passing
from gpuagent_alerts.remedies.steps import Step


def objections(
    plan: Plan,
    step: Step,
    limits: Limits,
    audit: Audit,
    cooldown_key: str,
    meant: Collection[ProcessId],
    gpu_uuids: frozenset[str],
    is_alive: Callable[[ProcessId], bool],
    *,
    acted: bool,
) -> list[str]:
    """Return them all. Asks the store and /proc: for a thread. Raises StoreFailure.

    Limits bound what happens while nobody looks. A person who has confirmed the process looks: their act is counted
    against the rules that come after it, and is bounded by none of them itself. A run is one action, however many steps
    it takes.
    """
    if plan.order.by_hand or not step.disrupts:
        return []
    waits_for = in_the_way(audit.outstanding(), meant, gpu_uuids, is_alive)
    found: list[str] = [Passing(waits_for)] if waits_for else []
    if acted:
        return found
    if why := broken(limits, audit.past(dry_run=False, since_reset=True)):
        return [f"remedies are stopped: {why}; after a look, `gpuagent remedies reset` lets them go on"]
    past = audit.past(dry_run=plan.dry_run)
    unit = plan.target.unit
    return [*found, *refusals(limits, past, unit=unit, cooldown_key=cooldown_key, dry_run=plan.dry_run)]
