"""The steps of a ladder, from the gentlest on, and which of them act on a whole unit, container or job."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

SPARING = frozenset({signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH})
"""Signals whose default is not the end of the process, or its standstill."""
_HANDS_OVER = ("{pid}", "{container_id}", "{slurm_job}")
"""Arguments by which an `exec` step gets to know whom to end: a program without them tells somebody."""


class StepKind(StrEnum):
    """What a step does."""

    NOTIFY = "notify"
    DROP_CACHES = "drop_caches"
    RELEASE_CACHE = "release_cache"
    RESET = "reset"
    LIMIT = "limit"
    SIGNAL = "signal"
    TERMINATE = "terminate"
    KILL = "kill"
    RESTART_UNIT = "restart_unit"
    EXEC = "exec"


_SIGNALS = {StepKind.TERMINATE: signal.SIGTERM, StepKind.KILL: signal.SIGKILL}
_HARMLESS = frozenset({StepKind.NOTIFY, StepKind.DROP_CACHES, StepKind.RELEASE_CACHE})
_ASKS = frozenset({StepKind.RELEASE_CACHE, StepKind.RESET})


@dataclass(frozen=True, slots=True)
class RemedyStep:
    """One thing to do, and how long to wait for its effect before the next."""

    kind: StepKind
    wait_seconds: float
    signal_number: int = 0
    """Signal of a `signal` step."""
    command: tuple[str, ...] = ()
    """Command of an `exec` step."""
    collect: bool = False
    """Whether a `release_cache` step runs Python's garbage collector first, for which the app stands still."""

    compact: bool = False
    """Whether a `drop_caches` step has the kernel join free pages after it."""
    every_seconds: float = 0.0
    """Least time between two `drop_caches` steps on this node."""
    headroom_bytes: int = 0
    """What a `limit` step leaves its cgroup beyond what it holds."""
    until_process_ends: bool = False
    """Whether a `limit` step's limit stays for as long as the process, and not only for as long as the alert."""

    @property
    def sends(self) -> int | None:
        """The signal that it sends; None if it sends none."""
        if self.kind is StepKind.SIGNAL:
            return self.signal_number
        return _SIGNALS.get(self.kind)

    @property
    def disrupts(self) -> bool:
        """Whether the app may notice: such steps are limited in number, and need evidence."""
        return self.kind not in _HARMLESS

    @property
    def may_end(self) -> bool:
        """Whether a process may end because of it, be it long after the step: its memory may come back then."""
        if self.kind is StepKind.EXEC:
            return any(place in argument for argument in self.command for place in _HANDS_OVER)
        return self.kind is StepKind.RESTART_UNIT or self.signal_may_end

    @property
    def signal_may_end(self) -> bool:
        """Whether it sends a signal whose default is the end: a handler is the process's own, and may go away."""
        return self.sends is not None and self.sends not in SPARING

    @property
    def asks_app(self) -> bool:
        """Whether it is a question to the app's client, whose answer says what came of it."""
        return self.kind in _ASKS

    def __str__(self) -> str:
        if self.kind is StepKind.SIGNAL:
            return f"signal {signal.Signals(self.signal_number).name}"
        if self.kind is StepKind.EXEC:
            return f"exec {self.command[0]}"
        return {StepKind.TERMINATE: "SIGTERM", StepKind.KILL: "SIGKILL"}.get(self.kind, str(self.kind))


class StepGroup(StrEnum):
    """What a program may be given the id of; the value is the `scope` that judges who holds GPU memory there."""

    CONTAINER = "container"
    JOB = "job"


PLACES = {"{container_id}": StepGroup.CONTAINER, "{slurm_job}": StepGroup.JOB}
"""Arguments of an `exec` step that hand over a whole group."""


def groups_of(step: RemedyStep) -> frozenset[StepGroup]:
    """Return the groups whose ids an `exec` step is given."""
    if step.kind is not StepKind.EXEC:
        return frozenset()
    return frozenset(group for place, group in PLACES.items() if any(place in each for each in step.command))


def wrong_scope(step: RemedyStep, scope: str) -> Iterator[str]:
    """Yield why the ladder's scope does not judge everybody whom the step acts on."""
    for group in sorted(groups_of(step)):
        if group != scope:
            yield f"{step} acts on the whole {group}: the ladder needs scope: {group}, by which all are judged"
