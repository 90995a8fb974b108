"""What the agent may do about it: memory budgets, who may be signaled, and the steps to take."""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import ClassVar, Literal

from gpuagent.config.values import (
    ContainerName,
    Duration,
    GpuName,
    MatcherText,
    ProgramPattern,
    ServiceName,
    Size,
    Text,
    UserName,
)
from gpuagent.core.matchers import Matcher, parse_matcher
from gpuagent.core.problems import Problem, listed, nearest, shown
from gpuagent.core.sections import Section, key
from gpuagent.core.units import parse_bytes

PLACEHOLDERS = ("{pid}", "{container_id}", "{slurm_job}")
"""What is filled in in the arguments of an `exec` step."""
_LEAST_BYTES = 2**20
"""Less is a number without its unit: 20 is 20 bytes."""
_PLACEHOLDER = re.compile(r"(?<![{$])\{[a-z_]+\}(?!\})")
_SIGNALS = frozenset(each.name.removeprefix("SIG") for each in signal.Signals)
_REQUESTS = frozenset(
    {"ABRT", "HUP", "INT", "KILL", "QUIT", "RTMAX", "RTMIN", "TERM", "USR1", "USR2", "WINCH", "XCPU"}
)  # fmt: skip
"""Signals by which programs are asked to end, or to give something back."""
_STANDSTILLS = frozenset({"STOP", "TSTP", "TTIN", "TTOU"})


def match_problems(given: Mapping[str, object], known: Collection[str]) -> Iterator[Problem]:
    """Yield what is wrong with keys that say which processes are meant, whatever is asked of them."""
    for name, value in given.items():
        if value is None and name in known:
            yield Problem((name,), "has no value")
    unit = given.get("unit")
    if isinstance(unit, str) and "/" in unit:
        yield Problem(
            ("unit",),
            f"{shown(unit)} can be no unit of systemd's that counts: a user's own manager proves nothing",
            "a name such as whisper.service",
        )
    if given.get("user") and given.get("container"):
        yield Problem(("user",), "cannot stand beside container: in containers no user counts", "one of them")


class BudgetMatch(Section):
    """Whose memory counts towards a budget: all keys given must hold."""

    unit: ServiceName | None = key(default=None, description="A systemd unit, such as whisper.service.")
    container: ContainerName | None = key(
        default=None,
        description="A container's id, or its name where that is known; without an id `lxc/NAME` or "
        "`systemd-nspawn/NAME`.",
    )
    user: UserName | None = key(
        default=None,
        description="A user's name. Processes in containers do not count: a container chooses its user ids.",
    )
    app: Text | None = key(
        default=None,
        description="The name that an embedded client gave its app. Any process may give itself any name: so a user, a "
        "unit or a container has to be given beside it.",
    )

    @classmethod
    def check(cls, given: Mapping[str, object]) -> Iterator[Problem]:
        if not given:
            yield Problem((), "is empty: it would match every process")
        yield from match_problems(given, cls.keys)
        if "app" in given and not any(given.get(name) for name in ("unit", "container", "user")):
            yield Problem(
                ("app",),
                "is a name that any process may give itself, and its memory would count towards this budget",
                "a user, unit or container beside it",
            )


class Budget(Section):
    """How much GPU memory something may use: summed over its processes, on each GPU."""

    name: Text | None = key(
        default=None,
        description="The `budget` label of its series, by default what it matches; no two may be the same.",
    )
    match: BudgetMatch = key(description=BudgetMatch.__doc__)
    memory: Size = key(ge=_LEAST_BYTES, description="The most memory on one GPU.")

    @property
    def label(self) -> str:
        """The `budget` label of its series, which no other budget has."""
        return budget_label(self.name, {key: getattr(self.match, key) for key in BudgetMatch.keys})


