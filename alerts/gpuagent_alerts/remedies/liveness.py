"""Which of those whose end was asked for have ended: asked in the event loop, which no process may hold up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial

from gpuagent.core.identity import ProcessId
from gpuagent.procfs.hanging import HANGS_AFTER_SECONDS, read_all

_SLOW_SECONDS = HANGS_AFTER_SECONDS / 2
_PAUSE_SECONDS = 10.0


class LivenessCheck:
    """Asks of all at the same time, and not again for a while where one of them held it up.

    A process can have its files hang for a moment again and again, each time that it is asked about.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next_at = 0.0

    def ended(self, is_alive: Callable[[ProcessId], bool], identities: Iterable[ProcessId]) -> frozenset[ProcessId]:
        """Return those that have ended. Whoever cannot be read in time counts as alive: it takes a second at most.

        Raises as `is_alive`, but for OSError.
        """
        asked, began = list(identities), self._clock()
        if not asked or began < self._next_at:
            return frozenset()
        answers = read_all([partial(is_alive, each) for each in asked])
        if (now := self._clock()) - began >= _SLOW_SECONDS:
            self._next_at = now + _PAUSE_SECONDS
        for answer in answers:
            if isinstance(answer, Exception) and not isinstance(answer, OSError):
                raise answer
        return frozenset(each for each, answer in zip(asked, answers, strict=True) if answer is False)
