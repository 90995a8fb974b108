"""What the configuration says about remedies, in the terms of the remedies."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from gpuagent_alerts.notify.matchers import Matchers
from gpuagent_alerts.remedies.choice import LadderRule
from gpuagent_alerts.remedies.limits import Limits
from gpuagent_alerts.remedies.plan import Rules
from gpuagent_alerts.remedies.policy import Allow, Policy
from gpuagent_alerts.remedies.steps import Kind
from gpuagent_alerts.remedies.steps import Step as RemedyStep
from gpuagent_alerts.remedies.victim import VictimPolicy

if TYPE_CHECKING:
    from gpuagent.config.remedies import Ladder, Remedies, Step


def ladders_of(remedies: Remedies) -> tuple[LadderRule, ...]:
    """In the order of the file. Raises ValueError for a regular expression that RE2 does not take."""
    return tuple(_ladder(ladder, remedies) for ladder in remedies.ladders)


def rules_of(remedies: Remedies) -> Rules:
    """Who may be acted on, and how often."""
    allow, limits = remedies.allow, remedies.limits
    return Rules(
        Policy(
            allow=Allow(
                users=allow.users,
                units=allow.units,
                shared_units=allow.shared_units,
                containers=allow.containers,
                gpus=allow.gpus,
                min_age_seconds=allow.min_age,
                min_memory_bytes=allow.min_memory,
            ),
            never=remedies.never,
            evidence=remedies.evidence,
            mps_clients=remedies.mps_clients,
            idle_for_seconds=remedies.idle_for,
        ),
        Limits(
            pause_seconds=limits.pause,
            per_hour=limits.per_hour,
            per_day=limits.per_day,
            unit_per_hour=limits.unit_per_hour,
            cooldown_seconds=limits.cooldown,
            breaker=limits.breaker,
        ),
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
    """Return the one step that is set among the keys."""
    for kind in Kind:
        given = getattr(step, kind)
        if given is not None:
            number = signal_number(given.name) if kind is Kind.SIGNAL else 0
            command = given.command if kind is Kind.EXEC else ()
            return RemedyStep(kind, given.wait, number, command)
    raise ValueError("a step without a kind")


def signal_number(name: str) -> int:
    """By name, with or without SIG. Raises ValueError where there is none."""
    text = name.upper()
    try:
        return signal.Signals[text if text.startswith("SIG") else f"SIG{text}"]
    except KeyError:
        raise ValueError(f"there is no signal {name}") from None