def budget_label(name: object, match: object) -> str:
    """Return the `budget` label: the name, or what is matched; "" where neither is given as it should be."""
    if name is not None:
        return name if isinstance(name, str) else ""
    values = [match.get(key) for key in BudgetMatch.keys] if isinstance(match, Mapping) else []
    return ",".join(value for value in values if isinstance(value, str) and value)


class Allow(Section):
    """Which processes may be acted on. All keys given must hold of a process; with none, rules may act on nothing."""

    users: tuple[UserName, ...] = key(default=(), description="Names of users: one of them owns it.")
    units: tuple[ServiceName, ...] = key(default=(), description="systemd units: it runs in one of them.")
    shared_units: tuple[ServiceName, ...] = key(
        default=(),
        description="As `units`, for systemd units that run other users' work or sessions, or on which other units "
        "depend: they may be restarted all the same.",
    )
    containers: tuple[ContainerName, ...] = key(
        default=(),
        description="Ids of containers, at least their first 12 digits, or names where they are known (`lxc/NAME` or "
        "`systemd-nspawn/NAME` where there is no id): it runs in one of them. What runs in a container is never acted "
        "on without this.",
    )
    unnamed_containers: bool = key(
        default=False,
        description="`users` reaches into these users' own containers, which have no name (Apptainer, enroot, pyxis, "
        "bubblewrap), in the user's slice or a Slurm job: those that the user has made in a user namespace. Never into "
        "one of a container runtime or of root's, setuid programs included.",
    )
    gpus: tuple[GpuName, ...] = key(
        default=(), description="Indices or UUIDs: it, and who ends along with it, is on these GPUs alone."
    )
    min_age: Duration = key(default=0.0, description="It has run for at least this time.")
    min_memory: Size = key(
        default=0,
        description="It holds at least this much GPU memory. Asked of the chosen process alone: what falls with it by "
        "`scope` may hold less.",
    )

    @classmethod
    def check(cls, given: Mapping[str, object]) -> Iterator[Problem]:
        if "commands" in given:
            yield Problem(
                ("commands",),
                "is not taken any more: a process chooses its own name, and a name must permit nothing",
                "users, units or containers; names of programs to spare stand under remedies.never",
            )
        if given.get("unnamed_containers") is True and not given.get("users"):
            yield Problem(
                ("unnamed_containers",), "permits nothing without users", "users whose own containers are meant"
            )
        with suppress(ValueError, TypeError):  # told by the value itself
            if 0 < parse_bytes(given.get("min_memory", 0)) < _LEAST_BYTES:  # type: ignore[arg-type]
                yield Problem(
                    ("min_memory",), "is less than 1MiB: nearly every process holds that", "a size with its unit, or 0"
                )


class NotifyStep(Section):
    """Tell the receivers, and the app where it has a client, what is about to happen and when."""

    wait: Duration = key(default=30.0, description="Time for the app to drain before the next step.")


class DropCachesStep(Section):
    """Have the kernel drop clean page cache, on machines whose GPU has no memory of its own; elsewhere it is passed."""

    compact: bool = key(
        default=True, description="Have the kernel join free pages after it: drivers ask for blocks of 2 MiB."
    )
    every: Duration = key(default=60.0, ge=10, le=86400, description="Least time between two of these on this node.")
    wait: Duration = key(default=2.0, description="Time for the pressure to go.")


class ReleaseCacheStep(Section):
    """Ask the app, through the embedded client, to give its allocator's cache back."""

    wait: Duration = key(default=30.0, description="Time for the memory to come back.")


class ResetStep(Section):
    """Ask the app to unload what it registered for this, then to empty its cache."""

    wait: Duration = key(default=60.0, description="Time for the memory to come back.")


class LimitStep(Section):
    """Limit the GPU memory of the container, job or unit that the process runs in: driver 615 and cgroup version 2."""

    headroom: Size = key(
        default=2 * 2**30,
        ge=_LEAST_BYTES,
        description="What the cgroup may hold on that GPU beyond what it holds now. More is refused to it with an "
        "out-of-memory error, and to nobody else.",
    )
    until: Literal["alert_ends", "process_ends"] = key(
        default="alert_ends",
        description="When the limit is lifted. A leak that is held back may end its own alert: with `process_ends` the "
        "limit stays until the process has gone, or `gpuagent remedies lift`.",
    )
    wait: Duration = key(default=30.0, description="Time for the alert to end before the next step.")


