"""Track requests for both middlewares: the limiter, the memory figures, and what is due after a request."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

from gpuagent_client import lifecycle
from gpuagent_client.api import GIB, in_one_line
from gpuagent_client.errors import strict, warn_once
from gpuagent_client.lifecycle import ClientProcess
from gpuagent_client.serving import recycling
from gpuagent_client.serving.limiter import ConcurrencyLimiter, QueueFull, Slot
from gpuagent_client.serving.meter import Change, Figures, Meter, Routes, compare
from gpuagent_client.serving.releases import CacheReleases
from gpuagent_client.settings import Event

REPORT_EVERY_SECONDS = 60.0

routes = Routes()
"""Routes of all middlewares in this process: frameworks create the middleware themselves, so nobody holds it."""


class RequestMemory(NamedTuple):
    """Memory of one request, in bytes; None where CUDA is not up, or nobody counts."""

    route: str
    seconds: float
    """Seconds between admission and the end of the response."""
    change: Change | None


class TrackedRequest:
    """A request that was admitted."""

    __slots__ = ("before", "slot", "started")

    def __init__(self, slot: Slot, before: Figures | None, started: float) -> None:
        self.slot = slot
        self.before = before
        self.started = started


class RequestTracker:
    """Track requests for a middleware; see `AsgiMiddleware` for the arguments."""

    def __init__(
        self,
        *,
        gate: ConcurrencyLimiter | None,
        paths: Sequence[str] | None,
        header: bool,
        release_every: int | None,
        release_above_bytes: int | None,
        on_request: Callable[[RequestMemory], object] | None,
        process: ClientProcess = lifecycle,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if isinstance(paths, str):
            raise ValueError(f"paths must be a list of paths, such as [{paths!r}]")
        self.gate = gate if gate is not None else ConcurrencyLimiter(inside=None, heed_agent=False, state=process.state)
        self.header = header
        self._paths = None if paths is None else tuple(path.rstrip("/") for path in paths)
        self._releases = CacheReleases(
            self.gate, every=release_every, above_bytes=release_above_bytes, process=process, clock=clock
        )
        self._meter = Meter(process.torch)
        self._state = process.state
        self._allocator = process.allocator
        self._on_request = on_request
        self._clock = clock
        self._reported_at = clock()

    def applies_to(self, path: str) -> bool:
        """Return whether requests to this path use the GPU."""
        if self._paths is None:
            return True
        return any(path == each or path.startswith(each + "/") for each in self._paths)

    def begin(self, slot: Slot) -> TrackedRequest:
        """Return a request that was admitted, with the figures of now."""
        return TrackedRequest(slot, self._meter.read(), self._clock())

    def end(self, tracked: TrackedRequest, name: Callable[[Any], str], request: object, *, in_loop: bool) -> None:
        """Note the end of a request; `name(request)` is its route. Never raises, except under pytest."""
        after = None
        try:
            after = self._meter.read()
        finally:
            alone = tracked.slot.gate.release(tracked.slot)
        try:
            self._note(tracked, after, name(request), alone=alone)
            if after is not None and self._releases.due(after.cached_bytes):
                if in_loop:
                    self._releases.release_beside()
                else:
                    self._releases.release()
            recycling.after_request(self._releases, in_loop=in_loop)
        except Exception as error:
            if strict():
                raise
            warn_once("look after a request", f"{type(error).__name__}: {error}")

    def _note(self, tracked: TrackedRequest, after: Figures | None, route: str, *, alone: bool) -> None:
        now = self._clock()
        change = None
        if after is not None:
            # Before CUDA was up nothing was allocated.
            change = compare(tracked.before or Figures(0, 0, 0, 0), after, alone=alone)
        routes.add(route, change, now - tracked.started)
        if self._on_request is not None:
            self._on_request(RequestMemory(route, now - tracked.started, change))
        if now >= self._reported_at + REPORT_EVERY_SECONDS:
            self._reported_at = now
            self._report_to_agent()

    def _report_to_agent(self) -> None:
        fields: dict[str, object] = {"kind": "serving", "served": self.gate.served, "refused": self.gate.refused}
        for name, summary in routes.summaries().items():
            if summary.added is not None:
                fields.update(route=name, p95_bytes=summary.added.p95_bytes, max_bytes=summary.added.max_bytes)
            break
        self._state.events.append(Event("serving", fields))

    def headers(self, tracked: TrackedRequest) -> list[tuple[str, str]]:
        """Return what the headers of a response say of the GPU, as far as is known when it begins."""
        try:
            milliseconds = (self._clock() - tracked.started) * 1000
            timing = f"gpu;dur={milliseconds:.1f}"
            now = self._meter.read()
            if now is not None:
                timing += f';desc="peak {now.peak_bytes / GIB:.2f} GiB"'
            return [
                (
                    "X-GPU-Memory",
                    in_one_line(self._allocator.read(), self._state.level)
                    .encode("latin-1", "replace")
                    .decode("latin-1"),
                ),
                ("Server-Timing", timing),
            ]
        except Exception as error:  # noqa: BLE001 - a response without it is still a response
            warn_once("describe the GPU in a response", f"{type(error).__name__}: {error}")
            return []

    def rejection(self, full: QueueFull) -> tuple[list[tuple[str, str]], bytes]:
        """Return headers and body of the 503."""
        body = f"busy: {full}\n".encode()
        return [
            ("Retry-After", str(full.retry_after_seconds)),
            ("Content-Type", "text/plain; charset=utf-8"),
            ("Content-Length", str(len(body))),
        ], body
