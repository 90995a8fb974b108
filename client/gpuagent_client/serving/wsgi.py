"""The WSGI middleware: for Flask, Django and all others, under any WSGI server (PEP 3333)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Callable

from gpuagent_client import lifecycle
from gpuagent_client.lifecycle import ClientProcess
from gpuagent_client.serving.limiter import ConcurrencyLimiter, QueueFull, set_current_slot
from gpuagent_client.serving.meter import wsgi_route
from gpuagent_client.serving.middleware import RequestMemory, RequestTracker, TrackedRequest

StartResponse = Callable[..., Any]
Wsgi = Callable[[Any, StartResponse], Iterable[bytes]]


class WsgiMiddleware:
    """Do what `gpuagent_client.serving.AsgiMiddleware` does, with the same arguments, for WSGI.

    A request is in the section until its response was made to the end: for a stream, until the server closes it.
    """

    def __init__(
        self,
        app: Wsgi,
        gate: ConcurrencyLimiter | None = None,
        *,
        paths: Sequence[str] | None = None,
        header: bool = False,
        release_every: int | None = None,
        release_above_bytes: int | None = None,
        on_request: Callable[[RequestMemory], object] | None = None,
        process: ClientProcess = lifecycle,
    ) -> None:
        self._app = app
        self._tracker = RequestTracker(
            gate=gate,
            paths=paths,
            header=header,
            release_every=release_every,
            release_above_bytes=release_above_bytes,
            on_request=on_request,
            process=process,
        )

    def __call__(self, environ: Any, start_response: StartResponse) -> Iterable[bytes]:  # noqa: ANN401 - PEP 3333
        """Serve one request."""
        tracker = self._tracker
        if not tracker.applies_to(environ.get("PATH_INFO", "")):
            return self._app(environ, start_response)
        try:
            slot = tracker.gate.acquire()
        except QueueFull as full:
            headers, body = tracker.rejection(full)
            start_response("503 Service Unavailable", headers)
            return [body]
        set_current_slot(slot)
        tracked = tracker.begin(slot)
        try:
            result = self._app(
                environ, self._with_headers(tracked, start_response) if tracker.header else start_response
            )
        except BaseException:
            tracker.end(tracked, wsgi_route, environ, in_loop=False)
            raise
        if isinstance(result, (list, tuple, environ.get("wsgi.file_wrapper", list))):
            # Nothing is computed any more, and servers have short ways for these that a wrapper would take away.
            tracker.end(tracked, wsgi_route, environ, in_loop=False)
            return result
        return _Stream(result, lambda: tracker.end(tracked, wsgi_route, environ, in_loop=False))

    def _with_headers(self, tracked: TrackedRequest, start_response: StartResponse) -> StartResponse:
        def start_with_headers(status: str, headers: list[tuple[str, str]], *error: object) -> Any:  # noqa: ANN401
            return start_response(status, [*headers, *self._tracker.headers(tracked)], *error)

        return start_with_headers


class _Stream:
    """A response that is made while it is sent."""

    def __init__(self, result: Iterable[bytes], end: Callable[[], None]) -> None:
        self._result = result
        self._end: Callable[[], None] | None = end

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._result)

    def close(self) -> None:
        """Close the response: servers call it whatever happened, also when the client has hung up."""
        try:
            close = getattr(self._result, "close", None)
            if close is not None:
                close()
        finally:
            end, self._end = self._end, None
            if end is not None:
                end()

    def __del__(self) -> None:
        # A server that forgets to close it must not lose a place for ever.
        if self._end is not None:
            self._end()