class SignalStep(Section):
    """Send a signal that the app knows what to do with."""

    name: Text = key(
        description="The signal, such as USR1: one by which programs are asked to end, or to give something back."
    )
    wait: Duration = key(default=30.0, description="Time for the memory to come back.")

    @classmethod
    def check(cls, given: Mapping[str, object]) -> Iterator[Problem]:
        name = given.get("name")
        number = name.upper().removeprefix("SIG") if isinstance(name, str) else "USR1"
        wanted = f"one of {', '.join(sorted(_REQUESTS))}"
        if number not in _SIGNALS and isinstance(name, str):
            yield Problem(("name",), f"there is no signal {shown(name)}", wanted)
        elif number in _STANDSTILLS:
            stays = "it keeps its memory, and nothing continues it"
            yield Problem(("name",), f"{name} may stop the process for good: {stays}", wanted)
        elif number not in _REQUESTS:
            yield Problem(("name",), f"{name} asks no program to end or to give memory back", wanted)


class TerminateStep(Section):
    """Send SIGTERM."""

    wait: Duration = key(default=30.0, description="Time for the process to end.")


class KillStep(Section):
    """Send SIGKILL."""

    wait: Duration = key(default=60.0, description="Time for the process to end.")


class RestartUnitStep(Section):
    """Restart the systemd unit that the process belongs to."""

    wait: Duration = key(default=60.0, description="Time for the unit to be up again.")


class ExecStep(Section):
    """Run a program of your own, without a shell and without the agent's rights."""

    command: tuple[Text, ...] = key(
        min_length=1, description="The program, by its absolute path, and its arguments, one list item each."
    )
    wait: Duration = key(default=60.0, description="It is ended when it takes longer than this.")

    @classmethod
    def check(cls, given: Mapping[str, object]) -> Iterator[Problem]:
        command = given.get("command")
        for index, argument in enumerate(command if isinstance(command, tuple) else ()):
            for found in _PLACEHOLDER.findall(argument) if isinstance(argument, str) else ():
                if found not in PLACEHOLDERS:
                    yield Problem(
                        ("command", index),
                        f"{shown(found)} is not filled in",
                        f"{listed(PLACEHOLDERS)}; the rest is on the program's standard input, as JSON",
                        nearest(found, PLACEHOLDERS),
                    )


class Step(Section):
    """One thing to do, and the time to wait for its effect before the next."""

    key_noun: ClassVar[str] = "step"

    notify: NotifyStep | None = key(default=None, description=NotifyStep.__doc__)
    drop_caches: DropCachesStep | None = key(default=None, description=DropCachesStep.__doc__)
    release_cache: ReleaseCacheStep | None = key(default=None, description=ReleaseCacheStep.__doc__)
    reset: ResetStep | None = key(default=None, description=ResetStep.__doc__)
    limit: LimitStep | None = key(default=None, description=LimitStep.__doc__)
    signal: SignalStep | None = key(default=None, description=SignalStep.__doc__)
    terminate: TerminateStep | None = key(default=None, description=TerminateStep.__doc__)
    kill: KillStep | None = key(default=None, description=KillStep.__doc__)
    restart_unit: RestartUnitStep | None = key(default=None, description=RestartUnitStep.__doc__)
    exec: ExecStep | None = key(default=None, description=ExecStep.__doc__)

    @classmethod
    def check(cls, given: Mapping[str, object]) -> Iterator[Problem]:
        yield from cls.exactly_one(given, tuple(cls.keys))


