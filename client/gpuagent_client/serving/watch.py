"""What both middlewares do around a request: the gate, the figures, and what is due after it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

from gpuagent_client import lifecycle
from gpuagent_client.figures import GIB, in_one_line
from gpuagent_client.guard import strict, tell_once
from gpuagent_client.serving import recycling
from gpuagent_client.serving.gate import Full, Gate, Place
from gpuagent_client.serving.meter import Change, Figures, Meter, Routes, compare
from gpuagent_client.serving.process import Process
from gpuagent_client.serving.releases import Releases
from gpuagent_client.settings import Event

TELL_EVERY_SECONDS = 60.0

routes = Routes()
"""Of all middlewares in this process: frameworks make the middleware themselves, and nobody has it in the hand."""


class RequestMemory(NamedTuple):
    """One request, in bytes; None where CUDA is not up, or nobody counts."""

    route: str
    seconds: float
    """In the section."""
    change: Change | None


class Visit:
    """A request in the section."""

    __slots__ = ("before", "place", "started")

    def __init__(self, place: Place, before: Figures | None, started: float) -> None:
        self.place = place
        self.before = before
        self.started = started


class Watch:
    """See `AsgiMiddleware` for the arguments."""

    def __init__(
        self,
        *,
        gate: Gate | None,
        paths: Sequence[str] | None,
        header: bool,
        release_every: int | None,
        release_above_bytes: int | None,
        on_request: Callable[[RequestMemory], object] | None,
        process: Process = lifecycle,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if isinstance(paths, str):
            raise ValueError(f"paths must be a list of paths, such as [{paths!r}]")
        self.gate = gate if gate is not None else Gate(inside=None, heed_agent=False, told=process.told)
        self.header = header
        self._paths = None if paths is None else tuple(path.rstrip("/") for path in paths)
        self._releases = Releases(
            self.gate, every=release_every, above_bytes=release_above_bytes, process=process, clock=clock
        )
        self._meter = Meter(process.torch)
        self._told = process.told
        self._allocator = process.allocator
        self._on_request = on_request
        self._clock = clock
        self._told_at = clock()

    def concerns(self, path: str) -> bool:
        """Return whether requests to this path use the GPU."""
        if self._paths is None:
            return True
        return any(path == each or path.startswith(each + "/") for each in self._paths)

    def begin(self, place: Place) -> Visit:
        """Return a request is inside."""
        return Visit(place, self._meter.read(), self._clock())

    def end(self, visit: Visit, name: Callable[[Any], str], request: object, *, in_loop: bool) -> None:
        """End a visit; `name(request)` is its route. Never raises, except under pytest."""
        after = None
        try:
            after = self._meter.read()
        finally:
            alone = visit.place.gate.leave(visit.place)
        try:
            self._note(visit, after, name(request), alone=alone)
            if after is not None and self._releases.due(after.cached_bytes):
                if in_loop:
                    self._releases.release_beside()
                else:
                    self._releases.release()
            recycling.after_request(self._releases, in_loop=in_loop)
        except Exception as error:
            if strict():
                raise
            tell_once("look after a request", f"{type(error).__name__}: {error}")

    def _note(self, visit: Visit, after: Figures | None, route: str, *, alone: bool) -> None:
        now = self._clock()
        change = None
        if after is not None:
            # Before CUDA was up nothing was allocated.
            change = compare(visit.before or Figures(0, 0, 0, 0), after, alone=alone)
        routes.add(route, change, now - visit.started)
        if self._on_request is not None:
            self._on_request(RequestMemory(route, now - visit.started, change))
        if now >= self._told_at + TELL_EVERY_SECONDS:
            self._told_at = now
            self._tell_agent()

    def _tell_agent(self) -> None:
        fields: dict[str, object] = {"kind": "serving", "served": self.gate.served, "refused": self.gate.refused}
        for name, summary in routes.summaries().items():
            if summary.added is not None:
                fields.update(route=name, p95_bytes=summary.added.p95_bytes, max_bytes=summary.added.max_bytes)
            break
        self._told.events.append(Event("serving", fields))

    def headers(self, visit: Visit) -> list[tuple[str, str]]:
        """Return what a response tells of the GPU, as far as is known when it begins."""
        try:
            milliseconds = (self._clock() - visit.started) * 1000
            timing = f"gpu;dur={milliseconds:.1f}"
            now = self._meter.read()
            if now is not None:
                timing += f';desc="peak {now.peak_bytes / GIB:.2f} GiB"'
            return [
                (
                    "X-GPU-Memory",
                    in_one_line(self._allocator.read(), self._told.level)
                    .encode("latin-1", "replace")
                    .decode("latin-1"),
                ),
                ("Server-Timing", timing),
            ]
        except Exception as error:  # noqa: BLE001 - a response without it is still a response
            tell_once("describe the GPU in a response", f"{type(error).__name__}: {error}")
            return []

    def refusal(self, full: Full) -> tuple[list[tuple[str, str]], bytes]:
        """Return headers and body of the 503."""
        body = f"busy: {full}\n".encode()
        return [
            ("Retry-After", str(full.retry_after_seconds)),
            ("Content-Type", "text/plain; charset=utf-8"),
            ("Content-Length", str(len(body))),
        ], body
