"""What a run of a ladder works with: the outside world, and the record of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from gpuagent_alerts.remedies.audit import Audit
from gpuagent_alerts.remedies.world import Eyes, Hands


@dataclass(frozen=True, slots=True)
class Tools:
    """The outside world, and the record of it."""

    eyes: Eyes
    hands: Hands
    audit: Audit
    gate: AbstractAsyncContextManager[object]
    """Held from the look at the limits until the intent is written: two runs cannot spend the same budget."""
    now: Callable[[], float]
    """CLOCK_BOOTTIME."""
    look_seconds: float = 15.0
    """How long to wait for a fresh reading before giving up: nothing is done on an old one."""
    wall: Callable[[], float] = time.time
    """Unix time, for people."""
