"""Waiting for the gate in an event loop. Apart from the gate, because it is the only part that needs asyncio."""

from __future__ import annotations

import asyncio
from typing import Any

from gpuagent_client.serving.gate import Full, Place


def _wake_here(place: Place) -> asyncio.Future[None]:
    """Return a future that is done once the place is inside, whichever thread lets it in.

    Raises:
        Full: this loop is not asyncio's, and nobody could wake the request.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        place.gate.leave(place)
        raise Full("every place is taken", 1) from None
    woken: asyncio.Future[None] = loop.create_future()

    def finish() -> None:
        if not woken.done():
            woken.set_result(None)

    def wake() -> None:
        try:
            loop.call_soon_threadsafe(finish)
        except RuntimeError:  # the loop is over, and the request with it
            place.gate.leave(place)

    place.wake = wake
    if place.inside:  # let in before there was anybody to wake
        finish()
    return woken


async def wait_inside(place: Place) -> None:
    """Wait for the place to be let in.

    Raises:
        Full: it was not, in time.
    """
    woken = _wake_here(place)
    try:
        await asyncio.wait([woken], timeout=place.gate.wait_seconds)
        place.gate.expect_inside(place)
    except BaseException:  # the caller was cancelled: whoever is next gets the place
        place.gate.leave(place)
        raise


class Listening:
    """An ASGI `receive` that can be listened to while the request waits, and then gives the app all that it heard.

    A client that hangs up while it waits is not served for nothing.
    """

    def __init__(self, receive: Any) -> None:  # noqa: ANN401 - ASGI's callable
        self._receive = receive
        self._heard: list[Any] = []
        self._pending: asyncio.Task[Any] | None = None

    async def wait_inside(self, place: Place) -> bool:
        """Wait for the place to be let in; False: the client has gone.

        Raises:
            Full: it was not let in, in time.
        """
        woken = _wake_here(place)
        loop = asyncio.get_running_loop()
        until = loop.time() + place.gate.wait_seconds
        try:
            while not woken.done():
                if self._pending is None and not self._in_a_body():
                    self._pending = asyncio.ensure_future(self._receive())
                wanted: list[Any] = [woken] if self._pending is None else [woken, self._pending]
                done, _ = await asyncio.wait(wanted, timeout=until - loop.time(), return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    break
                if self._pending in done and self._listen():
                    place.gate.leave(place)
                    return False
            place.gate.expect_inside(place)
        except BaseException:
            place.gate.leave(place)
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
        """End the watch: the request is over, and nobody waits for the client's next word."""
        if self._pending is not None:
            self._pending.cancel()
