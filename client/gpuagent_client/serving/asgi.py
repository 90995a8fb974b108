"""The ASGI middleware: for FastAPI, Starlette, Quart, Django, Litestar, under any ASGI server on asyncio.

https://asgi.readthedocs.io/en/latest/specs/www.html
"""

from __future__ import annotations

from collections.abc import Awaitable, MutableMapping, Sequence
from typing import Any, Callable

from gpuagent_client import lifecycle
from gpuagent_client.serving.gate import Full, Gate, became_current, in_loop
from gpuagent_client.serving.meter import asgi_route
from gpuagent_client.serving.process import Process
from gpuagent_client.serving.recycling import Recycling
from gpuagent_client.serving.watch import RequestMemory, Visit, Watch

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]


class AsgiMiddleware:
    """Watches the requests that use the GPU, and turns away those for which there is no room.

    Only HTTP: a websocket lives for hours, so its app takes `async with gate:` around each piece of work. What the app
    raises stays the app's; a failure in here costs a figure, not a request.

    Args:
        app: the ASGI app.
        gate: how many requests are served at a time; None: all.
        paths: where requests use the GPU: these paths and those below them; None: everywhere. Others pass untouched.
        header: responses get X-GPU-Memory and Server-Timing.
        release_every: give the allocator's cache back after so many requests.
        release_above_bytes: give it back when more than so much is cached.
        on_request: called with the figures of each request, in the event loop.
        recycling: when this worker makes room for a fresh one, under `uvicorn --workers`; gunicorn has hooks for it.
        process: whose memory it is; this one's.

    Raises:
        ValueError: an argument is not what it must be.
    """

    def __init__(
        self,
        app: Asgi,
        gate: Gate | None = None,
        *,
        paths: Sequence[str] | None = None,
        header: bool = False,
        release_every: int | None = None,
        release_above_bytes: int | None = None,
        on_request: Callable[[RequestMemory], object] | None = None,
        recycling: Recycling | None = None,
        process: Process = lifecycle,
    ) -> None:
        self._app = app
        if recycling is not None:
            recycling.begin_in_app()
        self._watch = Watch(
            gate=gate,
            paths=paths,
            header=header,
            release_every=release_every,
            release_above_bytes=release_above_bytes,
            on_request=on_request,
            process=process,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        watch = self._watch
        if scope["type"] != "http" or not watch.concerns(scope["path"]):
            await self._app(scope, receive, send)
            return
        listening = None
        try:
            place = watch.gate.knock(_nothing)
            if not place.inside:
                listening = in_loop().Listening(receive)
                if not await listening.wait_inside(place):
                    return
                receive = listening
        except Full as full:
            await _refuse(watch, full, send)
            return
        became_current(place)
        visit = watch.begin(place)
        try:
            await self._app(scope, receive, self._with_headers(visit, send) if watch.header else send)
        finally:
            watch.end(visit, asgi_route, scope, in_loop=True)
            if listening is not None:
                listening.end()

    def _with_headers(self, visit: Visit, send: Send) -> Send:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.lower().encode(), value.encode("latin-1")) for name, value in self._watch.headers(visit)]
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        return send_with_headers


async def _refuse(watch: Watch, full: Full, send: Send) -> None:
    headers, body = watch.refusal(full)
    encoded = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
    await send({"type": "http.response.start", "status": 503, "headers": encoded})
    await send({"type": "http.response.body", "body": body})


def _nothing() -> None:
    pass
