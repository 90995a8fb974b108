"""One small program that answers for a whole fleet: `/node/17/metrics` is node 17's.

Every node tells the recorded scrapes in turn, each from another place in them, with uuids and pids of its own.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\ncontent-length: %d\r\n\r\n"
_UUID = re.compile(rb"GPU-([0-9a-f]{8})-")
_PID = re.compile(rb'pid="(\d+)"')


class Fleet:
    """The answers of all nodes."""

    def __init__(self, scrapes: Sequence[bytes]) -> None:
        # Cut where a node's own names stand: joining is all that is left to do for each answer.
        self._pieces = [_UUID.split(_PID.sub(rb'pid="@\1"', scrape)) for scrape in scrapes]
        self._turn = itertools.count()

    def answer(self, node: int) -> bytes:
        """The node's next scrape."""
        pieces = self._pieces[(node + next(self._turn)) % len(self._pieces)]
        own = b"%04x" % node
        uuids = (b"GPU-" + own + piece[4:] + b"-" if number % 2 else piece for number, piece in enumerate(pieces))
        return b"".join(uuids).replace(b'pid="@', b'pid="%d' % (node + 1))


@contextmanager
def serving(scrapes: Sequence[bytes]) -> Iterator[int]:
    """The port at which the fleet answers, from a thread with a loop of its own."""
    fleet = Fleet(scrapes)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                body = fleet.answer(int(head.split(b"/", 3)[2]))
                writer.writelines((_HEAD % len(body), body))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(talk, "127.0.0.1", 0, backlog=2048))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
