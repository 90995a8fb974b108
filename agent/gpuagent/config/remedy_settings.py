"""What the configuration says about remedies, made into the objects that decide."""

from __future__ import annotations

import inspect
import signal
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from gpuagent.core.matchers import Matchers
from gpuagent.driver.backend import longest_gap
from gpuagent_alerts.remedies.safeguards.limits import RemedyLimits
from gpuagent_alerts.remedies.safeguards.policy import AllowList, Policy
from gpuagent_alerts.remedies.safeguards.victim import VictimPolicy
from gpuagent_alerts.remedies.settings import LadderRule, MemoryBudget, RemedyRules, RemedySettings
from gpuagent_alerts.remedies.steps import RemedyStep, StepKind
from gpuagent_exporters.status.document import processes_document

if TYPE_CHECKING:
    from gpuagent.config.models import Config
    from gpuagent.config.remedies import Budget, Ladder, Remedies, Step
    from gpuagent.core.snapshot import Snapshot

T = TypeVar("T")


def settings_of(config: Config, *, off: str = "", speed: float = 1.0) -> RemedySettings:
    """Return what remedies go by; `off` is why they are off, `speed` that of the clock.

    Raises ValueError for a regular expression that RE2 does not take.
    """
    remedies = config.remedies
    return RemedySettings(
        ladders=ladders_of(remedies),
        rules=rules_of(remedies),
        proof_seconds=remedies.proof,
        dry_run=remedies.dry_run,
        budgets=budgets_of(config.budgets),
        poll_interval_seconds=config.poll_interval,
        longest_gap_seconds=longest_gap(config.poll_interval, speed),
        list_processes=partial(_list_processes, config),
        off=off,
    )


def ladders_of(remedies: Remedies) -> tuple[LadderRule, ...]:
    """Return the ladders in the order of the file. Raises ValueError as `settings_of`."""
    return tuple(_ladder(ladder, remedies) for ladder in remedies.ladders)


def rules_of(remedies: Remedies) -> RemedyRules:
    """Return who may be acted on, and how often."""
    policy = Policy(
        _with_keys_of(remedies.allow, AllowList),
        remedies.never,
        evidence=remedies.evidence,
        supervisors=remedies.supervisors,
        mps_clients=remedies.mps_clients,
        restored_processes=remedies.restored_processes,
        idle_for_seconds=remedies.idle_for,
    )
    return RemedyRules(policy, _with_keys_of(remedies.limits, RemedyLimits))


def budgets_of(budgets: tuple[Budget, ...]) -> tuple[MemoryBudget, ...]:
    """Return the budgets in the order of the file."""
    return tuple(
        MemoryBudget(
            each.label,
            each.memory,
            each.match.unit,
            each.match.container,
            each.match.user,
            each.match.app,
        )
        for each in budgets
    )


def _with_keys_of(section: object, made: Callable[..., T]) -> T:
    """Return an object whose fields are the keys of a section, or of the record that another process has read."""
    return made(**{name: getattr(section, name) for name in inspect.signature(made).parameters})


def _list_processes(config: Config, snapshot: Snapshot | None, now_seconds: float) -> dict[str, Any]:
    return processes_document(
        snapshot,
        now_seconds=now_seconds,
        poll_interval_seconds=config.poll_interval,
        preallocates=config.preallocates,
        identified=True,
    )


def _ladder(ladder: Ladder, remedies: Remedies) -> LadderRule:
    return LadderRule(
        matches=Matchers(ladder.match),
        steps=tuple(step_of(step) for step in ladder.steps),
        dry_run=remedies.dry_run if ladder.dry_run is None else ladder.dry_run,
        victim=VictimPolicy(ladder.victim) if ladder.victim else None,
        scope=ladder.scope,
    )


def step_of(step: Step) -> RemedyStep:
    """Return the step for the one key that is set."""
    for kind in StepKind:
        given = getattr(step, kind)
        if given is not None:
            number = signal_number(given.name) if kind is StepKind.SIGNAL else 0
            command = given.command if kind is StepKind.EXEC else ()
            if kind is StepKind.DROP_CACHES:
                return RemedyStep(kind, given.wait, compact=given.compact, every_seconds=given.every)
            if kind is StepKind.LIMIT:
                stays = given.until == "process_ends"
                return RemedyStep(kind, given.wait, headroom_bytes=given.headroom, until_process_ends=stays)
            return RemedyStep(kind, given.wait, number, command)
    raise ValueError("a step without a kind")


def signal_number(name: str) -> int:
    """Return the number of a signal, by its name with or without SIG. Raises ValueError where there is none."""
    text = name.upper()
    try:
        return signal.Signals[text if text.startswith("SIG") else f"SIG{text}"]
    except KeyError:
        raise ValueError(f"there is no signal {name}") from None