class Ladder(Section):
    """Steps for one kind of alert, from the gentlest on; it ends as soon as the alert has."""

    match: tuple[MatcherText, ...] = key(min_length=1, description="All of these must hold of the alert's labels.")
    steps: tuple[Step, ...] = key(min_length=1, description="What to do, in this order.")
    dry_run: bool | None = key(default=None, description="For this ladder alone; by default that of `remedies`.")
    victim: Literal["leaking", "largest", "newest", "idle"] | None = key(
        default=None,
        description="Whom to choose where the alert names a GPU and no process: the steepest leak, the largest, the "
        "newest, or the largest of those that have been idle for `idle_for`. By default nobody.",
    )
    scope: Literal["process", "container", "job"] = key(
        default="process",
        description="What falls together: all members, or none. One rank of a tensor-parallel server that ends alone "
        "strands the rest.",
    )

    @classmethod
    def check(cls, given: Mapping[str, object]) -> Iterator[Problem]:
        matchers = given.get("match")
        names = [_label_of(text) for text in matchers] if isinstance(matchers, list | tuple) else []
        if "gpu" in names and "uuid" not in names:
            yield Problem(
                ("match", names.index("gpu")),
                "names a GPU by its index, which may come to mean another one after a driver reload",
                "a uuid beside it, or in its place",
            )
        yield from _check_match(given)
        yield from _check_scope(given)


_SPARING_STEPS = frozenset({"notify", "drop_caches", "release_cache"})


def _check_match(given: Mapping[str, object]) -> Iterator[Problem]:
    """Find matchers by which a rule may not mean processes either: numbers, and everybody but those of a name."""
    from gpuagent_alerts.remedies.safeguards.rule_matchers import matcher_fault  # noqa: PLC0415  for ladders alone

    texts, steps = given.get("match"), given.get("steps")
    if not isinstance(texts, list | tuple) or not isinstance(steps, list | tuple):
        return
    if {name for step in steps if isinstance(step, Mapping) for name in step} <= _SPARING_STEPS:
        return
    matchers = [_parsed(text) for text in texts]
    for index, matcher in enumerate(matchers):
        same = [each for each in matchers if matcher is not None and each is not None and each.name == matcher.name]
        if matcher is not None and same[0] is matcher and (fault := matcher_fault(same)):
            yield Problem(("match", index), *fault)


def _check_scope(given: Mapping[str, object]) -> Iterator[Problem]:
    """Find programs that are given the id of a whole group, of which the scope does not judge everybody."""
    steps = given.get("steps")
    for index, step in enumerate(steps if isinstance(steps, tuple) else ()):
        run = step.get("exec") if isinstance(step, Mapping) else None
        command = run.get("command") if isinstance(run, Mapping) else None
        arguments = " ".join(each for each in command if isinstance(each, str)) if isinstance(command, tuple) else ""
        for place, scope in (("{container_id}", "container"), ("{slurm_job}", "job")):
            if place in arguments and given.get("scope", "process") != scope:
                yield Problem(
                    ("steps", index, "exec", "command"),
                    f"{place} hands over the whole {scope}, and the scope does not judge who else is in there",
                    f"scope: {scope} in this ladder",
                )


def _label_of(text: object) -> str:
    """Return the label of a matcher; "" for what is none."""
    matcher = _parsed(text)
    return "" if matcher is None else matcher.name


def _parsed(text: object) -> Matcher | None:
    """Return a matcher; None for what is none, which is told elsewhere."""
    try:
        return parse_matcher(str(text))
    except ValueError:
        return None


class Limits(Section):
    """How often rules act at most. An action is one run of a ladder that got beyond `release_cache`, also by hand."""

    pause: Duration = key(default=60.0, description="Time on this node after an action before the next.")
    per_hour: int = key(default=2, ge=0, le=250, description="Actions on this node in an hour.")
    per_day: int = key(default=5, ge=0, le=250, description="Actions on this node in a day.")
    unit_per_hour: int = key(default=1, ge=0, le=250, description="Actions on one unit in an hour.")
    cooldown: Duration = key(
        default=900.0, description="Time after an action before the same unit, container or command of a user is next."
    )
    breaker: int = key(
        default=3,
        ge=1,
        le=100,
        description="After so many actions in a row on one user, unit or container without memory coming back rules "
        "leave its processes alone, until `gpuagent remedies reset`. That of three of them stops all remedies.",
    )


