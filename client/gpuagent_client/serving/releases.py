"""Give the allocator's cache back between two requests: seldom, and never while one is being served.

Emptying the cache waits for all work on the GPU, so it happens after every so many requests, or when more than so much
is cached, or when the GPU is nearly used up; with the gate closed for that moment, and at most once a minute together
with what the agent asks for.
"""

from __future__ import annotations

import threading
import time
from typing import Callable

from gpuagent_client import lifecycle
from gpuagent_client.commands import RELEASE_PAUSE_SECONDS, AllocatorCommands, InterruptibleSleep
from gpuagent_client.errors import Refused, log, warn_once
from gpuagent_client.lifecycle import ClientProcess
from gpuagent_client.serving.limiter import ConcurrencyLimiter, StillBusy

GIB = 1024**3


class CacheReleases:
    """Decide when to release the cache, and do so. None: not for this reason."""

    def __init__(
        self,
        gate: ConcurrencyLimiter,
        *,
        every: int | None,
        above_bytes: int | None,
        process: ClientProcess = lifecycle,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if (every is not None and every < 1) or (above_bytes is not None and above_bytes < 0):
            raise ValueError("release_every must be at least 1, release_above_bytes at least 0")
        self._gate = gate
        self._every = every
        self._above_bytes = above_bytes
        self._clock = clock
        self._state = process.state
        self._requests = 0
        self._under_way = False
        pause = InterruptibleSleep(_no_wait, clock)
        self._allocator_commands = AllocatorCommands(
            process.state, process.torch, process.allocator, process.limits, pause
        )

    def due(self, cached_bytes: int) -> bool:
        """Return whether a release is due after a request, at the cost of a few comparisons."""
        self._requests += 1
        if self._every is None and self._above_bytes is None:
            return False
        if not cached_bytes or self._gate.busy or self._under_way:
            return False
        if self._clock() < self._state.released_at + RELEASE_PAUSE_SECONDS:
            return False
        level = self._state.level
        return (
            (self._every is not None and self._requests >= self._every)
            or (self._above_bytes is not None and cached_bytes > self._above_bytes)
            or (level is not None and level.level == "critical")
        )

    def release(self) -> int:
        """Release now, in this thread, if no request is in progress; return the bytes that came back."""
        self._under_way = True
        try:
            with self._gate.exclusive(0):
                result = self._allocator_commands.release({}, 0.0)
        except (Refused, StillBusy) as reason:
            log.debug("no release: %s", reason)
            return 0
        except Exception as error:  # noqa: BLE001 - torch's: the app is not to fail for it
            warn_once("release cached memory", f"{type(error).__name__}: {error}")
            return 0
        finally:
            self._under_way = False
        self._requests = 0
        back = int(result["reserved_before_bytes"] - result["reserved_after_bytes"])
        log.info("gave %.2f GiB of cached memory back in %.0f ms", back / GIB, result["took_ms"])
        return back

    def release_beside(self) -> None:
        """Release in a thread of its own: an event loop must not block for it.

        Not a daemon: the interpreter waits for it at its end, where a thread inside torch would abort the process.
        """
        self._under_way = True
        try:
            threading.Thread(target=self.release, name="gpuagent-release").start()
        except RuntimeError as error:  # no more threads, or the interpreter is ending
            self._under_way = False
            log.debug("no thread for a release: %s", error)


def _no_wait(_: float) -> bool:
    return False
