"""A receiver of messages that costs next to nothing: it takes everything, counts, and remembers when."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"


class Receiver:
    """For one event loop. `on_message` gets the body of each message as soon as all of it is there."""

    def __init__(self, on_message: Callable[[bytes], None] = lambda _: None) -> None:
        self.messages = 0
        self._on_message = on_message
        self._open: dict[asyncio.StreamWriter, asyncio.Task[None] | None] = {}

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Its URL, for as long as it listens."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        finally:
            server.close()
            serving = [task for task in self._open.values() if task]
            for writer in self._open:
                writer.close()
            await asyncio.gather(*serving)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open[writer] = asyncio.current_task()
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = _LENGTH.search(head)
                body = await reader.readexactly(int(length[1]) if length else 0)
                self.messages += 1
                self._on_message(body)
                writer.write(_ANSWER)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            del self._open[writer]