class Remedies(Section):
    """What to do with the process that an alert names. Nothing is done until `ladders` is set."""

    dry_run: bool = key(
        default=True,
        description="Rules decide and record, but do nothing; what a person asks for (`gpuagent kill`, `gpuagent "
        "release`) is done all the same. `false` is for real, and needs `allow`.",
    )
    allow: Allow = key(default=Allow(), description=Allow.__doc__)
    never: tuple[ProgramPattern, ...] = key(
        default=(),
        description="Programs that are never acted on, with `*` for any rest; beyond the built-in ones (init, "
        "sshd, systemd, displays, container runtimes, kubelet, slurmd, NVIDIA's own services). A name is compared, "
        "without regard to case, with the name of a process, of its program, of the script that an interpreter runs "
        "and of the module behind `-m`, with the arguments of a program that may be a launcher, and with units; an "
        "entry from / on with the whole paths of these and with every path in their arguments, and with what they lead "
        "to by links; a directory means all that lies in it; `prod/x1.py` means every path that ends so, and the "
        "module `prod.x1`.",
    )
    supervisors: tuple[ServiceName, ...] = key(
        default=(),
        description="systemd units of your own whose main process starts the work of others and goes on when one of "
        "those ends, as supervisord does: what it has started may get a bare signal. Exact names; this permits nobody "
        "by itself. The built-in ones are sshd, cron, slurmd, JupyterHub, supervisord and their like.",
    )
    evidence: tuple[Literal["confirmed", "allocator", "strict", "balanced", "sensitive"], ...] = key(
        default=("confirmed",),
        min_length=1,
        description="How sure a leak must be for any step beyond `release_cache`. `confirmed` alone asks for more than "
        "one witness, and never takes a cache that fills for a leak; the others name what its own growth meets.",
    )
    mps_clients: bool = key(
        default=False, description="Permit acting on clients of MPS: ending one can harm the others."
    )
    restored_processes: bool = key(
        default=False,
        description="Permit ending processes that CRIU has restored from a checkpoint: with cuda-checkpoint, the end "
        "of one has hung the whole machine (NVIDIA/cuda-checkpoint#53).",
    )
    idle_for: Duration = key(
        default=300.0,
        ge=1,
        description="How long every reading must have observed a process at 0 %, with the same memory, before "
        "`victim: idle` may choose it, and at least how long before a rule on idleness may act on it. "
        "A process of which the driver does not tell is never idle; this starts anew "
        "after readings more than 10 s (or 2.5 times `poll_interval`) apart, and while any GPU of the node cannot be "
        "read.",
    )
    proof: Duration = key(default=120.0, ge=1, description="Time to watch for the memory to come back.")
    limits: Limits = key(default=Limits(), description=Limits.__doc__)
    ladders: tuple[Ladder, ...] = key(default=(), description="The first one that matches is taken.")

    @classmethod
    def check(cls, given: Mapping[str, object]) -> Iterator[Problem]:
        allow = given.get("allow")
        allows_any = isinstance(allow, Mapping) and any(
            allow.get(name) for name in ("users", "units", "shared_units", "containers")
        )
        ladders = given.get("ladders")
        ladders = ladders if isinstance(ladders, tuple) else ()
        default = given.get("dry_run")
        for_real = any(
            (each.get("dry_run") if isinstance(each.get("dry_run"), bool) else default) is False
            for each in ladders
            if isinstance(each, Mapping)
        )
        if for_real and not allows_any:
            yield Problem(
                ("allow",),
                "dry_run is false, but nothing may be acted on",
                "users, units, shared_units or containers that may",
            )
