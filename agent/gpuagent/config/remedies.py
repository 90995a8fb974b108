"""What the agent may do about it: memory budgets, who may be signalled, and the steps to take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from pydantic import Field

from gpuagent.config.faults import Problem
from gpuagent.config.section import Section
from gpuagent.config.values import Duration, MatcherText, Size, Text


class BudgetMatch(Section):
    """Whose memory counts towards a budget: all keys given must hold."""

    unit: Text | None = Field(default=None, description="A systemd unit, such as whisper.service.")
    container: Text | None = Field(default=None, description="A container's name or id.")
    user: Text | None = Field(default=None, description="A user's name.")
    app: Text | None = Field(default=None, description="The name that an embedded client gave its app.")

    @classmethod
    def check(cls, given: Mapping[str, object]) -> Iterator[Problem]:
        if not given:
            yield Problem((), "is empty: it would match every process")
        for name, value in given.items():
            if value is None and name in cls.model_fields:
                yield Problem((name,), "has no value")


class Budget(Section):
    """How much GPU memory something may use: summed over its processes, on each GPU."""

    name: Text | None = Field(default=None, description="The `budget` label of its series; by default what it matches.")
    match: BudgetMatch = Field(description=BudgetMatch.__doc__)
    memory: Size = Field(ge=1, description="The most memory on one GPU.")


class Allow(Section):
    """Which processes may be acted on. All keys given must hold; with none, nothing is allowed."""

    users: tuple[Text, ...] = Field(default=(), description="Names of users: one of them owns it.")
    units: tuple[Text, ...] = Field(default=(), description="systemd units: it runs in one of them.")
    commands: tuple[Text, ...] = Field(default=(), description="Names of programs: it is one of them.")
    containers: tuple[Text, ...] = Field(default=(), description="Names or ids of containers: it runs in one of them.")
    min_age: Duration = Field(default=0.0, description="It has run for at least this time.")
    min_memory: Size = Field(default=0, description="It holds at least this much GPU memory.")


class ReleaseCacheStep(Section):
    """Ask the app, through the embedded client, to give its allocator's cache back."""

    wait: Duration = Field(default=30.0, description="Time for the memory to come back.")


class ResetStep(Section):
    """Ask the app to unload what it registered for this, then to empty its cache."""

    wait: Duration = Field(default=60.0, description="Time for the memory to come back.")


class SignalStep(Section):
    """Send a signal that the app knows what to do with."""

    name: Text = Field(description="The signal, such as USR1.")
    wait: Duration = Field(default=30.0, description="Time for the memory to come back.")


class TerminateStep(Section):
    """Send SIGTERM."""

    wait: Duration = Field(default=30.0, description="Time for the process to end.")


class KillStep(Section):
    """Send SIGKILL."""

    wait: Duration = Field(default=60.0, description="Time for the process to end.")


class RestartUnitStep(Section):
    """Restart the systemd unit that the process belongs to."""

    wait: Duration = Field(default=60.0, description="Time for the unit to be up again.")


class ExecStep(Section):
    """Run a program of your own, without a shell and without the agent's rights."""

    command: tuple[Text, ...] = Field(min_length=1, description="The program and its arguments, one list item each.")
    wait: Duration = Field(default=60.0, description="It is ended when it takes longer than this.")


class Step(Section):
    """One thing to do, and the time to wait for its effect before the next."""

    key_noun: ClassVar[str] = "step"

    release_cache: ReleaseCacheStep | None = Field(default=None, description=ReleaseCacheStep.__doc__)
    reset: ResetStep | None = Field(default=None, description=ResetStep.__doc__)
    signal: SignalStep | None = Field(default=None, description=SignalStep.__doc__)
    terminate: TerminateStep | None = Field(default=None, description=TerminateStep.__doc__)
    kill: KillStep | None = Field(default=None, description=KillStep.__doc__)
    restart_unit: RestartUnitStep | None = Field(default=None, description=RestartUnitStep.__doc__)
    exec: ExecStep | None = Field(default=None, description=ExecStep.__doc__)

    @classmethod
    def check(cls, given: Mapping[str, object]) -> Iterator[Problem]:
        yield from cls.exactly_one(given, tuple(cls.model_fields))


class Ladder(Section):
    """Steps for one kind of alert, from the gentlest on; it ends as soon as the alert has."""

    match: tuple[MatcherText, ...] = Field(min_length=1, description="All of these must hold of the alert's labels.")
    steps: tuple[Step, ...] = Field(min_length=1, description="What to do, in this order.")


class Remedies(Section):
    """What to do with the process that an alert names. Nothing is done until `ladders` is set."""

    dry_run: bool = Field(
        default=True,
        description="Decide and record, but do nothing. `false` is for real, and needs `allow`.",
    )
    allow: Allow = Field(default=Allow(), description=Allow.__doc__)
    ladders: tuple[Ladder, ...] = Field(default=(), description="The first one that matches is taken.")

    @classmethod
    def check(cls, given: Mapping[str, object]) -> Iterator[Problem]:
        allow = given.get("allow")
        allows_any = isinstance(allow, Mapping) and any(
            allow.get(name) for name in ("users", "units", "commands", "containers")
        )
        if given.get("dry_run") is False and given.get("ladders") and not allows_any:
            yield Problem(
                ("allow",),
                "dry_run is false, but nothing may be acted on",
                "users, units, commands or containers that may",
            )
