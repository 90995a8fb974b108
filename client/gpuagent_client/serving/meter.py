"""Measure what requests do to the allocator, before and after each, and keep the figures by route.

torch's peak belongs to the process and can only be reset for all, which would break the app's own figures, so it is
never reset. A request that was alone and raised it has that peak. For any other it is known to be no more than the
process's peak, and no more than what was allocated at the start plus all that was allocated since.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from gpuagent_client.allocator import Torch, TorchFunctionMissing

LOOK_FOR_GPUS_EVERY = 100
"""Readings. A GPU that the app begins to use later is seen with one of the next."""


class Figures(NamedTuple):
    """The allocator over all GPUs of this process, in bytes."""

    allocated_bytes: int
    reserved_bytes: int
    peak_bytes: int
    """The highest allocated so far, as torch counts it."""
    churned_bytes: int
    """All that was ever allocated, also what was freed again."""

    @property
    def cached_bytes(self) -> int:
        """Taken from the GPU and not in use."""
        return max(0, self.reserved_bytes - self.allocated_bytes)


class Change(NamedTuple):
    """Difference between two readings, in bytes."""

    delta_bytes: int
    """Bytes that stayed allocated; negative where memory was freed."""
    peak_bytes: int
    """The highest allocated in between; an upper bound of what this request did, if not `exact`."""
    added_bytes: int
    """That peak above what was allocated at the beginning: what the request needed."""
    exact: bool


class Meter:
    """Read the allocator of the app's torch. Threads may share it."""

    def __init__(self, torch: Torch) -> None:
        self._torch = torch
        self._in_use: list[int] = []
        self._readings = 0
        self._silent = False

    def read(self) -> Figures | None:
        """Return the figures of now; None where CUDA is not up, or nobody counts. Never raises, never starts CUDA."""
        if self._silent or not self._torch.initialized():
            return None
        try:
            if self._readings % LOOK_FOR_GPUS_EVERY == 0 or not self._in_use:
                self._in_use = [index for index in range(self._torch.device_count()) if self._torch.has_context(index)]
            self._readings += 1
            allocated = reserved = peak = churned = 0
            for index in self._in_use:
                nested: Mapping[str, Any] = self._torch.call("torch._C", "_cuda_memoryStats", index)
                figures = nested["allocated_bytes"]["all"]
                allocated += figures["current"]
                peak += figures["peak"]
                churned += figures["allocated"]
                reserved += nested["reserved_bytes"]["all"]["current"]
        except TorchFunctionMissing:
            self._silent = True
            return None
        except Exception as error:  # noqa: BLE001 - torch raises what it likes
            self._silent = "not yet support" in str(error)  # a pluggable allocator keeps none; all else may pass
            return None
        return Figures(allocated, reserved, peak, churned) if self._in_use else None


def compare(before: Figures, after: Figures, *, alone: bool) -> Change:
    """Return what happened in between; `exclusive`: no other request was in the section meanwhile."""
    least = max(before.allocated_bytes, after.allocated_bytes)
    rose = after.peak_bytes > before.peak_bytes
    most = max(
        least, min(after.peak_bytes, before.allocated_bytes + max(0, after.churned_bytes - before.churned_bytes))
    )
    peak = max(least, after.peak_bytes) if rose else most
    return Change(
        delta_bytes=after.allocated_bytes - before.allocated_bytes,
        peak_bytes=peak,
        added_bytes=max(0, peak - before.allocated_bytes),
        exact=alone and (rose or peak == least),
    )


MAX_ROUTES = 64
KEPT_REQUESTS = 256
OTHERS = "(others)"
"""Name under which routes beyond the limit are counted: paths that contain names would have no end."""
_VARIES = re.compile(r"(?=[^/]*\d)[^/]{8,}|\d+")
"""A part of a path that is a number, or long and with digits in it: an id, most likely."""


class Spread(NamedTuple):
    """Quantiles of what the last requests of a route added above what was allocated before, in bytes."""

    p50_bytes: int
    p95_bytes: int
    max_bytes: int


class RouteSummary(NamedTuple):
    """One route, over its last 256 requests with figures."""

    requests: int
    """Number of requests so far."""
    exact_share: float
    """Share of the requests that were alone: the others may include some of their neighbors' memory."""
    added: Spread | None
    """Memory that requests added; None before the first request that used a GPU."""
    last_delta_bytes: int
    """Bytes that the last request left allocated."""
    seconds: float
    """Seconds that the last request took."""


class _Route:
    def __init__(self) -> None:
        self.requests = 0
        self.changes: deque[Change] = deque(maxlen=KEPT_REQUESTS)
        self.seconds = 0.0


class Routes:
    """Figures by route. Threads may share it: what one adds is a few steps that the interpreter does not mix up."""

    def __init__(self) -> None:
        self._routes: dict[str, _Route] = {}

    def add(self, name: str, change: Change | None, seconds: float) -> None:
        """Add a request that has ended."""
        route = self._routes.get(name)
        if route is None:
            if len(self._routes) >= MAX_ROUTES:
                name = OTHERS
            route = self._routes.setdefault(name, _Route())
        route.requests += 1
        route.seconds = seconds
        if change is not None:
            route.changes.append(change)

    def summaries(self) -> dict[str, RouteSummary]:
        """Return summaries by route, the one that needs most first."""
        found = {name: _summary(route) for name, route in list(self._routes.items())}
        by_need = sorted(found.items(), key=lambda item: -(item[1].added.p95_bytes if item[1].added else -1))
        return dict(by_need)


def _summary(route: _Route) -> RouteSummary:
    changes = list(route.changes)
    added = sorted(change.added_bytes for change in changes)
    spread = Spread(_quantile(added, 0.5), _quantile(added, 0.95), added[-1]) if added else None
    exact_share = sum(change.exact for change in changes) / len(changes) if changes else 0.0
    return RouteSummary(
        route.requests, exact_share, spread, changes[-1].delta_bytes if changes else 0, round(route.seconds, 6)
    )


def _quantile(ordered: list[int], share: float) -> int:
    """Return the nearest of the values that were seen, at or above this share of them."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def template(path: str) -> str:
    """Return a path without what varies, where no framework tells its template."""
    return "/".join("{}" if _VARIES.fullmatch(part) else part for part in path.split("/"))


def asgi_route(scope: Mapping[str, Any]) -> str:
    """Return the template of a request that was served: `GET /items/{item_id}`, as far as the framework tells."""
    route = scope.get("route")
    path = getattr(route, "path", None)
    if not isinstance(path, str):
        path = str(scope.get("path", ""))
        for key, value in (scope.get("path_params") or {}).items():
            path = path.replace(f"/{value}", f"/{{{key}}}", 1)
        path = template(path)
    return f"{scope.get('method', '')} {path}"


def wsgi_route(environ: Mapping[str, Any]) -> str:
    """Return the route of a WSGI request, made from its path: WSGI has no place for a template."""
    return f"{environ.get('REQUEST_METHOD', '')} {template(str(environ.get('PATH_INFO', '')))}"
