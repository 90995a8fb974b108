"""The agent's end of the client protocol, for tests of the client: it notes what it hears and says what it is told."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")
Message = dict[str, Any]
PATIENCE_SECONDS = 60.0
"""For what takes a moment: a test that fails has waited so long, one that passes has not."""


class FakeClient:
    """One connection of an app."""

    def __init__(self, agent: FakeAgent, connection: socket.socket) -> None:
        self._agent = agent
        self.connection = connection
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        self.pid = int(struct.unpack("3i", credentials)[0])
        self.messages: list[Message] = []
        self.lines: list[bytes] = []
        self.connected = True

    def of(self, kind: str) -> list[Message]:
        """All messages of a kind so far."""
        return [message for message in self.messages if message["t"] == kind]

    @property
    def hello(self) -> Message:
        """What it said of itself last."""
        return self.of("hello")[-1]

    def say(self, message: Message | bytes) -> None:
        """Send a message, or bytes as they are."""
        line = message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n"
        self.connection.sendall(line)

    def greet(self, interval: float) -> None:
        """Say welcome, if it has not hung up already."""
        with contextlib.suppress(OSError):
            self.say({"v": 1, "t": "welcome", "interval": interval, "level": "ok"})

    def ask(self, command: str, /, **args: Any) -> Message:
        """Give a command and wait for its answer proper."""
        number = self._agent.next_id()
        self.say({"t": "cmd", "id": number, "cmd": command, "args": args, "deadline_ms": int(PATIENCE_SECONDS * 1000)})
        return self._agent.wait(lambda: self.answer_to(number))

    def answer_to(self, number: int) -> Message | None:
        """The answer to a command; None as long as it is only begun."""
        answers = [message for message in self.of("res") if message["id"] == number and "state" not in message]
        return answers[0] if answers else None


class FakeAgent:
    """Listens on a socket in a folder that it makes. `greet=False` is an agent that hangs after the accept."""

    def __init__(self, path: Path, *, interval: float = 0.2, greet: bool = True, reads: bool = True) -> None:
        self.path = path
        self.clients: list[FakeClient] = []
        self._interval = interval
        self._greet = greet
        self._reads = reads
        self._changed = threading.Condition()
        self._last_id = 0
        self._threads: list[threading.Thread] = []
        self._listener = self._listen()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _listen(self) -> socket.socket:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(self.path))
        listener.listen(512)
        self._run(self._accept, listener)
        return listener

    def stop(self) -> None:
        """End, as at a restart: connections break, the socket's file stays."""
        for end in (self._listener, *(client.connection for client in self.clients)):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)
        for end in (self._listener, *(client.connection for client in self.clients)):
            end.close()

    def restart(self) -> None:
        """Listen again, with nothing remembered."""
        self.clients = []
        self._threads = []
        self._listener = self._listen()

    def wait(self, condition: Callable[[], T | None], seconds: float = PATIENCE_SECONDS) -> T:
        """Wait until the condition gives something true, and return that."""
        until = time.monotonic() + seconds
        with self._changed:
            while True:
                found = condition()
                if found:
                    return found
                if not self._changed.wait(max(0.0, until - time.monotonic())):
                    raise AssertionError(
                        f"nothing came; heard so far: {[client.messages[-3:] for client in self.clients]}"
                    )

    def wait_for_client(
        self, count: int = 1, having: Callable[[FakeClient], object] = lambda _: True
    ) -> list[FakeClient]:
        """At least so many connected clients that have said hello and of which `having` is true."""

        def found() -> list[FakeClient] | None:
            ready = [client for client in self.clients if client.connected and client.of("hello") and having(client)]
            return ready if len(ready) >= count else None

        return self.wait(found)

    def next_id(self) -> int:
        """A number for a command."""
        self._last_id += 1
        return self._last_id

    def _run(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            client = FakeClient(self, connection)
            with self._changed:
                self.clients.append(client)
                self._changed.notify_all()
            if self._greet:
                client.greet(self._interval)
            if self._reads:
                self._run(self._read, client)

    def _read(self, client: FakeClient) -> None:
        with client.connection.makefile("rb") as lines, contextlib.suppress(OSError):
            for line in lines:
                with self._changed:
                    client.lines.append(line)
                    client.messages.append(json.loads(line))
                    self._changed.notify_all()
        with self._changed:
            client.connected = False
            self._changed.notify_all()
