"""A process with a torch that is made up, for what serves in it; and drivers for ASGI and WSGI apps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from gpuagent_client.allocator import Allocator, Torch
from gpuagent_client.commands import Limits
from gpuagent_client.protocol import Level
from gpuagent_client.settings import ClientState
from tests.client.apps.faketorch import FakeTorch

MIB = 1024**2
Message = dict[str, Any]
Handler = Callable[[dict[str, Any], Any, Any], Awaitable[None]]


class FakeProcess:
    """What `lifecycle` is to the serving part, with a clock that is set by hand."""

    def __init__(self, fake: FakeTorch | None = None) -> None:
        self.fake = fake or FakeTorch().start_cuda()
        self.state = ClientState()
        self.torch = Torch(self.fake.modules)
        self.allocator = Allocator(self.torch)
        self.limits = Limits(self.state, self.torch, self.allocator)
        self.now = 1000.0

    def clock(self) -> float:
        """Seconds."""
        return self.now

    def agent_says(self, level: str) -> None:
        """The level that the agent pushes."""
        self.state.level = Level(level, {}, {}, {})


class Response:
    """What a client got."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    async def send(self, message: Message) -> None:
        """ASGI's send."""
        self.messages.append(message)

    @property
    def status(self) -> int:
        """0 before it begins."""
        return self.messages[0]["status"] if self.messages else 0

    @property
    def headers(self) -> dict[str, str]:
        """By lower-case name."""
        return {name.decode(): value.decode("latin-1") for name, value in self.messages[0]["headers"]}

    @property
    def body(self) -> bytes:
        """All of it."""
        return b"".join(message.get("body", b"") for message in self.messages[1:])


class Client:
    """One HTTP client of an ASGI app; it hangs up when it is told to."""

    def __init__(self, app: Any, path: str = "/predict", body: tuple[bytes, ...] = (b"",)) -> None:
        self._app = app
        self._scope = {"type": "http", "method": "POST", "path": path, "headers": []}
        self.said: asyncio.Queue[Message] = asyncio.Queue()
        for number, part in enumerate(body):
            more = number < len(body) - 1
            self.said.put_nowait({"type": "http.request", "body": part, "more_body": more})
        self.response = Response()
        self.task: asyncio.Task[None] | None = None

    def interrupt(self) -> None:
        """As a browser that is closed."""
        self.said.put_nowait({"type": "http.disconnect"})

    async def ask(self) -> Response:
        """The whole request."""
        await self._app(self._scope, self.said.get, self.response.send)
        return self.response

    def start(self) -> asyncio.Task[None]:
        """In a task of its own, as servers do it."""

        async def ask() -> None:
            await self.ask()

        self.task = asyncio.create_task(ask())
        return self.task


async def settle() -> None:
    """Let everybody run until they wait: a task needs a handful of turns to get there."""
    for _ in range(20):
        await asyncio.sleep(0)


async def answer(
    send: Any, status: int = 200, body: bytes = b"ok", headers: tuple[tuple[bytes, bytes], ...] = ()
) -> None:
    """A plain response."""
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body})


def in_loop(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run it; what is left over afterwards is a fault, and asyncio's complaint about it an error."""
    asyncio.run(coroutine)
