"""The ASGI middleware: for FastAPI, Starlette, Quart, Django, Litestar, under any ASGI server on asyncio.

https://asgi.readthedocs.io/en/latest/specs/www.html
"""

from __future__ import annotations

from collections.abc import Awaitable, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Callable

from gpuagent_client import lifecycle
from gpuagent_client.lifecycle import ClientProcess
from gpuagent_client.serving.limiter import ConcurrencyLimiter, QueueFull, Slot, set_current_slot, wake_from_loop
from gpuagent_client.serving.meter import asgi_route
from gpuagent_client.serving.middleware import RequestMemory, RequestTracker, TrackedRequest
from gpuagent_client.serving.recycling import Recycling

if TYPE_CHECKING:
    import asyncio

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]


class BufferedReceive:
    """ASGI `receive` that is read while the request waits for a slot, and then replays all that it read to the app.

    A client that disconnects while it waits is not served for nothing.
    """

    def __init__(self, receive: Any) -> None:  # noqa: ANN401 - ASGI's callable
        self._receive = receive
        self._heard: list[Any] = []
        self._pending: asyncio.Task[Any] | None = None

    async def wait_inside(self, slot: Slot) -> bool:
        """Wait until the slot is acquired; return False if the client has disconnected.

        Raises:
            QueueFull: it was not, in time.
        """
        import asyncio  # noqa: PLC0415 - an app without an event loop does not load it

        woken = wake_from_loop(slot)
        loop = asyncio.get_running_loop()
        until = loop.time() + slot.gate.wait_seconds
        try:
            while not woken.done():
                if self._pending is None and not self._in_a_body():
                    self._pending = asyncio.ensure_future(self._receive())
                wanted: list[Any] = [woken] if self._pending is None else [woken, self._pending]
                done, _ = await asyncio.wait(wanted, timeout=until - loop.time(), return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    break
                if self._pending in done and self._listen():
                    slot.gate.release(slot)
                    return False
            slot.gate.check_acquired(slot)
        except BaseException:
            slot.gate.release(slot)
            self.end()
            raise
        return True

    def _in_a_body(self) -> bool:
        """Return whether more of the body is to come: it stays where it is, for nothing bounds it."""
        return bool(self._heard) and bool(self._heard[-1].get("more_body"))

    def _listen(self) -> bool:
        assert self._pending is not None  # noqa: S101 - for the type checker
        message, self._pending = self._pending.result(), None
        self._heard.append(message)
        return bool(message["type"] == "http.disconnect")

    async def __call__(self) -> Any:  # noqa: ANN401 - as ASGI has it
        if self._heard:
            return self._heard.pop(0)
        if self._pending is not None:
            pending, self._pending = self._pending, None
            return await pending
        return await self._receive()

    def end(self) -> None:
        """Cancel the pending read: the request is over."""
        if self._pending is not None:
            self._pending.cancel()


class AsgiMiddleware:
    """Track the requests that use the GPU, and answer 503 to those for which there is no room.

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
        gate: ConcurrencyLimiter | None = None,
        *,
        paths: Sequence[str] | None = None,
        header: bool = False,
        release_every: int | None = None,
        release_above_bytes: int | None = None,
        on_request: Callable[[RequestMemory], object] | None = None,
        recycling: Recycling | None = None,
        process: ClientProcess = lifecycle,
    ) -> None:
        self._app = app
        if recycling is not None:
            recycling.begin_in_app()
        self._tracker = RequestTracker(
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
        tracker = self._tracker
        if scope["type"] != "http" or not tracker.applies_to(scope["path"]):
            await self._app(scope, receive, send)
            return
        listening = None
        try:
            slot = tracker.gate.try_acquire(_nothing)
            if not slot.inside:
                listening = BufferedReceive(receive)
                if not await listening.wait_inside(slot):
                    return
                receive = listening
        except QueueFull as full:
            await _refuse(tracker, full, send)
            return
        set_current_slot(slot)
        tracked = tracker.begin(slot)
        try:
            await self._app(scope, receive, self._with_headers(tracked, send) if tracker.header else send)
        finally:
            tracker.end(tracked, asgi_route, scope, in_loop=True)
            if listening is not None:
                listening.end()

    def _with_headers(self, tracked: TrackedRequest, send: Send) -> Send:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [
                    (name.lower().encode(), value.encode("latin-1")) for name, value in self._tracker.headers(tracked)
                ]
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        return send_with_headers


async def _refuse(tracker: RequestTracker, full: QueueFull, send: Send) -> None:
    headers, body = tracker.rejection(full)
    encoded = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
    await send({"type": "http.response.start", "status": 503, "headers": encoded})
    await send({"type": "http.response.body", "body": body})


def _nothing() -> None:
    pass
