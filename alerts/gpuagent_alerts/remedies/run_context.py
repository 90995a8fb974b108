"""What a run of a ladder needs of the world around it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from gpuagent.core.identity import ProcessId
from gpuagent_alerts.remedies.audit import Audit
from gpuagent_alerts.remedies.observation import ActionExecutor, Observer


@dataclass(frozen=True, slots=True)
class RunContext:
    """What a run needs: the interfaces to the outside world, and the audit log."""

    observer: Observer
    executor: ActionExecutor
    audit: Audit
    gate: AbstractAsyncContextManager[object]
    """Held from the look at the limits until the intent is written: two runs cannot spend the same budget."""
    now: Callable[[], float]
    """CLOCK_BOOTTIME."""
    look_seconds: float = 15.0
    """How long to wait for a fresh reading before giving up: nothing is done on an old one."""
    wall: Callable[[], float] = time.time
    """Unix time, for people."""
    never_listed: Callable[[ProcessId], str] = lambda _: ""
    """Returns which entry of the operator's meant a process when it was first seen, or that this is being looked up."""
    ending: Callable[[], Collection[ProcessId]] = frozenset
    """Returns those whose end was asked for, in any run that is no dry one, and that live on."""
    released: Callable[[ProcessId], bool] = lambda _: False
    """Returns whether one whose end was asked for lives on and has given all of its memory back."""

    limit_owner: str = ""
    """Id of the state by which memory limits are this agent's."""
    limited: Callable[[ProcessId], str] = lambda _: ""
    """Returns that a memory limit of this agent holds for a process, in words; "" where none is known to."""

    def is_waited_for(self, identity: ProcessId) -> bool:
        """Return whether a process whose end was asked for may still give memory back. May block."""
        return self.executor.is_alive(identity) and not self.released(identity)
